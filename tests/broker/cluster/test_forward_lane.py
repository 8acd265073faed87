"""Small calls that share a stream to the leader: their answers, and the effect of each end of the stream."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.broker.cluster import lane as forward_lane
from ledgermq.broker.cluster import lane_server as forwarded_calls
from ledgermq.broker.cluster.forwarding import Forwarder
from ledgermq.broker.cluster.lane import MAX_REQUEST, ForwardError
from ledgermq.proto import peer_pb2
from ledgermq.proto.call_metadata import group_metadata

from .two_nodes import SERVICE, Two, opened


async def test_calls_that_come_together_share_a_message_and_each_gets_its_own_answer(two: Two) -> None:
    requests = [b"request %d" % number for number in range(300)]
    answers = await asyncio.gather(*(two.call("echo", request) for request in requests))
    assert answers == [request[::-1] for request in requests]
    assert two.service.alone == 0
    assert sum(two.service.messages) == 300
    assert len(two.service.messages) < 100


async def test_a_lone_call_goes_at_once_with_its_metadata(two: Two) -> None:
    metadata = (("x-mq-client-id", "c"), ("x-ledgermq-forwarded-by", "n1"))
    assert await two.call("echo", b"ab", metadata=metadata) == b"ba"
    assert two.service.seen == [(b"ab", dict(metadata))]
    assert two.service.messages == [1]


async def test_an_answer_does_not_wait_for_that_of_an_earlier_call(two: Two) -> None:
    held = asyncio.create_task(two.call("held", b"first"))
    await two.service.waiting.get()
    assert await two.call("echo", b"ab") == b"ba"
    assert not held.done()
    two.service.gate.set()
    assert await held == b"held first"


@pytest.mark.parametrize(("size", "alone"), [(MAX_REQUEST, 0), (MAX_REQUEST + 1, 1)])
async def test_a_large_request_is_a_call_of_its_own(two: Two, size: int, alone: int) -> None:
    assert len(await two.call("echo", b"x" * size)) == size
    assert two.service.alone == alone


@pytest.mark.parametrize(("limit", "value"), [("MAX_CALLS", 2), ("MAX_BYTES", 11)])
async def test_what_the_stream_has_no_room_for_goes_alone(
    two: Two, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_lane, limit, value)
    held = [asyncio.create_task(two.call("held", b"%d----" % number)) for number in range(2)]
    for _ in held:
        await two.service.waiting.get()
    assert await two.call("echo", b"ab") == b"ba"
    assert two.service.alone == 1
    two.service.gate.set()
    await asyncio.gather(*held)
    await two.call("echo", b"ab")
    assert two.service.alone == 1


async def test_a_node_that_does_not_lead_refuses_for_certain(two: Two) -> None:
    error = await two.fails("follower")
    assert (error.definite, error.repeatable) == (True, True)
    assert "n2 does not lead (leader: n3)" in str(error)


@pytest.mark.parametrize(
    ("name", "text"), [("broken", "UNKNOWN: ZeroDivisionError: a defect"), ("nothing", "UNIMPLEMENTED")]
)
async def test_a_call_that_fails_there_is_not_repeated_and_harms_no_other(
    two: Two, name: str, text: str
) -> None:
    held = asyncio.create_task(two.call("held", b"other"))
    await two.service.waiting.get()
    error = await two.fails(name)
    assert (error.definite, error.repeatable) == (False, False)
    assert error.unknown_there is (name == "nothing")
    assert text in str(error)
    two.service.gate.set()
    assert await held == b"held other"


async def test_a_call_is_answered_whose_failure_has_a_text_that_cannot_be_sent(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded_calls.logger, "exception", lambda *_: None)
    assert r"UNKNOWN: OSError: no file \udcff" in str(await two.fails("unsendable"))


async def test_a_call_ends_at_its_deadline_at_both_ends_with_an_unknown_outcome(two: Two) -> None:
    error = await two.fails("held", b"late", timeout=0.05)
    assert (error.definite, error.repeatable) == (False, True)
    assert await two.service.ended.get() == "late"
    assert 0 < float(await two.call("remaining", timeout=500)) <= 500


async def test_a_call_ends_at_the_other_node_when_its_caller_is_gone_and_no_other_does(two: Two) -> None:
    """A receive that went on waiting there would lease messages in vain."""
    gone, kept = [asyncio.create_task(two.call("held", name)) for name in (b"gone", b"kept")]
    for _ in range(2):
        await two.service.waiting.get()
    gone.cancel()
    assert await two.service.ended.get() == "gone"
    assert not kept.done()
    two.service.gate.set()
    assert await kept == b"held kept"


async def test_calls_of_a_node_that_is_stopped_have_an_unknown_outcome_and_the_next_opens_a_stream(
    two: Two,
) -> None:
    held = asyncio.create_task(two.fails("held", b"x"))
    await two.service.waiting.get()
    await two.server.stop(0)
    assert not (await held).definite
    assert await two.service.ended.get() == "x"  # as a call of its own would end
    assert (await two.fails("echo", b"ab")).definite  # the port is closed: it was never sent
    await two.start(two.service.handlers())
    while True:
        try:
            assert await two.call("echo", b"ab") == b"ba"
        except ForwardError as error:
            assert error.definite
        else:
            break


async def test_a_call_that_was_not_written_when_the_stream_broke_did_nothing() -> None:
    class Stalled:
        """A stream that takes one message and then breaks while the next is being written."""

        def __init__(self) -> None:
            self.written: asyncio.Queue[int] = asyncio.Queue()
            self.break_it = asyncio.Event()

        async def write(self, raw: bytes) -> None:
            self.written.put_nowait(len(peer_pb2.ForwardedCalls.FromString(raw).calls))
            await asyncio.Event().wait()

        async def read(self) -> Any:
            await self.break_it.wait()
            return forward_lane._EOF

        def cancel(self) -> None:
            pass

    stream = Stalled()
    lane = forward_lane.ForwardLane("n2", lambda: stream, lambda answer: None)
    first = asyncio.create_task(lane.call("/m", b"", (), 60))
    assert await stream.written.get() == 1
    second = asyncio.create_task(lane.call("/m", b"", (), 60))
    given_up = asyncio.create_task(lane.call("/m", b"", (), 60))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    stream.break_it.set()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert [isinstance(each, ForwardError) and each.definite for each in outcomes] == [False, True]
    assert all(isinstance(each, ForwardError) for each in outcomes)
    assert stream.written.empty()


async def test_a_call_that_cannot_be_written_takes_no_place_and_harms_no_other(two: Two) -> None:
    broken: Any = (("x-mq-x-bin", b"\xff"),)
    for _ in range(3):
        with pytest.raises(ValueError, match="utf-8"):
            await two.call("echo", b"ab", metadata=broken)
    assert await two.call("echo", b"ab", timeout=1e9) == b"ba", "a deadline beyond what the message holds"
    lane = two.forwarder._lane("n2")
    assert (lane._calls, lane._bytes) == (0, 0)
    told = (("x-mq-client-id", "c"), *group_metadata(7))
    assert two.forwarder.metadata((*broken, *told), "l")[:2] == told


async def test_a_channel_that_is_closed_fails_calls_for_certain_instead_of_leaving_them_to_wait(
    two: Two,
) -> None:
    assert await two.call("echo", b"ab") == b"ba"
    await two.forwarder._lane("n2").close()
    await two.forwarder.channel("n2").close()
    for _ in range(2):
        assert (await two.fails("echo", b"ab")).definite


async def test_a_handler_that_is_cancelled_by_its_own_node_answers(two: Two) -> None:
    error = await two.fails("cancelled")
    assert (error.definite, error.repeatable) == (False, True)


async def _told(two: Two, message: bytes) -> list[peer_pb2.ForwardedAnswer]:
    """Send a message as no node would; return the answers."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{two.port}") as channel:
        method: Any = channel.stream_stream(forward_lane.METHOD, None, None)
        stream = method()
        await stream.write(message)
        answers = peer_pb2.ForwardedAnswers.FromString(await stream.read()).answers
        stream.cancel()
        return list(answers)


async def test_metadata_that_are_no_pairs_are_refused_without_a_trace(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    odd = peer_pb2.ForwardedCall(call_id=1, method=f"/{SERVICE}/echo", metadata=["x"], timeout_ms=60_000)
    (answer,) = await _told(two, peer_pb2.ForwardedCalls(calls=[odd]).SerializeToString())
    assert "no pairs" in answer.details and not two.service.seen
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff",
        peer_pb2.ForwardedCalls(
            calls=[peer_pb2.ForwardedCall(call_id=7, method="/x/y", timeout_ms=60_000)] * 2
        ).SerializeToString(),
        peer_pb2.ForwardedCalls(
            calls=[peer_pb2.ForwardedCall(call_id=each) for each in range(2 * forward_lane.MAX_CALLS + 1)]
        ).SerializeToString(),
    ],
    ids=["garbage", "one id twice", "more calls than a node has under way"],
)
async def test_a_message_that_is_no_message_ends_its_stream_with_one_line(
    two: Two, message: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await _told(two, message)
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await two.call("echo", b"ab") == b"ba"
    assert [each.exc_info for each in caplog.records if each.levelname in ("WARNING", "ERROR")] == [None]


async def test_a_node_without_the_stream_gets_calls_of_their_own() -> None:
    async with opened(lambda service: service.handlers()[:1]) as two:
        assert (await two.fails("echo", b"ab")).definite
        assert await two.call("echo", b"ab") == b"ba"
        assert two.service.alone == 1


async def test_calls_to_a_node_that_leads_no_longer_are_given_up_and_end_there(two: Two) -> None:
    held = asyncio.create_task(two.fails("held", b"x"))
    await two.service.waiting.get()
    two.forwarder.leader_changed("n3")
    error = await held
    assert (error.definite, error.repeatable) == (False, True)
    assert await two.service.ended.get() == "x"
    two.forwarder.leader_changed("n2")
    assert await two.call("echo", b"ab") == b"ba"


async def test_no_more_is_read_while_too_many_calls_are_unanswered(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded_calls, "MAX_CALLS", 1)
    held = []
    for number in range(3):  # one message each
        held.append(asyncio.create_task(two.call("held", b"%d" % number)))
        await two.service.waiting.get()
    late = asyncio.create_task(two.call("echo", b"ab"))
    await two.call("echo", b"x" * (MAX_REQUEST + 1))  # a way round that shows the time has come
    assert not late.done()
    two.service.gate.set()
    assert await late == b"ba"
    await asyncio.gather(*held)


async def test_a_node_that_is_busy_when_it_is_connected_to_is_waited_for(two: Two) -> None:
    writers: list[asyncio.StreamWriter] = []
    ended = asyncio.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await asyncio.sleep(0.3)
        there, back = await asyncio.open_connection("127.0.0.1", two.port)
        writers.append(back)
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))
        ended.set()

    async with await asyncio.start_server(busy, "127.0.0.1", 0) as relay:
        host, port = relay.sockets[0].getsockname()
        forwarder = Forwarder("n1", {"n2": f"{host}:{port}"}, two.unclaimed.put_nowait)
        try:
            assert await forwarder.unary("n2", f"/{SERVICE}/echo", b"ab", (), 3600) == b"ba"
            assert len(writers) == 2, "the first attempt to connect succeeded"
        finally:
            await forwarder.close()
            for writer in writers:
                writer.close()
        await ended.wait()

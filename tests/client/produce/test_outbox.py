"""The outbox: messages that join a run, messages that take the slow path, and the bound on bytes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.errors import BufferFullError, ClosedError, RefusedError
from ledgermq.client.message import Message, MessageQueue, SendReceipt, unpack_body
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.client.produce.outbox import Outbox
from ledgermq.client.produce.plain_run import Stretch, stretches
from ledgermq.client.produce.produce_stream import BrokerGroupConnection
from ledgermq.client.produce.queue_selection import QueueSelector, StickyRoundRobin, StrictRoundRobin
from ledgermq.client.produce.send_window import MAX_SECTION_COUNT, Delivered, Request, SendWindow
from ledgermq.client.produce.sent_batch import SentBatch
from ledgermq.client.produce.topic_lanes import TopicLanes
from ledgermq.proto import log_pb2
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    RecordFlags,
    decode_record,
    decode_section,
    record_positions,
    walk_sections,
)

NOW_NS = 1_700_000_000_000_000_000


class Desk:
    """An outbox with one group, whose window is emptied and answered by hand, at a time that stands still."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        *,
        selector: QueueSelector | None = None,
        max_bytes: int = 1 << 20,
        last_request: int = 1000,
    ) -> None:
        """`last_request`: how many messages it had. After a large one the next messages stay together."""
        self.now_ns = NOW_NS
        patch.setattr(time, "time_ns", lambda: self.now_ns)
        sessions = itertools.count(1)
        self.window = SendWindow(lambda: next(sessions))
        self.wakes = 0
        connection = SimpleNamespace(
            window=self.window, group=SimpleNamespace(max_message_bytes=100_000), wake=self._wake
        )
        self.box = Outbox(selector or StickyRoundRobin(), 1000, max_bytes)
        self.box.start()
        lanes = TopicLanes(RecordEncoder("orders", born_host="h"), near_parts=1)
        queues = [MessageQueue("orders", "g0", number) for number in range(2)]
        lanes.add(cast(BrokerGroupConnection, connection), [self.window.lane(queue, 7) for queue in queues])
        self.box.use("orders", lanes)
        self.box.on_flush(last_request)

    def _wake(self) -> None:
        self.wakes += 1

    def cut(self) -> Request:
        request = self.window.next_request(0)
        assert request is not None
        self.box.on_flush(request.count)
        return request

    def answer(self, request: Request) -> None:
        response = log_pb2.ProduceResponse(request_id=request.request_id)
        for section in request.sections:
            response.results.add(base_queue_offset=100, count=section.count)
        for delivered in self.window.on_response(response, 0).delivered:
            self.deliver(delivered)

    def deliver(self, delivered: Delivered) -> None:
        section, offset = delivered.section, delivered.base_offset
        for ticket in section.tickets:
            offset += ticket.deliver(section.lane.queue, offset, delivered.duplicate)
        self.box.release(section)


def bodies(request: Request) -> list[bytes]:
    found = []
    payload = b"".join(request.parts)
    for position, header in walk_sections(payload, len(request.sections)):
        body = payload[position + SECTION_HEADER_SIZE : position + header.total_size]
        found += [bytes(decode_record(body, int(at)).body) for at in record_positions(body, header.count)]
    return found


async def test_messages_of_one_millisecond_join_and_each_gets_its_own_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    assert desk.box.join("orders", b"00") is None, "nothing is open yet"
    futures = [desk.box.put(Message("orders", b"00"))]
    futures += [
        cast("asyncio.Future[SendReceipt]", desk.box.join("orders", b"%02d" % i)) for i in range(1, 20)
    ]
    request = desk.cut()
    assert bodies(request) == [b"%02d" % i for i in range(20)]
    desk.answer(request)
    receipts = [future.result() for future in futures]
    assert receipts[3] == SendReceipt(receipts[3].message_id, "orders", "g0", 0, 103)
    assert [each.queue_offset for each in receipts] == list(range(100, 120))
    first = decode_record(request.parts[0], SECTION_HEADER_SIZE)
    assert receipts[0].message_id == "01" + first.message_id.hex().upper()
    assert len({each.message_id for each in receipts}) == 20
    assert desk.box.is_empty


async def test_a_message_that_differs_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    desk.box.put(Message("orders", b"00"))
    assert desk.box.join("orders", bytes(128)) is None, "its size takes more bytes to write down"
    assert desk.box.join("orders", b"") is None
    assert desk.box.join("orders", "00") is None
    assert desk.box.join("orders", bytearray(b"00")) is None
    assert desk.box.join("bills", b"00") is None
    for shift in (1_000_000, -1):  # the next millisecond, and a clock that was put back
        desk.now_ns = NOW_NS + shift
        assert desk.box.join("orders", b"00") is None
    desk.now_ns = NOW_NS
    assert desk.box.join("orders", b"00") is not None


async def test_nothing_joins_what_was_cut_given_up_or_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    desk.box.put(Message("orders", b"00"))
    desk.window.next_request(0)  # and the outbox is not told
    assert desk.box.join("orders", b"00") is None
    desk.box.put(Message("orders", b"00"))
    assert len(desk.window.expire(1 << 60)) == 2
    assert desk.box.join("orders", b"00") is None
    desk.box.put(Message("orders", b"00"))
    (moved,) = desk.window.release()
    assert desk.box.join("orders", b"00") is None
    desk.window.adopt(moved, moved.lane)
    assert desk.box.join("orders", b"00") is None, "its bytes count in another window now"


async def test_nothing_joins_a_run_that_something_came_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would move what stands behind it: records tell how far their section is away."""

    desk = Desk(monkeypatch)
    desk.box.put(Message("orders", b"00"))
    desk.box.put(Message("orders", b"01", tag="t"))
    assert desk.box.join("orders", b"02") is None
    desk.box.put(Message("orders", b"02"))
    desk.box.put(Message("orders", b"0" * 200))
    assert desk.box.join("orders", b"03") is None
    desk.box.put(Message("orders", b"03"))
    assert desk.box.join("orders", b"04") is not None
    await desk.box.put_stretch(Stretch.of("orders", [b"05"] * 20), SentBatch(), desk.box.ready)
    assert desk.box.join("orders", b"06") is None
    desk.box.put(Message("orders", b"06"))
    expected = [b"00", b"01", b"02", b"0" * 200, b"03", b"04", *[b"05"] * 20, b"06"]
    assert bodies(desk.cut()) == expected, "and every record is sound"


async def test_after_a_flush_the_next_message_goes_to_the_next_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    desk.box.put(Message("orders", b"00"))
    desk.box.on_flush(1000)
    assert desk.box.join("orders", b"00") is None
    desk.box.put(Message("orders", b"00"))
    assert [section.lane.queue.queue_id for section in desk.cut().sections] == [0, 1]


async def test_messages_of_small_requests_go_round_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """As lines of a file, or twenty sends at once: each labelled or not, with a key or not."""

    for labels, keys in (
        ([""] * 20, []), (["t"] * 20, []), (["", "t"] * 10, []), (["t"] * 20, ["k"]), (["", "t"] * 10, ["k"]),
    ):  # fmt: skip
        desk = Desk(monkeypatch, last_request=32)
        for number, tag in enumerate(labels):
            sent = b"%02d" % number
            if tag or desk.box.join("orders", sent) is None:
                desk.box.put(Message("orders", sent, tag, keys))
        counts = [section.count for section in desk.cut().sections]
        assert len(counts) == 2
        assert max(counts) - min(counts) <= 2, "stretches of an eighth of what waits"


async def test_a_large_request_spreads_in_stretches_and_the_next_one_stays_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch, last_request=1)

    def put_many() -> list[tuple[int, int]]:
        for number in range(600):
            sent = b"%03d" % number
            if desk.box.join("orders", sent) is None:
                desk.box.put(Message("orders", sent))
        request = desk.cut()
        desk.answer(request)
        return [(section.lane.queue.queue_id, section.count) for section in request.sections]

    first = dict(put_many())
    assert sum(first.values()) == 600
    assert min(first.values()) > 200
    ((queue, count),) = put_many()
    assert (queue, count) in ((0, 600), (1, 600))
    assert put_many() == [(1 - queue, 600)]


async def test_a_small_batch_goes_round_the_queues_and_a_large_one_stays_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch, last_request=1)
    assert not desk.box.takes_whole(Stretch.of("orders", [b"00"] * 31))
    assert desk.box.takes_whole(Stretch.of("orders", [b"00"] * 32))
    desk.box.on_flush(33)
    assert desk.box.takes_whole(Stretch.of("orders", [b"00"] * 8))


async def test_lone_messages_use_every_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, queues = Desk(monkeypatch, last_request=1), []
    for _ in range(6):
        desk.box.put(Message("orders", b"00"))
        request = desk.cut()
        desk.answer(request)
        queues += [section.lane.queue.queue_id for section in request.sections]
    assert queues == [0, 1] * 3


class _Alternating(StickyRoundRobin):
    """Derived from one that is sticky, and is not."""

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        self._at += 1
        return super().choose(queues, key)


@pytest.mark.parametrize("selector", [StrictRoundRobin, _Alternating])
async def test_a_selector_that_chooses_for_each_message_is_asked_for_each(
    selector: Callable[[], QueueSelector], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(monkeypatch, selector=selector())
    for _ in range(4):
        desk.box.put(Message("orders", b"00"))
        assert desk.box.join("orders", b"00") is None
    assert not desk.box.takes_whole(Stretch.of("orders", [b"00"] * 20))
    assert [section.count for section in desk.cut().sections] == [2, 2]


async def test_what_a_group_would_refuse_is_not_put_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    assert desk.box.takes_whole(Stretch.of("orders", [bytes(100_000)] * 20))
    assert not desk.box.takes_whole(Stretch.of("orders", [bytes(100_000)] * 20 + [bytes(100_001)]))


async def test_a_section_has_no_more_messages_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    batch = SentBatch()
    await desk.box.put_stretch(Stretch.of("orders", [b"0"] * (MAX_SECTION_COUNT - 4)), batch, desk.box.ready)
    desk.window._max_section = 1 << 30
    count = 1
    desk.box.put(Message("orders", b"0"))
    while desk.box.join("orders", b"0") is not None:
        count += 1
    await desk.box.put_stretch(Stretch.of("orders", [b"0"] * 20), batch, desk.box.ready)
    assert max(section.count for section in desk.cut().sections) <= MAX_SECTION_COUNT


async def test_the_bound_holds_for_those_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch, max_bytes=1000)
    desk.box.put(Message("orders", bytes(100)))
    count = 1
    while desk.box.join("orders", bytes(100)) is not None:
        count += 1
    assert desk.box.is_full and count < 10
    with pytest.raises(BufferFullError):
        desk.box.put(Message("orders", bytes(100)))
    desk.answer(desk.cut())
    assert not desk.box.is_full


async def test_the_connection_is_woken_when_enough_waits_for_one_more_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    desk.box.put(Message("orders", bytes(1024)))
    desk.cut()
    desk.box.on_flush(1000)
    desk.box.put(Message("orders", bytes(1024)))
    woken = desk.wakes
    while desk.box.join("orders", bytes(1024)) is not None:
        pass
    assert desk.window.next_request(0) is None, "what waits is not yet worth a second request"
    desk.box.put(Message("orders", bytes(1024)))
    assert desk.wakes == woken + 1
    assert desk.window.next_request(0) is not None


async def test_nothing_joins_once_the_producer_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    desk.box.put(Message("orders", b"00"))
    desk.box.end_runs(for_good=True)
    assert desk.box.join("orders", b"00") is None
    desk.box.put(Message("orders", b"00"))  # it waited for room when the producer closed
    assert desk.box.join("orders", b"00") is None
    desk.box.closed = True
    with pytest.raises(ClosedError):
        desk.box.put(Message("orders", b"00"))


async def test_a_stretch_is_put_in_pieces_that_sections_and_the_bound_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch, max_bytes=20_000)
    sent = [b"%04d" % number + bytes(number) for number in range(200)]
    batch = SentBatch()

    async def put() -> None:
        for part in stretches([Message("orders", body) for body in sent], 4096):
            assert isinstance(part, Stretch)
            await desk.box.put_stretch(part, batch, desk.box.ready)

    putting = asyncio.create_task(put())
    stored: list[bytes] = []
    while not (putting.done() and desk.box.is_empty):
        await asyncio.sleep(0)
        assert desk.box._bytes < 20_000 + 400
        if desk.window.wants_to_send:
            request = desk.cut()
            stored += bodies(request)
            desk.answer(request)
    assert stored == sent, "sizes below and above 128 bytes are runs of their own"
    receipts = await batch.receipts()
    assert len({each.message_id for each in receipts}) == len(receipts) == 200
    assert 2 < len(batch._futures) < 20


async def test_callers_that_are_gone_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    first, second = desk.box.put(Message("orders", b"00")), desk.box.join("orders", b"01")
    labelled = desk.box.put(Message("orders", b"02", tag="t"))
    assert second is not None
    first.cancel()
    labelled.cancel()
    request = desk.cut()
    assert bodies(request) == [b"00", b"01", b"02"], "they may be on their way: they stay in order"
    desk.answer(request)
    assert second.result().queue_offset == 101


async def test_each_caller_of_a_run_that_failed_gets_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(monkeypatch)
    futures = [
        desk.box.put(Message("orders", b"00")),
        desk.box.join("orders", b"01"),
        desk.box.put(Message("orders", b"x", "t")),
    ]
    for ticket in desk.cut().sections[0].tickets:
        ticket.fail(lambda: RefusedError("CODE", "no"))
    errors = [future.exception() for future in futures if future is not None]
    assert len({id(error) for error in errors}) == 3


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "label", "batch", "next ms", "cut", "answer"]),
        st.sampled_from([4, 4, 4, 5, 127, 128, 3000, 120_000]),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_whatever_comes_after_whatever_every_record_is_sound_and_its_receipt_true(
    script: list[tuple[str, int]],
) -> None:
    async def scenario(patch: pytest.MonkeyPatch) -> None:
        desk, count = Desk(patch, max_bytes=1 << 30), itertools.count()
        box, out, stored = desk.box, list[Request](), dict[str, bytes]()
        waiting: list[tuple[asyncio.Future[Any], list[bytes]]] = []

        def body(size: int) -> bytes:
            return (b"%04d" % next(count)).ljust(size, b".")

        def cut() -> None:
            if (request := desk.window.next_request(0)) is not None:
                box.on_flush(request.count)
                out.append(request)

        for step, size in [*script, *[("cut", 0), ("answer", 0)] * 200]:
            if step in ("send", "label"):
                sent = body(min(size, 100_000))
                joined = box.join("orders", sent) if step == "send" else None
                future = joined or box.put(Message("orders", sent, "t" * (step == "label")))
                waiting.append((future, [sent]))
            elif step == "batch":
                put = SentBatch()
                batch = [body(min(size, 3000)) for _ in range(12)]
                await box.put_stretch(Stretch.of("orders", batch), put, box.ready)
                waiting += [(put._futures[0], batch)] if len(put._futures) == 1 else []
            elif step == "next ms":
                desk.now_ns += 1_000_000
            elif step == "cut":
                cut()
            elif out:
                request = out.pop(0)
                for raw in request.parts:
                    view = memoryview(raw)[SECTION_HEADER_SIZE:]
                    for at in record_positions(view, decode_section(raw).count):
                        record = decode_record(view, int(at))
                        stored["01" + record.message_id.hex().upper()] = unpack_body(
                            record.body, bool(record.flags & RecordFlags.GZIP)
                        )
                desk.answer(request)
        assert box.is_empty and not desk.window.wants_to_send
        for future, expected in waiting:
            result = future.result()
            receipts = [result] if isinstance(result, SendReceipt) else result
            assert [stored[receipt.message_id] for receipt in receipts] == expected
        assert len(stored) == next(count), "each message once"

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(scenario(patch))

"""Openings of a lane's stream share nothing, and an answer without a caller is handed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledgermq.broker.cluster import lane as forward_lane
from ledgermq.broker.cluster.lane import ForwardError, ForwardLane
from ledgermq.proto import peer_pb2


class Stream:
    """The other node's end, as the test plays it."""

    def __init__(self) -> None:
        self.written: asyncio.Queue[peer_pb2.ForwardedCalls] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.cancelled = False

    async def write(self, raw: bytes) -> None:
        self.written.put_nowait(peer_pb2.ForwardedCalls.FromString(raw))

    async def read(self) -> Any:
        try:
            return await self.answers.get()
        except asyncio.CancelledError:
            await self.may_end.wait()
            raise

    def cancel(self) -> None:
        self.cancelled = True

    async def asked(self) -> int:
        """Return the id of the one call of the next message."""
        message = await self.written.get()
        return message.calls[0].call_id

    def answer(self, call_id: int, answer: bytes = b"granted", status: int = 0) -> None:
        made = peer_pb2.ForwardedAnswer(call_id=call_id, answer=answer, status=status)
        self.answers.put_nowait(peer_pb2.ForwardedAnswers(answers=[made]).SerializeToString())


class Rig:
    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.unclaimed: list[bytes] = []
        self.lane = ForwardLane("n2", self._open, self.unclaimed.append)

    def _open(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    async def under_way(self) -> tuple[asyncio.Task[bytes], Stream, int]:
        """Make a call that the other node has got."""
        task = asyncio.create_task(self.lane.call("/m", b"", (), 3600))
        await settle()
        stream = self.streams[-1]
        return task, stream, await stream.asked()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    for stream in made.streams:
        stream.may_end.set()
    await made.lane.close()
    assert (made.lane._calls, made.lane._bytes) == (0, 0)


@pytest.mark.parametrize("is_cancelled_first", [False, True])
async def test_an_answer_in_the_very_moment_in_which_its_caller_goes_is_handed_on(
    rig: Rig, is_cancelled_first: bool
) -> None:
    task, stream, call_id = await rig.under_way()
    raw = peer_pb2.ForwardedAnswers(answers=[peer_pb2.ForwardedAnswer(call_id=call_id, answer=b"granted")])
    assert rig.lane._opening is not None
    if is_cancelled_first:
        task.cancel()
    rig.lane._opening._take(raw.SerializeToString())
    if not is_cancelled_first:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert rig.unclaimed == [b"granted"]
    if not is_cancelled_first:
        assert stream.written.empty(), "it was served: there is nothing to end there"


async def test_an_answer_that_was_on_its_way_when_its_caller_went_is_handed_on(rig: Rig) -> None:
    task, stream, call_id = await rig.under_way()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert list((await stream.written.get()).ended) == [call_id]
    stream.answer(call_id)
    await settle()
    assert rig.unclaimed == [b"granted"]


async def test_an_answer_behind_the_deadline_is_handed_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    deadline = asyncio.timeout(None)
    monkeypatch.setattr(asyncio, "timeout", lambda seconds: deadline)
    task, stream, call_id = await rig.under_way()
    deadline.reschedule(0)
    with pytest.raises(ForwardError, match="before the deadline"):
        await task
    stream.answer(call_id)
    await settle()
    assert rig.unclaimed == [b"granted"]


async def test_a_refusal_that_nobody_waits_for_and_an_answer_that_was_taken_are_not_handed_on(
    rig: Rig,
) -> None:
    gone, stream, call_id = await rig.under_way()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await stream.written.get()
    stream.answer(call_id, status=9)
    task, stream, call_id = await rig.under_way()
    stream.answer(call_id)
    stream.answer(call_id, b"twice")
    assert await task == b"granted"
    await settle()
    assert b"granted" not in rig.unclaimed


async def test_the_writer_of_an_ended_stream_takes_no_call_of_the_next(rig: Rig) -> None:
    """The reader of the first takes its time to end, and its writer waits for work meanwhile."""
    first, old, _ = await rig.under_way()
    old.may_end.clear()
    rig.lane.end()
    with pytest.raises(ForwardError, match="n2 leads no longer"):
        await first
    second, new, call_id = await rig.under_way()
    assert new is not old
    assert old.written.empty()
    new.answer(call_id)
    assert await second == b"granted"


async def test_the_end_of_an_old_stream_fails_no_call_of_the_next(rig: Rig) -> None:
    first, old, _ = await rig.under_way()
    old.may_end.clear()
    rig.lane.end()
    await asyncio.gather(first, return_exceptions=True)
    second, new, call_id = await rig.under_way()
    old.may_end.set()
    await settle()
    assert old.cancelled
    assert not second.done()
    new.answer(call_id)
    assert await second == b"granted"


async def test_a_call_that_comes_while_a_broken_stream_is_being_closed_opens_the_next(rig: Rig) -> None:
    first, old, _ = await rig.under_way()
    old.answers.put_nowait(forward_lane._EOF)
    with pytest.raises(ForwardError, match="ended the stream") as error:
        await first
    assert not error.value.definite
    second, new, call_id = await rig.under_way()
    assert new is not old
    new.answer(call_id)
    assert await second == b"granted"


async def test_a_caller_that_goes_when_the_stream_broke_tells_nobody(rig: Rig) -> None:
    first, old, _ = await rig.under_way()
    old.answers.put_nowait(forward_lane._EOF)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await settle()
    assert old.written.empty()
    assert rig.unclaimed == []

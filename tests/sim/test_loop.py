"""Event loop and calls of the simulator: which errors must not stay hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc.aio
import pytest

from ledgermq.raft.reset.receiver import END_OF_STREAM

from .calls import Call, Packet
from .loop import SimLoop
from .world import World


class Turns:
    """Runs what a loop schedules, at once and in order."""

    def __init__(self) -> None:
        self.defects: list[BaseException] = []
        self._ready: list[asyncio.Handle] = []
        self.loop = SimLoop(
            now=lambda: 0,
            soon=self._ready.append,
            later=lambda _delay, handle: self._ready.append(handle),
            when_disk_is_done=self._ready.append,
            on_defect=self.defects.append,
        )

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine)
        while self._ready:
            self.loop.run(self._ready.pop(0))
        return task


async def with_a_bug() -> None:
    await asyncio.sleep(1)
    raise KeyError("a bug")


async def gathering() -> None:
    await asyncio.gather(with_a_bug(), return_exceptions=True)


def test_a_bug_is_told_whatever_is_made_of_the_task_that_has_it() -> None:
    turns = Turns()
    assert turns.run(gathering()).exception() is None
    assert [repr(defect) for defect in turns.defects] == ["KeyError('a bug')"]


def test_an_error_that_somebody_is_meant_to_handle_is_no_bug() -> None:
    async def refuse() -> None:
        await asyncio.sleep(1)
        raise OSError("the disk is gone")

    turns = Turns()
    assert isinstance(turns.run(refuse()).exception(), OSError)
    assert turns.defects == []


def test_a_worker_reports_what_it_did_and_what_it_met() -> None:
    async def work() -> list[Any]:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(None, int, text) for text in ("7", "seven")]
        return await asyncio.gather(*jobs, return_exceptions=True)

    seven, error = Turns().run(work()).result()
    assert seven == 7
    assert isinstance(error, ValueError)


def test_what_a_dead_process_asks_of_its_disk_is_not_done() -> None:
    done: list[str] = []

    async def hold() -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_future()
        finally:
            done.append("finally")
            await loop.run_in_executor(None, done.append, "written")
            done.append("went on")

    turns = Turns()
    assert not turns.run(hold()).done()
    turns.loop.kill()
    assert done == ["finally"]
    assert turns.loop.is_closed()


def test_behind_a_break_of_a_connection_comes_its_error_and_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost frame followed by an end would make a part look complete."""
    world = World(1, broker=False)
    client, server = world.nodes["n1"], world.nodes["n2"]
    sent: list[Packet] = []
    monkeypatch.setattr(world, "later", lambda _delay, _name, _kind, packet: sent.append(packet))
    call = Call(world.calls, client, server, "method")
    world.calls.open(call, b"request")
    world.calls.cut(call)
    world.calls.put(call, END_OF_STREAM, to_server=False)
    to_client = [packet.item for packet in sent if not packet.to_server]
    assert [type(item) for item in to_client] == [grpc.aio.AioRpcError]

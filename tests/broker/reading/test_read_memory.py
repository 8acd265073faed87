"""Answers that are read at the same time have so much memory, in order."""

from __future__ import annotations

import asyncio

from ledgermq.broker.reading.read_memory import ReadMemory


class Readers:
    """Readers of one memory; `having` in the order in which they got it."""

    def __init__(self, limit: int) -> None:
        self._memory = ReadMemory(limit)
        self.having: list[str] = []
        self._done: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, size: int) -> None:
        self._done[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._read(name, size))
        await self._settle()

    async def end(self, name: str) -> None:
        self._done[name].set()
        await self._tasks[name]
        await self._settle()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await asyncio.gather(*(self._tasks[name] for name in names), return_exceptions=True)
        await self._settle()

    async def _read(self, name: str, size: int) -> None:
        async with self._memory.lent(size):
            self.having.append(name)
            try:
                await self._done[name].wait()
            finally:
                self.having.remove(name)

    async def _settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_who_finds_none_left_waits_in_order_and_small_reads_do_not_overtake() -> None:
    readers = Readers(100)
    await readers.begin("a", 60)
    await readers.begin("b", 40)
    await readers.begin("large", 80)
    await readers.begin("small", 1)
    assert readers.having == ["a", "b"]
    await readers.end("b")
    assert readers.having == ["a"]
    await readers.end("a")
    assert readers.having == ["large", "small"]


async def test_one_read_may_have_all_whatever_it_asks_for() -> None:
    readers = Readers(100)
    await readers.begin("huge", 1000)
    await readers.begin("next", 1)
    assert readers.having == ["huge"]
    await readers.end("huge")
    assert readers.having == ["next"]


async def test_a_cancelled_read_leaves_its_place_and_its_memory_to_others() -> None:
    readers = Readers(100)
    await readers.begin("a", 100)
    await readers.begin("b", 100)
    await readers.begin("c", 50)
    await readers.begin("d", 50)
    await readers.cancel("b")
    assert readers.having == ["a"]
    await readers.cancel("a")
    assert readers.having == ["c", "d"]
    await readers.begin("e", 100)
    await readers.begin("f", 50)
    await readers.end("c")
    await readers.cancel("e")
    assert readers.having == ["d", "f"], "what waited behind it needs less"
    await readers.cancel("d", "f")
    await readers.begin("all", 100)
    assert readers.having == ["all"], "nothing was lost"

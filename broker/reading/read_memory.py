"""Memory of answers while they are read from the log.

Owns: what is left of it, and who waits for more, in order. Must not: know what is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadMemory:
    """A number of bytes. Many readers of cold data wait here instead of holding it all."""

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def lent(self, size: int) -> AsyncIterator[None]:
        """Have `size` bytes, all of them at most, inside the block; waits until there are as many."""
        size = min(size, self._limit)
        if self._waiting or size > self._free:
            await self._turn(size)
        else:
            self._free -= size
        try:
            yield
        finally:
            self._give_back(size)

    async def _turn(self, size: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(size)
            else:
                self._waiting.remove((size, future))
                self._give_back(0)  # the next may need less
            raise

    def _give_back(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, future = self._waiting.popleft()
            if not future.done():
                self._free -= wanted
                future.set_result(None)

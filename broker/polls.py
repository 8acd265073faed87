"""Long polls: requests that wait until something becomes visible or deliverable, woken at once by apply.

Owns: who waits for what, and how many may. Must not: know what they will find.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Final

MAX_WAITING: Final = 20_000


class TooManyPollsError(Exception):
    """The bound on waiting polls is reached."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_WAITING} requests wait already; the limit is reached. Repeat after a moment")


class Waiter:
    """One waiting request. Create it before looking, so that nothing is missed in between."""

    __slots__ = ("_future", "_keys", "_polls")

    def __init__(self, polls: Polls, keys: tuple[Hashable, ...]) -> None:
        self._polls = polls
        self._keys = keys
        self._future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Let the request look again."""
        if not self._future.done():
            self._future.set_result(True)

    async def wait(self, timeout: float) -> bool:
        """Wait to be woken; return whether it was. `timeout` in seconds."""
        if not self._future.done():
            timer = asyncio.get_running_loop().call_later(max(timeout, 0), self._give_up)
            try:
                return await self._future
            finally:
                timer.cancel()
        return self._future.result()

    def _give_up(self) -> None:
        if not self._future.done():
            self._future.set_result(False)

    def close(self) -> None:
        """Wait no longer."""
        self._polls.remove(self, self._keys)
        self._future.cancel()


class Polls:
    """All waiting requests of a node, by what they wait for."""

    def __init__(self) -> None:
        self._waiters: defaultdict[Hashable, set[Waiter]] = defaultdict(set)
        self.count = 0

    def open(self, keys: Iterable[Hashable]) -> Waiter:
        """Begin to wait for any of `keys`. Raises: TooManyPollsError."""
        if self.count >= MAX_WAITING:
            raise TooManyPollsError
        waiter = Waiter(self, tuple(keys))
        for key in waiter._keys:
            self._waiters[key].add(waiter)
        self.count += 1
        return waiter

    def remove(self, waiter: Waiter, keys: tuple[Hashable, ...]) -> None:
        """Forget a waiter (see Waiter.close)."""
        for key in keys:
            waiters = self._waiters.get(key)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[key]
        self.count -= 1

    def wake(self, key: Hashable) -> None:
        """Wake everybody who waits for `key`."""
        for waiter in self._waiters.get(key, ()):
            waiter.wake()

    def wake_all(self) -> None:
        """Wake everybody: the leader changed, or the node stops."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()

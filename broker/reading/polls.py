"""Long polls: requests that wait until something becomes visible or deliverable, woken at once by apply.

Owns: who waits for what, how many may, and for how many things together. Must not: know what they will find.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Final

MAX_WAITING: Final = 20_000
#: Queues that they wait for, all together: each takes memory as a waiting request does.
MAX_KEYS: Final = 200_000


class TooManyPollsError(Exception):
    """The bound on waiting polls, or on what they wait for, is reached."""

    def __init__(self, reached: str = "") -> None:
        reached = reached or f"{MAX_WAITING} requests wait already"
        super().__init__(f"{reached}; the limit is reached. Repeat after a moment")


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
    """All waiting requests of a node, by what they wait for: at most `max_keys` things, each counted for each request."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._waiters: defaultdict[Hashable, set[Waiter]] = defaultdict(set)
        self._max_keys = max_keys
        self._keys = 0
        self.count = 0

    def open(self, keys: Iterable[Hashable]) -> Waiter:
        """Begin to wait for any of `keys`. Raises: TooManyPollsError."""
        if self.count >= MAX_WAITING:
            raise TooManyPollsError
        wanted = tuple(keys)
        if self._keys + len(wanted) > self._max_keys:
            raise TooManyPollsError(
                f"requests wait for {self._keys} queues already, this one for {len(wanted)} more, and max_poll_queues is "
                f"{self._max_keys}"
            )
        waiter = Waiter(self, wanted)
        for key in wanted:
            self._waiters[key].add(waiter)
        self._keys += len(wanted)
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
        self._keys -= len(keys)
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

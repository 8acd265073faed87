"""Long polls: requests that wait until a message becomes visible or deliverable; apply wakes them at once.

Owns: the waiting requests by key, and their limits.   Must not: know the result of a poll.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ledgermq.raft.node.raft_node import RaftNode  # the configuration reads MAX_KEYS before gRPC may load

#: Maximum of waiting requests.
MAX_WAITING: Final = 20_000
#: Maximum of keys that all requests wait for: each needs as much memory as a waiting request.
MAX_KEYS: Final = 200_000


class TooManyPollsError(Exception):
    """The limit on waiting polls, or on their keys, is reached."""

    def __init__(self, reached: str = "") -> None:
        reached = reached or f"{MAX_WAITING} requests wait already"
        super().__init__(f"{reached}; the limit is reached. Repeat after a moment")


class Waiter:
    """One waiting request. Create it before checking for messages, so that no wake-up is missed."""

    __slots__ = ("_future", "_keys", "_polls")

    def __init__(self, polls: Polls, keys: tuple[Hashable, ...]) -> None:
        self._polls = polls
        self._keys = keys
        self._future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """Let the request check again."""
        if not self._future.done():
            self._future.set_result(True)

    async def wait(self, timeout: float) -> bool:
        """Wait for a wake-up; return whether there was one within `timeout` seconds."""
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
        """End the wait and release its keys."""
        self._polls.remove(self, self._keys)
        self._future.cancel()


class Polls:
    """All waiting requests of a node, by key. A key counts once per request, up to `max_keys` in total."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._waiters: defaultdict[Hashable, set[Waiter]] = defaultdict(set)  # no empty set
        self._max_keys = max_keys
        self._keys = 0  # sum over all requests
        self.count = 0  # waiting requests

    def open(self, keys: Iterable[Hashable]) -> Waiter:
        """Register a request that waits for any of `keys`. Raises: TooManyPollsError."""
        if self.count >= MAX_WAITING:
            raise TooManyPollsError
        wanted = tuple(keys)
        if self._keys + len(wanted) > self._max_keys:
            raise TooManyPollsError(
                f"requests wait for {self._keys} queues already, this one for {len(wanted)} more,"
                f" and max_poll_queues is {self._max_keys}"
            )
        waiter = Waiter(self, wanted)
        for key in wanted:
            self._waiters[key].add(waiter)
        self._keys += len(wanted)
        self.count += 1
        return waiter

    def remove(self, waiter: Waiter, keys: tuple[Hashable, ...]) -> None:
        """Remove a waiter (see Waiter.close)."""
        for key in keys:
            waiters = self._waiters.get(key)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[key]
        self._keys -= len(keys)
        self.count -= 1

    def wake(self, key: Hashable) -> None:
        """Wake all requests that wait for `key`."""
        for waiter in self._waiters.get(key, ()):
            waiter.wake()

    def wake_all(self) -> None:
        """Wake all requests: the leader changed, or the node stops."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()


class CommitWatch:
    """While a reader waits, the leader reports commits to this node at once, not with its next heartbeat."""

    def __init__(self, raft: RaftNode) -> None:
        self._raft = raft
        self._waiting = 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the caller as waiting inside the block."""
        self._waiting += 1
        if self._waiting == 1:
            self._raft.want_commits(True)
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._raft.want_commits(False)

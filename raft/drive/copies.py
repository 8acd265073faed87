"""Durable copies on other members while this node leads, and a way to wait for them (sync_master).

Owns: the waiters per entry. Must not: count for commit (quorum.py does) or keep time: each waiter sets its
own limit.
Invariant: a member's `match_index` is durable there and equal to this log. So a copy once seen stays, until
the member loses its disk.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from ..types import LogIndex

if TYPE_CHECKING:
    from ..core.machine import RaftCore


class Copies:
    """For the event loop. The driver calls `look` after each message, and `end` when leadership is lost."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        # heap of (index, tie-breaker, wanted copies, waiter)
        self._waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []
        self._number = 0

    def held_by(self, index: LogIndex) -> int:
        """Return how many other members hold everything up to `index`."""
        leading = self._core.leading
        if leading is None:
            return 0
        return sum(follower.match_index >= index for follower in leading.followers.values())

    def wait(self, index: LogIndex, count: int) -> asyncio.Future[bool]:
        """Return a future: True once `count` members hold `index`, False if this node loses leadership first.

        Cancel it to stop waiting.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._waiting, (index, self._number, count, future))
        self.look()
        if self._core.leading is None:
            self.end()
        return future

    def end(self) -> None:
        """End all waits: this node no longer leads, so it no longer knows what others hold."""
        waiting, self._waiting = self._waiting, []
        for *_, future in waiting:
            _end(future, held=False)

    def look(self) -> None:
        """Wake the waiters whose entry has enough copies."""
        waiting = self._waiting
        while waiting and (waiting[0][3].done() or self.held_by(LogIndex(waiting[0][0])) >= waiting[0][2]):
            _end(heapq.heappop(waiting)[3], held=True)


def _end(future: asyncio.Future[bool], *, held: bool) -> None:
    if not future.done():
        future.set_result(held)

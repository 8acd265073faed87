"""What other members of a group hold durably, while this node leads, and a way to wait for it (sync_master).

Owns: who waits for which entry. Must not: count for commit (quorum.py does), keep time: who waits brings the limit.
Invariant: `match_index` of a member is durable there and equal to this log, so a copy that was seen stays one, until the
member loses its disk.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

from ..types import LogIndex

if TYPE_CHECKING:
    from ..core.machine import RaftCore


class Copies:
    """On the loop. Whoever feeds the core calls `look` after each message, and `end` when the lead is lost."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        # (index, number, count, who), a heap
        self._waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []
        self._number = 0

    def held_by(self, index: LogIndex) -> int:
        """Return how many other members hold everything up to `index`."""
        leading = self._core.leading
        if leading is None:
            return 0
        return sum(follower.match_index >= index for follower in leading.followers.values())

    def wait(self, index: LogIndex, count: int) -> asyncio.Future[bool]:
        """Return a future that ends with True when `count` members hold `index`, with False when this node leads no more.

        Cancel it to wait no longer.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._number += 1
        heapq.heappush(self._waiting, (index, self._number, count, future))
        self.look()
        if self._core.leading is None:
            self.end()
        return future

    def end(self) -> None:
        """This node leads no more: what others hold is not known here."""
        waiting, self._waiting = self._waiting, []
        for *_, future in waiting:
            _end(future, held=False)

    def look(self) -> None:
        """Wake those whose entry is held by as many as they want."""
        waiting = self._waiting
        while waiting and (waiting[0][3].done() or self.held_by(LogIndex(waiting[0][0])) >= waiting[0][2]):
            _end(heapq.heappop(waiting)[3], held=True)


def _end(future: asyncio.Future[bool], *, held: bool) -> None:
    if not future.done():
        future.set_result(held)

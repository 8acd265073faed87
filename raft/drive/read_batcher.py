"""Read-index requests: all requests of one loop turn share one round of heartbeats.

Owns: the open batches, which are also the core's contexts. A request never joins a batch whose round has
started: its answer could miss what was committed in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.machine import RaftCore
from ..core.outputs import NotLeader, ReadReady
from ..errors import NotLeaderError
from ..types import LogIndex

Batch = asyncio.Future[LogIndex]


@dataclass(slots=True)
class ReadBatcher:
    """`timeout_s` bounds a round whose answer was lost with a connection."""

    core: RaftCore
    feed: Callable[..., NotLeader | None]  # see Driver.feed
    timeout_s: float
    _collecting: Batch | None = None
    _asked: set[Batch] = field(default_factory=set)

    async def read_index(self) -> LogIndex:
        """Return a read index, shared with the other requests of this turn. Raises: NotLeaderError."""
        if self._collecting is None:
            loop = asyncio.get_running_loop()
            self._collecting = loop.create_future()
            loop.call_soon(self._ask)
        batch = self._collecting
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.shield(batch)
        except TimeoutError:
            self._fail(batch)
            raise NotLeaderError(self.core.leader_id) from None

    def ready(self, read: ReadReady) -> None:
        """Resolve a batch with the core's answer."""
        batch = read.context
        assert isinstance(batch, asyncio.Future)
        self._asked.discard(batch)
        if not batch.done():
            batch.set_result(read.index)

    def aborted(self, context: object) -> None:
        """Fail a batch: the core cannot answer because the leader changed."""
        assert isinstance(context, asyncio.Future)
        self._fail(context)

    def close(self) -> None:
        """Fail all open batches."""
        if self._collecting is not None:
            self._fail(self._collecting)
            self._collecting = None
        for batch in list(self._asked):
            self._fail(batch)

    def _ask(self) -> None:
        batch, self._collecting = self._collecting, None
        if batch is None:
            return
        self._asked.add(batch)
        if self.feed(self.core.read_index, batch) is not None:  # after the proposals of this turn
            self._fail(batch)

    def _fail(self, batch: Batch) -> None:
        self._asked.discard(batch)
        if not batch.done():
            batch.set_exception(NotLeaderError(self.core.leader_id))
            batch.exception()

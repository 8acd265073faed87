"""Offset commits: stores the progress of one consumer's queues, repeatedly while there is some.

Owns: the times of commits (at an interval, at a hand-over, at the end), one request for all queues of a
broker group, the meaning of refusals. Must not: decide what is finished (`FinishedPrefix` does).
Invariants: at most one commit per broker group is in flight. What is committed was finished under the
ownership (epoch) that the commit names. A commit is retried until it is stored or the queue is gone, always
with the newest progress, so that nothing accumulates.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from ledgermq.proto import log_pb2 as pb

from ..cluster.calls import call_log_service
from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup
from ..errors import FencedError, LedgerMQError, RefusedError, StaleRouteError
from ..pauses import RETRY_PAUSE_S
from .owned_queue import OwnedQueue, Stage

logger = logging.getLogger(__name__)

#: Offsets per request: brokers accept no more.
MAX_COMMIT_ROWS: Final = 4096


class OffsetCommits(ABC):
    """Commits in the background after `progressed`, and at once with `commit`."""

    def __init__(self, name: str, interval_ms: int, queues: Callable[[], Iterable[OwnedQueue]]) -> None:
        """`queues()` returns all queues to commit."""
        self.last_error = ""  # why the last commit failed; "" if it succeeded
        self._interval_s = interval_ms / 1000
        self._queues = queues
        self._progressed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-commit-{name}")

    def progressed(self) -> None:
        """There is something to commit."""
        self._progressed.set()

    async def commit(self, queues: Iterable[OwnedQueue]) -> bool:
        """Commit these queues now. Return whether that succeeded."""
        async with self._one_at_a_time:
            rows = [(each, each.progress.position) for each in queues if _is_open(each)]
            if not rows:
                return True
            try:
                await self._store(rows)
            except LedgerMQError as error:
                if not self.last_error:
                    logger.warning("offsets are not stored, trying again reason=%s", error)
                self.last_error = str(error)
                return False
            self.last_error = ""
            return True

    async def settled(self, owned: OwnedQueue) -> None:
        """Wait until the progress that a queue has now is committed, or the queue is gone."""
        position = owned.progress.position
        while _is_open(owned) and owned.committed < position:
            if not await self.commit(self._queues()):
                await asyncio.sleep(RETRY_PAUSE_S)

    async def close(self) -> None:
        """Stop. Uncommitted progress is lost."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._progressed.wait()
            self._progressed.clear()
            await asyncio.sleep(self._interval_s)
            try:
                stored = await self.commit(self._queues())
            except Exception:  # a defect: without this, commits would silently stop
                logger.exception("commit failed")
                stored = False
            if not stored:
                await asyncio.sleep(RETRY_PAUSE_S)
                self._progressed.set()

    @abstractmethod
    async def _store(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        """Store offsets and note them in the queues. Raises: LedgerMQError (not everything is stored)."""


def _is_open(owned: OwnedQueue) -> bool:
    return owned.uncommitted and owned.stage is not Stage.GONE


class BrokerGroupCommits(OffsetCommits):
    """Commits to a broker group, each queue with the epoch of its ownership."""

    def __init__(
        self,
        consumer_group: str,
        channels: Channels,
        interval_ms: int,
        group: Callable[[], BrokerGroup],
        queues: Callable[[], Iterable[OwnedQueue]],
        on_fenced: Callable[[OwnedQueue], None],
    ) -> None:
        """`on_fenced(queue)`: another consumer owns the queue now."""
        self._consumer_group = consumer_group
        self._channels = channels
        self._group = group
        self._on_fenced = on_fenced
        super().__init__(group().name, interval_ms, queues)

    async def _store(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        failure: LedgerMQError | None = None
        for at in range(0, len(rows), MAX_COMMIT_ROWS):
            try:
                await self._store_part(rows[at : at + MAX_COMMIT_ROWS])
            except LedgerMQError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _store_part(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        try:
            await self._send(rows)
        except FencedError:
            if len(rows) > 1:
                await self._store_each(rows)
                return
            ((owned, _),) = rows
            logger.warning(
                "ownership has ended, its progress is not stored queue=%s epoch=%d", owned.queue, owned.epoch
            )
            self._on_fenced(owned)
        except RefusedError as error:
            if len(rows) == 1 or (error.retryable and not isinstance(error, StaleRouteError)):
                raise
            await self._store_each(rows)

    async def _store_each(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        """One row made the broker refuse the whole request: store the rows one by one."""
        failure: LedgerMQError | None = None
        for row in rows:
            try:
                await self._store_part([row])
            except LedgerMQError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def _send(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        request = pb.CommitOffsetsRequest(group=self._consumer_group)
        for owned, offset in rows:
            queue = owned.queue
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset, epoch=owned.epoch)
        await call_log_service(self._group, self._channels, lambda stub: stub.CommitOffsets, request)
        for owned, offset in rows:
            owned.committed = max(owned.committed, offset)

"""Stores the progress of one consumer's queues, again and again while there is some.

Owns: when it is stored (at an interval, at a hand-over, at the end), one request for all queues of a broker group, what a
refusal means. Must not: decide what is finished (that is `Progress`).
Invariants: at most one commit of a group is out; what is committed was finished under the ownership that the commit names; it
is retried until it is stored or the queue is gone, always with the newest progress, so nothing piles up.
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

#: Offsets of one request: brokers take no more.
MAX_COMMIT_ROWS: Final = 4096


class OffsetCommits(ABC):
    """Commits in the background after `progressed`, and at once with `commit`."""

    def __init__(self, name: str, interval_ms: int, queues: Callable[[], Iterable[OwnedQueue]]) -> None:
        """`queues()` returns all that this is about."""
        self.last_error = ""  # why the last commit failed, "" after one that did not
        self._interval_s = interval_ms / 1000
        self._queues = queues
        self._progressed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-commit-{name}")

    def progressed(self) -> None:
        """There is something to commit."""
        self._progressed.set()

    async def commit(self, queues: Iterable[OwnedQueue]) -> bool:
        """Store the progress of these queues now; return whether it is stored."""
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
        """Return when what is finished of a queue now is stored, or the queue is gone."""
        position = owned.progress.position
        while _is_open(owned) and owned.committed < position:
            if not await self.commit(self._queues()):
                await asyncio.sleep(RETRY_PAUSE_S)

    async def close(self) -> None:
        """Stop; what is not stored by now is not stored."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._progressed.wait()
            self._progressed.clear()
            await asyncio.sleep(self._interval_s)
            try:
                stored = await self.commit(self._queues())
            except Exception:  # a defect: nobody awaits this task, and nothing would be committed any more
                logger.exception("commit failed")
                stored = False
            if not stored:
                await asyncio.sleep(RETRY_PAUSE_S)
                self._progressed.set()

    @abstractmethod
    async def _store(self, rows: list[tuple[OwnedQueue, int]]) -> None:
        """Store the offsets and note them in the queues. Raises: LedgerMQError (nothing, or not everything, is stored)."""


def _is_open(owned: OwnedQueue) -> bool:
    return owned.uncommitted and owned.stage is not Stage.GONE


class GroupCommits(OffsetCommits):
    """Commits to a broker group, each queue under the epoch of its ownership."""

    def __init__(
        self,
        consumer_group: str,
        channels: Channels,
        interval_ms: int,
        group: Callable[[], BrokerGroup],
        queues: Callable[[], Iterable[OwnedQueue]],
        on_fenced: Callable[[OwnedQueue], None],
    ) -> None:
        """`on_fenced(queue)`: another consumer owns it now."""
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
        """One row of a request was refused, and with it all: store the others by themselves."""
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

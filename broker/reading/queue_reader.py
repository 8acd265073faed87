"""Reader of log sections by queue and offset: ConsumeQueue → record → section.

It finds only entries that this node has applied.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ledgermq.raft.errors import LogCompactedError

from ..state.machine import BrokerState
from .log_reader import LogReader, StoredSection


class AppliedQueues(Protocol):
    """The part of Replica that QueueReader uses."""

    @property
    def state(self) -> BrokerState: ...

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray: ...


class QueueReader:
    """Reader of the ConsumeQueues and the log."""

    def __init__(self, queues: AppliedQueues, log: LogReader) -> None:
        self._queues = queues
        self._log = log

    async def section_at(self, topic_id: int, queue_id: int, offset: int) -> StoredSection | None:
        """Return the section that holds a queue offset; None: the offset is no longer stored.

        Raises: QueueNotFoundError, LogCompactedError.
        """
        units = await self._queues.units(topic_id, queue_id, offset, 1)
        return await self._log.section_of(int(units["physical_offset"][0])) if len(units) else None

    async def section_bytes(self, section: StoredSection) -> memoryview:
        """Return header and body of a section. Raises: LogCompactedError."""
        return await self._log.section_bytes(section)

    async def stored_at(self, topic_id: int, queue_id: int, offset: int) -> int | None:
        """Return the log time (ms) at which a message was stored; None: it is no longer stored.

        Raises: as `section_at`.
        """
        section = await self.section_at(topic_id, queue_id, offset)
        return None if section is None else section.store_timestamp

    async def offset_at_time(self, topic_id: int, queue_id: int, timestamp: int) -> int:
        """Return the first queue offset stored at or after `timestamp` (log time, ms), or the queue's end.

        Raises: QueueNotFoundError.
        """
        queue = self._queues.state.queues.named(topic_id, queue_id)
        low, high = queue.begin, queue.end
        while low < high:
            middle = (low + high) // 2
            try:
                section = await self.section_at(topic_id, queue_id, middle)
            except LogCompactedError:
                section = None
            if section is None or section.store_timestamp < timestamp:
                low = middle + 1 if section is None else min(section.end_queue_offset, high)
            else:
                high = max(section.first_queue_offset, low)
        return low

"""Queues of a received state, extended again from the log: the state of entry `target` came, its queue files did not.

A state that a reset brought knows where each queue begins and ends and the checksums of its blocks. The units between
are made from the entries behind the log's base, as they arrive; at `target` every queue must be what the state says.
Commands in those entries are part of the state already. The units of a queue's first block that lie before its begin
came with the state: the block's checksum covers them.
Owns: how far it is. Must not: touch files or change anything but queues.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionHeader, SectionKind, walk_sections

from .consume_queue import ConsumeQueue, QueueKey, record_starts, units_of
from .errors import DivergedError
from .queue_sums import BLOCK_UNITS, QueueSums
from .state import BrokerState

_End = tuple[int, tuple[int, bytes, int]]  # end of a queue, and its checksums from the block of its begin


class QueueRebuild:
    """Give it every entry from `applied_index` + 1 on; the state serves when `is_whole`."""

    def __init__(
        self, state: BrokerState, base_index: int, leading_units: Callable[[ConsumeQueue], bytes]
    ) -> None:
        """Empty the queues of a restored `state`. `leading_units`: of a queue's first block, before its begin."""
        self.applied_index = base_index
        self.target = state.applied_index
        self._state = state
        self._ends: dict[QueueKey, _End] = {}
        for queue in list(state.queues):
            block = queue.begin // BLOCK_UNITS
            self._ends[queue.key] = (queue.end, queue.sums.from_block(block))
            sums = QueueSums(block)
            sums.append(leading_units(queue), block * BLOCK_UNITS)
            state.queues.add(ConsumeQueue(queue.key, queue.folder, queue.begin, queue.begin, sums))
        self._check_if_whole()

    @property
    def is_whole(self) -> bool:
        """The queues are those of the state."""
        return self.applied_index >= self.target

    def take(self, header: EntryHeader, payload: memoryview) -> None:
        """Extend the queues by the sections of the next entry. Raises: DivergedError, CorruptError."""
        if header.index != self.applied_index + 1:
            raise DivergedError(f"the next entry to rebuild from is {self.applied_index + 1}", header.index)
        if header.kind is EntryKind.RECORDS:
            for position, section in walk_sections(payload, header.section_count):
                if section.kind is SectionKind.RECORDS:
                    start = position + SECTION_HEADER_SIZE
                    body = payload[start : start + section.size]
                    self._extend(section, body, header.physical_offset + HEADER_SIZE + start, header.index)
        self.applied_index = header.index
        self._check_if_whole()

    def _extend(self, section: SectionHeader, body: memoryview, physical_offset: int, index: int) -> None:
        queue = self._state.queues.get(section.topic_id, section.queue_id)
        base = section.base_queue_offset
        if queue is None or base + section.count <= queue.begin:
            return  # of a topic that was deleted since, or hidden by retention
        skipped = max(queue.begin - base, 0)
        if base + skipped != queue.end:
            raise DivergedError(
                f"queue {section.queue_id} of topic id {section.topic_id} is rebuilt to {queue.end}, the section"
                f" begins at {base}",
                index,
            )
        starts = record_starts(body, section.count)[skipped:]
        self._state.queues.append(queue, units_of(body, starts, physical_offset))

    def _check_if_whole(self) -> None:
        """At the target, compare with what the state says. Raises: DivergedError."""
        if not self.is_whole:
            return
        for queue in self._state.queues:
            end, sums = self._ends[queue.key]
            if queue.end != end or queue.sums.from_block(queue.begin // BLOCK_UNITS) != sums:
                raise DivergedError(
                    f"queue {queue.key[1]} of topic id {queue.key[0]} was rebuilt to {queue.end}, but the received"
                    f" state says {end} (or other units). Fetch everything again: ledgermq broker --rejoin",
                    self.applied_index,
                )

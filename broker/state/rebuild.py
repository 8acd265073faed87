"""Rebuild of consume queues from the log, for a loaded state (of entry `target`) without its queue files.

This is the case after a state transfer, and when queue files are missing or cut short at start. A transferred
state comes with the units of each queue's first block that lie before the queue's begin, because the block's
checksum covers them. The state holds the begin and end of each queue and the checksums of its blocks. The
units are made from the entries behind the log's base as they arrive. At `target` every queue must match the
state. The commands in those entries are part of the state already.

Units below a queue's begin may be missing from the log, too. Zeros replace them, and one unit that corrects
the checksum of the block: the checksums must remain equal on all nodes.
Owns: the progress of the rebuild.   Must not: touch files or change anything but queues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from ledgermq.proto.entry import EntryHeader
from ledgermq.proto.record import SectionHeader

from ..errors import DivergedError
from .consume_queue import (
    BLOCK_UNITS,
    UNIT_DTYPE,
    UNIT_SIZE,
    UNITS_PER_FILE,
    ConsumeQueue,
    QueueKey,
    QueueSums,
    UnwrittenRun,
    record_sections,
    record_starts,
    units_of,
)
from .machine import BrokerState


def bridging_unit(difference: int, units_behind: int) -> bytes:
    """Return a unit that changes the checksum of a block by `difference` (xor).

    It replaces a unit of zeros that is followed by `units_behind` units in its block.
    The checksum of a queue's first block covers units below the queue's begin. If their file is lost and
    retention deleted their entries, these units cannot be rebuilt; no reader needs them either. Zeros replace
    them, and this unit stands directly before the first known one. Its physical offset is 0. Its 32 free bits
    can produce any 32-bit checksum.
    """
    zeros = bytes(units_behind * UNIT_SIZE)
    nothing = crc32c(bytes(4) + zeros)
    # Gaussian elimination over GF(2), keyed by the top bit: (change of the checksum, bits that cause it).
    by_top_bit: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        change, bits = crc32c((1 << bit).to_bytes(4, "little") + zeros) ^ nothing, 1 << bit
        while (top := change.bit_length()) in by_top_bit:
            change, bits = change ^ by_top_bit[top][0], bits ^ by_top_bit[top][1]
        by_top_bit[top] = change, bits
    word = 0
    while difference:
        change, bits = by_top_bit[difference.bit_length()]
        difference, word = difference ^ change, word ^ bits
    return bytes(UNIT_SIZE - 4) + word.to_bytes(4, "little")


@dataclass(slots=True)
class _Goal:
    """Expected result for one queue, from the state."""

    begin: int  # first stored queue offset
    end: int  # one past the last
    sums: tuple[int, bytes, int]  # checksums from the block of `begin` on, see QueueSums.from_block
    known_from: int  # units below it are lost; -1: not known yet, no entry of the queue has arrived


class QueueRebuild:
    """Rebuild of the queues of one state. Pass every entry from `applied_index` + 1 on to `take`.

    The state may serve once `is_whole`.
    """

    def __init__(
        self,
        state: BrokerState,
        base_index: int,
        leading_units: Callable[[ConsumeQueue], bytes] | None,
        keys: Collection[QueueKey] | None = None,
    ) -> None:
        """Empty the queues of a restored `state`, all of them or those with the `keys`.

        `leading_units` returns the units of a queue's first block that precede its begin. None: they are
        lost.
        """
        self.applied_index = base_index
        self.target = state.applied_index
        #: Units to write over those of the queues once it is whole. They correct the checksums of the blocks
        #: in which zeros replace lost units.
        self.bridges: list[UnwrittenRun] = []
        self._base_index = base_index
        self._state = state
        self._goals: dict[QueueKey, _Goal] = {}
        queues = [queue for queue in state.queues if keys is None or queue.key in keys]
        leading = [leading_units(queue) if leading_units is not None else b"" for queue in queues]
        for queue, raw in zip(queues, leading, strict=True):
            block = queue.begin // BLOCK_UNITS
            known_from = block * BLOCK_UNITS if leading_units is not None else -1
            self._goals[queue.key] = _Goal(queue.begin, queue.end, queue.sums.from_block(block), known_from)
            sums = QueueSums(block)
            sums.append(raw, block * BLOCK_UNITS)
            state.queues.add(ConsumeQueue(queue.key, queue.folder, queue.begin, queue.begin, sums))
        self._check_if_whole()

    @property
    def is_whole(self) -> bool:
        """Whether all queues match the state."""
        return self.applied_index >= self.target

    def take(self, header: EntryHeader, payload: memoryview) -> None:
        """Extend the queues by the sections of the next entry. Raises: DivergedError, CorruptError."""
        if header.index != self.applied_index + 1:
            raise DivergedError(f"the next entry to rebuild from is {self.applied_index + 1}", header.index)
        for section, body, physical_offset in record_sections(header, payload):
            self._extend(section, body, physical_offset, header.index)
        self.applied_index = header.index
        self._check_if_whole()

    def _extend(self, section: SectionHeader, body: memoryview, physical_offset: int, index: int) -> None:
        key = (section.topic_id, section.queue_id)
        queue, goal = self._state.queues.get(*key), self._goals.get(key)
        if queue is None or goal is None:
            return  # its topic was deleted later, or the files of the queue are whole
        base = section.base_queue_offset
        # A lost file is rebuilt from all that the log has, even below the begin: an offline check reads it.
        lowest = goal.begin // UNITS_PER_FILE * UNITS_PER_FILE if goal.known_from < 0 else queue.begin
        if base + section.count <= lowest:
            return  # hidden by retention
        if goal.known_from < 0:
            queue = self._begin_behind_hole(queue, goal, max(base, lowest))
        skipped = max(queue.begin - base, 0)
        if base + skipped != queue.end:
            raise DivergedError(
                f"queue {section.queue_id} of topic id {section.topic_id} is rebuilt to {queue.end},"
                f" the section begins at {base}",
                index,
            )
        starts = record_starts(body, section.count)[skipped:]
        self._state.queues.append(queue, units_of(body, starts, physical_offset))

    def _begin_behind_hole(self, queue: ConsumeQueue, goal: _Goal, first: int) -> ConsumeQueue:
        """Fill the queue with zeros from the start of a block to `first`, its first unit in the log."""
        if first > goal.begin and not self._base_index:
            raise DivergedError(
                f"queue {queue.key[1]} of topic id {queue.key[0]} begins at {goal.begin}, and the log,"
                f" from which nothing was deleted, has it from {first} on",
                self.applied_index,
            )
        origin = min(first, goal.begin) // BLOCK_UNITS * BLOCK_UNITS
        sums = QueueSums(origin // BLOCK_UNITS)
        emptied = ConsumeQueue(queue.key, queue.folder, origin, origin, sums)
        self._state.queues.add(emptied)
        self._state.queues.append(emptied, np.zeros(first - origin, UNIT_DTYPE))
        goal.known_from = first
        return emptied

    def _check_if_whole(self) -> None:
        """At `target`, compare the queues with the state. Raises: DivergedError."""
        if not self.is_whole:
            return
        for key, goal in self._goals.items():
            queue = self._state.queues.named(*key)
            if goal.known_from < 0:
                queue = self._begin_behind_hole(queue, goal, goal.end)
            self._bridge(queue, goal)
            if queue.end != goal.end or queue.sums.from_block(goal.begin // BLOCK_UNITS) != goal.sums:
                raise DivergedError(
                    f"queue {key[1]} of topic id {key[0]} was rebuilt to {queue.end}, but the state says"
                    f" {goal.end} (or other units). Fetch everything again: ledgermq broker --rejoin",
                    self.applied_index,
                )
            queue.begin = goal.begin

    def _bridge(self, queue: ConsumeQueue, goal: _Goal) -> None:
        """Correct the checksums of the blocks in which units are lost."""
        wanted = QueueSums(*goal.sums)
        for block in range(wanted.first_block, -(-goal.known_from // BLOCK_UNITS)):
            block_end = (block + 1) * BLOCK_UNITS
            known_from, stop = min(goal.known_from, block_end), min(queue.end, block_end)
            difference = queue.sums.of_block(block) ^ wanted.of_block(block)
            unit = np.frombuffer(bridging_unit(difference, stop - known_from), UNIT_DTYPE)
            self.bridges.append(UnwrittenRun(queue.key, queue.folder, known_from - 1, unit))
            queue.sums.replace(block, wanted.of_block(block))

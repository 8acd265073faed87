"""Fetch buffer of a pull consumer: records fetched and not yet handed out, and what to fetch next. Pure.

Owns: per queue, the next offset to fetch and the next to hand out; the bound on buffered bytes.
Must not: do I/O, read clocks.
Invariants: position <= next offset to fetch. Every record between the two is in the buffer, unless retention
deleted it. The buffer holds nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ledgermq.proto import log_pb2

from ..arguments import check_offset
from ..message import MessageView
from .fetched_records import FetchedRecords, open_section
from .intake import FETCH_BYTES, AssignedQueue, Intake

#: Bytes that the buffer may hold; fetching stops above it.
MAX_BUFFER_BYTES: Final = 32 * 1024 * 1024


class FetchBuffer(Intake[AssignedQueue]):
    """The assigned queues of one broker group, with their buffered records."""

    def __init__(self, max_bytes: int = MAX_BUFFER_BYTES) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._pieces: deque[tuple[AssignedQueue, FetchedRecords]] = deque()
        self._bytes = 0

    def remove(self, assigned: AssignedQueue) -> None:
        """Stop reading a queue, and drop its buffered records."""
        if self._queues.get(assigned.key) is assigned:
            del self._queues[assigned.key]
        self._drop(assigned)

    @property
    def has_messages(self) -> bool:
        return bool(self._pieces)

    @property
    def has_room(self) -> bool:
        return self._bytes < self._max_bytes and any(not each.parked for each in self._queues.values())

    def seek(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue at `offset`, and drop the queue's buffered records. Raises: UsageError (not an offset)."""
        check_offset(offset)
        self._drop(assigned)
        if not assigned.sought:  # a broker confirmed these offsets
            assigned.end_offset = max(assigned.end_offset, assigned.fetch_offset)
        assigned.sought, assigned.beyond = True, False
        assigned.parked = False  # refused at the previous offset only
        assigned.position = assigned.fetch_offset = offset

    def skip_to(self, assigned: AssignedQueue, offset: int) -> None:
        """Fetch from `offset` on, because retention deleted what precedes it. Buffered records are kept."""
        assigned.generation += 1
        assigned.sought = assigned.beyond = False
        assigned.fetch_offset = offset
        if not any(owner is assigned for owner, _ in self._pieces):
            assigned.position = offset

    def _drop(self, assigned: AssignedQueue) -> None:
        """Drop the buffered records of a queue at once: they would take room from other queues."""
        assigned.generation += 1
        self._pieces = deque(each for each in self._pieces if each[0] is not assigned)
        self._bytes = sum(len(records.raw) for _, records in self._pieces)

    def _wanted(self) -> Sequence[AssignedQueue]:
        return [each for each in self._queues.values() if not each.parked]

    def _most_bytes(self, wanted: Sequence[AssignedQueue]) -> int:
        return min(FETCH_BYTES, self._max_bytes)

    def _take(self, assigned: AssignedQueue, found: log_pb2.FetchedQueue) -> None:
        assigned.end_offset = max(assigned.end_offset, found.end_offset)
        assigned.sought = assigned.beyond = False
        for section in found.sections:
            records = open_section(assigned.queue, section, assigned.fetch_offset)
            if records is None:
                continue  # nothing new in it
            assigned.fetch_offset = records.end
            self._pieces.append((assigned, records))
            self._bytes += len(records.raw)

    def take(self, max_messages: int) -> list[MessageView]:
        """Hand out up to `max_messages`, in order within each queue."""
        out: list[MessageView] = []
        while self._pieces and len(out) < max_messages:
            assigned, records = self._pieces[0]
            out.extend(records.take(assigned.queue, max_messages - len(out)))
            assigned.position = records.next_offset
            if records.at < len(records.positions):
                return out
            self._pieces.popleft()
            self._bytes -= len(records.raw)
        return out

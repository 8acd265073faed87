"""What a pull consumer has fetched and not yet handed out. Pure.

Owns: the fetched records, per queue the next offset to hand out; the bound on buffered bytes.
Must not: do I/O, read clocks.
Invariants: position <= next offset to ask for; every record between them stands in the buffer, unless retention deleted it;
nothing else does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from ledgermq.proto import log_pb2
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import SECTION_HEADER_SIZE, decode_section, record_positions, verify_section

from .errors import CorruptMessageError, UsageError
from .intake import FETCH_BYTES, AssignedQueue, Intake
from .message import MessageView

#: Bytes that may wait in the buffer; asking stops above it.
MAX_BUFFER_BYTES: Final = 32 * 1024 * 1024


@dataclass(slots=True)
class _Piece:
    """The records of one section that were not handed out yet."""

    assigned: AssignedQueue
    raw: bytes  # the section
    positions: list[int]  # of records, in `raw`
    first_offset: int
    store_timestamp: int
    at: int = 0


class FetchBuffer(Intake[AssignedQueue]):
    """The assigned queues of one broker group."""

    def __init__(self, max_bytes: int = MAX_BUFFER_BYTES) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._pieces: deque[_Piece] = deque()
        self._bytes = 0

    def remove(self, assigned: AssignedQueue) -> None:
        """Stop reading a queue; what is buffered of it is dropped."""
        self._queues.pop(assigned.key, None)
        self._drop(assigned)

    @property
    def has_messages(self) -> bool:
        return bool(self._pieces)

    @property
    def has_room(self) -> bool:
        """Another fetch may be sent."""
        return bool(self._queues) and self._bytes < self._max_bytes

    def seek(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue at `offset`; what was fetched of the queue before is dropped. Raises: UsageError (no offset)."""
        check_offset(offset)
        self._drop(assigned)
        assigned.position = assigned.fetch_offset = offset

    def skip_to(self, assigned: AssignedQueue, offset: int) -> None:
        """Ask on at `offset`, because what lies before it is gone; what is buffered stays and is handed out first."""
        assigned.generation += 1
        assigned.fetch_offset = offset
        if not any(piece.assigned is assigned for piece in self._pieces):
            assigned.position = offset

    def _drop(self, assigned: AssignedQueue) -> None:
        """Forget what is buffered of a queue, at once: it must not keep room from the others."""
        assigned.generation += 1
        self._pieces = deque(piece for piece in self._pieces if piece.assigned is not assigned)
        self._bytes = sum(len(piece.raw) for piece in self._pieces)

    def _wanted(self) -> Sequence[AssignedQueue]:
        return self.queues

    def _most_bytes(self, wanted: Sequence[AssignedQueue]) -> int:
        return min(FETCH_BYTES, self._max_bytes)

    def _take(self, assigned: AssignedQueue, found: log_pb2.FetchedQueue) -> None:
        for section in found.sections:
            self._add(assigned, section)

    def _add(self, assigned: AssignedQueue, fetched: log_pb2.FetchedSection) -> None:
        raw = fetched.section
        try:
            header = decode_section(raw)
            verify_section(raw, 0, header)
            body = memoryview(raw)[SECTION_HEADER_SIZE : header.total_size]
            positions: list[int] = (record_positions(body, header.count) + SECTION_HEADER_SIZE).tolist()
        except LayoutError as error:
            raise CorruptMessageError(assigned.queue.topic, assigned.queue.queue_id, str(error)) from error
        skip = assigned.fetch_offset - header.base_queue_offset
        if skip >= header.count:
            return  # we have all of it already
        first = header.base_queue_offset + max(skip, 0)
        piece = _Piece(assigned, raw, positions[max(skip, 0) :], first, fetched.store_timestamp)
        assigned.fetch_offset = header.base_queue_offset + header.count
        self._pieces.append(piece)
        self._bytes += len(raw)

    def take(self, max_messages: int) -> list[MessageView]:
        """Hand out up to `max_messages`, in order within each queue."""
        out: list[MessageView] = []
        while self._pieces and len(out) < max_messages:
            piece = self._pieces[0]
            out.extend(_views(piece, max_messages - len(out)))
            piece.assigned.position = piece.first_offset + piece.at
            if piece.at < len(piece.positions):
                return out
            self._pieces.popleft()
            self._bytes -= len(piece.raw)
        return out


def check_offset(offset: int) -> None:
    """Check a queue offset that a user gave. Raises: UsageError."""
    if not 0 <= offset < 1 << 63:
        raise UsageError(f"{offset} is no queue offset", "They count from 0")


def _views(piece: _Piece, at_most: int) -> Iterable[MessageView]:
    """Make the views of the next records of a piece and move behind them."""
    start = piece.at
    piece.at = end = min(start + at_most, len(piece.positions))
    offsets = range(piece.first_offset + start, piece.first_offset + end)
    queue, stamp = repeat(piece.assigned.queue), repeat(piece.store_timestamp)
    return map(MessageView, repeat(piece.raw), piece.positions[start:end], queue, offsets, stamp)

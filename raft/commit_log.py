"""The CommitLog, which is the Raft log (D3, D4): what the event-loop thread sees of it.

(interface first; the bodies follow)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledgermq.proto.entry import Buffer, EntryHeader, EntryKind

from .types import HardState, LogIndex, Term


@dataclass(frozen=True, slots=True)
class WireBatch:
    """Checked entries as they came from a peer. `headers` are those of indexed entries (no fillers)."""

    buffer: memoryview
    positions: tuple[int, ...]  # of each header (fillers included) in `buffer`
    headers: tuple[EntryHeader, ...]

    @property
    def first_index(self) -> LogIndex: ...

    @property
    def last_index(self) -> LogIndex: ...

    def term_runs(self) -> list[tuple[LogIndex, Term]]: ...


class CommitLog:
    """Every method must be called on the event-loop thread; none waits for a disk unless it is a coroutine."""

    first_index: LogIndex  # of the first retained entry (last_index + 1 when there is none)
    last_index: LogIndex  # staged, not necessarily durable
    prev_term: Term  # of first_index - 1 (the base point)
    last_term: Term
    last_crc: int
    last_timestamp: int  # log time (ms) of the last entry; 0 at the very start
    first_offset: int  # physical offset of the first retained byte
    end_offset: int  # physical offset behind the last entry
    generation: int  # +1 on each truncation
    max_entry_size: int

    # --- writing -------------------------------------------------------------------------------------------
    def next_offset(self, payload_size: int) -> int:
        """Where the entry of that payload size would start if it were staged now (a filler may come first)."""
        raise NotImplementedError

    def stage_entry(
        self, kind: EntryKind, parts: list[Buffer], *, section_count: int, index: LogIndex, term: Term, timestamp: int
    ) -> EntryHeader:
        """Leader: encode one entry at the tail, in memory. Then call `persist`.

        Raises: EntryTooLargeError, DiskFullError (nothing was staged).
        """
        raise NotImplementedError

    def check_wire(self, buffer: Buffer) -> WireBatch:
        """Follower: verify checksums, inner chain, indexes, offsets and sizes, before the core sees the message.

        Raises: InvalidWireError.
        """
        raise NotImplementedError

    def stage_wire(self, batch: WireBatch, lo: LogIndex) -> None:
        """Follower: take the entries >= `lo` of a checked batch at the tail (lo == last_index + 1), in memory.

        Raises: InvalidWireError (does not chain to this log), DiskFullError. Nothing was staged then.
        """
        raise NotImplementedError

    def truncate_from(self, index: LogIndex) -> None:
        """Cut off the entries >= `index`, in memory; the next `persist` does it on disk, before later appends."""
        raise NotImplementedError

    def persist(self, seq: int, hard_state: HardState | None = None) -> None:
        """Queue: `hard_state`, then everything staged or truncated so far, in order.

        `on_durable(seq)` comes on the loop when it is on stable storage (in flush mode async: in the page cache).
        """
        raise NotImplementedError

    # --- reading -------------------------------------------------------------------------------------------
    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """(first index, term) of each run of entries with one term, oldest first."""
        raise NotImplementedError

    def header_nowait(self, index: LogIndex) -> EntryHeader | None:
        """The header of an entry, when memory or the page cache has it."""
        raise NotImplementedError

    async def header_at(self, index: LogIndex) -> EntryHeader:
        """The header of an entry. Raises: LogCompactedError, LogTruncatedError, DamagedLogError."""
        raise NotImplementedError

    def read_wire_nowait(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> bytes | None:
        """Wire bytes of entries lo..hi (inclusive), whole entries up to `max_bytes` but at least one.

        May end before `hi` (at a segment's end). None: a disk would have to be waited for; use `read_wire`.
        Raises: LogCompactedError, LogTruncatedError.
        """
        raise NotImplementedError

    async def read_wire(self, lo: LogIndex, hi: LogIndex, max_bytes: int) -> bytes:
        """Like `read_wire_nowait`, waiting for a thread of the read pool when it must."""
        raise NotImplementedError

    def entries_nowait(
        self, lo: LogIndex, hi: LogIndex, max_bytes: int
    ) -> Sequence[tuple[EntryHeader, memoryview]] | None:
        """(header, payload) of entries lo.. for apply, at least one, at most to `hi`. Disk bytes are verified.

        None: use `entries`. Raises: LogCompactedError, LogTruncatedError, DamagedLogError.
        """
        raise NotImplementedError

    async def entries(
        self, lo: LogIndex, hi: LogIndex, max_bytes: int
    ) -> Sequence[tuple[EntryHeader, memoryview]]:
        """Like `entries_nowait`, waiting for a thread of the read pool when it must."""
        raise NotImplementedError

    def read_at_nowait(self, offset: int, size: int) -> memoryview | None:
        """`size` log bytes at a physical offset, inside one segment. None: use `read_at`.

        Raises: LogCompactedError, LogTruncatedError (the range ends behind the log).
        """
        raise NotImplementedError

    async def read_at(self, offset: int, size: int) -> memoryview:
        """Like `read_at_nowait`, waiting for a thread of the read pool when it must."""
        raise NotImplementedError

    # --- retention -----------------------------------------------------------------------------------------
    def segments(self) -> Sequence[SegmentInfo]:
        """The retained segments that hold entries, oldest first."""
        raise NotImplementedError

    def delete_segments_before(self, index: LogIndex) -> Sequence[SegmentInfo]:
        """Drop whole segments whose last index < `index`; never the last segment that holds entries.

        Memory forgets them at once; a durable manifest and the unlinks follow in the background.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What is known about one segment."""

    start_offset: int
    first_index: LogIndex
    last_index: LogIndex
    last_timestamp: int  # log time (ms) of its last entry: its age
    end_offset: int  # behind its last entry


Durable = Callable[[int], None]

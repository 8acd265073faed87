"""In-memory contents of the log: segments with their term runs, the tail cache, the base point.

Owns: the mapping from an index or offset to its segment and term.   Must not: touch files or queue writes.
Invariants: segments are contiguous in index and every segment holds an entry. Only the last one is open.
Every truncation increments `generation`, so a slow reader can tell that its plan is stale.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ledgermq.proto.entry import EntryHeader

from ..types import LogIndex, Term
from .identity import Manifest
from .segment import Segment
from .tail_cache import TailCache


@dataclass(slots=True)
class LogContents:
    """Plain state. CommitLog changes it, LogReads reads it. Event-loop thread only."""

    # log bytes per segment file, without the trailer; constant over the life of the folder
    segment_size: int
    base: Manifest  # state just before the first retained entry; retention moves it forward
    # oldest first; invariant: no gaps, none is empty, only the last one takes entries
    segments: list[Segment]
    cache: TailCache  # invariant: holds every entry that is not yet written to the file
    generation: int = 0  # number of truncations; reads that span an increment start over

    @property
    def last(self) -> EntryHeader | None:
        """Header of the last entry; None when the log holds none."""
        return self.segments[-1].last if self.segments else None

    @property
    def first_index(self) -> LogIndex:
        return self.base.first_index

    @property
    def last_index(self) -> LogIndex:
        return self.segments[-1].last_index if self.segments else LogIndex(self.base.first_index - 1)

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else self.base.first_offset

    def segment_of(self, index: LogIndex) -> Segment:
        """Return the segment that holds an entry. Requires first_index <= index <= last_index."""
        position = bisect_right(self.segments, index, key=lambda segment: segment.first_index) - 1
        return self.segments[position]

    def segment_at(self, offset: int) -> Segment:
        """Return the segment that contains a physical offset."""
        position = bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1
        return self.segments[position]

    def segment_before(self, segment: Segment) -> Segment | None:
        """Return the retained segment before this one, or None."""
        position = bisect_right(self.segments, segment.start, key=lambda other: other.start) - 2
        return self.segments[position] if position >= 0 else None

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """Return (first index, term) of each run of entries with the same term, oldest first."""
        runs: list[tuple[LogIndex, Term]] = []
        for segment in self.segments:
            for index, term in segment.runs:
                if not runs or runs[-1][1] != term:
                    runs.append((index, term))
        return runs

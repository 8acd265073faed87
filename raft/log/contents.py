"""What the log holds, in memory: segments with their term runs, the tail cache, the base point.

Owns: the answers to "which segment, which offset, which term".   Must not: touch files or queue writes.
Invariants: segments are contiguous in index, and only the last one is open; every segment here holds an entry;
`generation` grows with each truncation, so a slow reader can tell that its plan is old.
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
    """Plain state; CommitLog changes it, LogReads looks at it. Event-loop thread only."""

    segment_size: int
    base: Manifest
    segments: list[Segment]
    cache: TailCache
    generation: int = 0

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
        """The segment that holds an entry; first_index <= index <= last_index."""
        position = bisect_right(self.segments, index, key=lambda segment: segment.first_index) - 1
        return self.segments[position]

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds a byte of the log."""
        position = bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1
        return self.segments[position]

    def segment_before(self, segment: Segment) -> Segment | None:
        """The retained segment in front of one."""
        position = bisect_right(self.segments, segment.start, key=lambda other: other.start) - 2
        return self.segments[position] if position >= 0 else None

    def term_runs(self) -> list[tuple[LogIndex, Term]]:
        """(first index, term) of each run of entries of one term, oldest first."""
        runs: list[tuple[LogIndex, Term]] = []
        for segment in self.segments:
            for index, term in segment.runs:
                if not runs or runs[-1][1] != term:
                    runs.append((index, term))
        return runs

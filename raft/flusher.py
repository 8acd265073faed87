"""The flusher thread (interface first; the body follows)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlushStatistics:
    """Counters since the start; times in milliseconds."""

    fsync_count: int
    fsync_p50_ms: float
    fsync_p99_ms: float
    written_bytes: int
    flushed_index: int  # highest index on stable storage
    flushed_offset: int
    disk_full: bool

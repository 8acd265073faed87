"""A second, slow and obvious checker of one node's log: the truth that the fast one is compared with.

It is given the log as it should be and looks at what is there, entry by entry, without numpy and without
resync: where an entry is not byte for byte what was written, it is wrong.
"""

from __future__ import annotations

from pathlib import Path

from .dump_maker import Log, segment_of


def wrong_indexes(log: Log, folder: Path) -> list[int]:
    """Return the indexes of the entries whose bytes in the dump are not those of the log."""
    wrong = []
    for header in log.entries:
        path, position = segment_of(folder, header.physical_offset, log.segment_size)
        there = path.read_bytes()[position : position + header.size] if path.exists() else b""
        start = header.physical_offset - header.physical_offset % log.segment_size
        meant = log.segments[start][position : position + header.size]
        if there != meant:
            wrong.append(header.index)
    return wrong


def fillers_are_right(log: Log, folder: Path) -> bool:
    """Tell whether everything behind the last entry of each closed segment is as it was written."""
    for start, meant in log.segments.items():
        path, _ = segment_of(folder, start, log.segment_size)
        ends = [h.end - start for h in log.entries if start <= h.physical_offset < start + log.segment_size]
        there = path.read_bytes() if path.exists() else b""
        if there[max(ends) :] != meant[max(ends) :]:
            return False
    return True

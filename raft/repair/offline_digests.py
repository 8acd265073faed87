"""Block digests of a log that no node runs, read now: for a digest dump of a stopped node.

Digest files of the folder are not used: whoever dumps a stopped node wants to know what its disk holds.
Owns: the choice of what is digested. Must not: change a file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from ledgermq.proto.digest_file import SegmentDigests
from ledgermq.proto.entry import HEADER_SIZE, decode_header
from ledgermq.proto.errors import LayoutError

from ..damage import Before
from ..disk.files import File, FileSystem
from ..log.segment import segment_path
from ..log.segment_scan import last_nonzero, scan_segment
from ..types import LogIndex, Term
from .digest_builder import DigestBuilder

_PIECE: Final = 1 << 20


def digest_log(
    files: FileSystem,
    folder: Path,
    starts: Sequence[int],
    *,
    incarnation: int,
    segment_size: int,
    begin: int,
    before: Before,
    end: int,
) -> Iterator[SegmentDigests]:
    """Yield the digests of segments, each as far as it is intact.

    `folder`: of the segments. `begin`, `end`: physical offsets of the log; `before`: what it continues.
    Raises: OSError.
    """
    position = begin
    for start in starts:
        limit = min(segment_size, end - start)
        if limit <= 0:
            return
        with closing(files.open(segment_path(folder, start), writable=False)) as file:
            chained = before if position == start else _before_first(file)
            if chained is None:
                continue
            builder = DigestBuilder(incarnation, start)
            at, before, is_sealed = _digest(file, start, segment_size, chained, limit, builder)
        position = start + at
        if (made := builder.digests(sealed=is_sealed)) is not None:
            yield made


def _digest(
    file: File, start: int, segment_size: int, before: Before, limit: int, builder: DigestBuilder
) -> tuple[int, Before, bool]:
    """Digest a segment piece by piece.

    Returns where it ends or is damaged, the state of its chain there, and whether all of it is as it must be.
    """
    at, is_sealed = 0, False
    while at < limit:
        headers, stop = bytearray(), min(at + _PIECE, limit)
        scan = scan_segment(file, start, segment_size, before, at, stop, _PIECE, headers)
        builder.add(headers, time.time_ns() // 1_000_000)
        at, before = scan.end, scan.before
        is_sealed = scan.sealed
        if is_sealed and scan.segment.filler:
            behind = decode_header(scan.segment.filler).physical_offset - start + HEADER_SIZE
            is_sealed = last_nonzero(file, behind, segment_size) == behind
        if at < stop:
            break
    return at, before, is_sealed


def _before_first(file: File) -> Before | None:
    """Return what the first entry of a segment says that it continues, behind one that is damaged or missing.

    The check compares it with the entries before, as far as those are there. None: it is damaged itself.
    """
    try:
        first = decode_header(file.pread(HEADER_SIZE, 0))
    except LayoutError:
        return None
    return Before(LogIndex(first.index - 1), Term(first.term), first.prev_crc, first.timestamp)

"""Inventory of the folder `keyindex/` at start: files that match this log, and runs that must be built.

Owns: that decision.   Must not: trust the name of a file. A file is useless if it is damaged, fits no
segment, or was built from other entries (the checksum of its last entry differs, and checksums are chained).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ledgermq.proto.entry import EntryHeader
from ledgermq.proto.errors import LayoutError
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.errors import StorageError
from ledgermq.raft.log.segment import SegmentInfo
from ledgermq.raft.types import LogIndex

from .key_hashes import ItemForm
from .key_run import KeyRun, open_run, run_path

logger = logging.getLogger(__name__)


class LogShape(Protocol):
    """The part of CommitLog that describes its contents."""

    def segments(self) -> Sequence[SegmentInfo]: ...

    async def header_at(self, index: LogIndex) -> EntryHeader: ...


@dataclass(slots=True)
class Kept:
    """Result of the inventory. Segments are named by their start offset."""

    #: Segment of the last applied entry. It is followed from its first entry, or from the end of `parts`.
    followed: SegmentInfo | None = None
    parts: list[KeyRun] = field(default_factory=list)  # of `followed`, contiguous from its first entry
    runs: dict[int, KeyRun] = field(default_factory=dict)  # runs of whole segments
    missing: set[int] = field(default_factory=set)  # segments before `followed` without a run
    useless: list[Path] = field(default_factory=list)  # files to delete


def read_folder(files: FileSystem, folder: Path, form: ItemForm) -> tuple[list[KeyRun], list[Path]]:
    """Return the runs in the folder, oldest first, and the other files. Blocks."""
    found: list[KeyRun] = []
    useless: list[Path] = []
    for name in files.list_directory(folder):
        path = folder / name
        try:
            run = open_run(files, path)
        except (LayoutError, OSError) as error:
            logger.info("key index file not used path=%s reason=%s", path, error)
            useless.append(path)
            continue
        first = run.range.first_index if path.suffix else None
        if run.form == form and path == run_path(folder, run.range.segment_start, first):
            found.append(run)
        else:  # incomplete, of another segment size, or with a wrong name
            useless.append(path)
    return found, useless


async def keep_what_fits(found: list[KeyRun], log: LogShape, applied: int) -> Kept:
    """Select the runs that match the log. `applied`: index of the last applied entry."""
    infos = {info.start_offset: info for info in log.segments()}
    newest = max(infos, default=0)
    kept = Kept()
    for info in infos.values():  # ascending
        if info.first_index <= applied:
            kept.followed = info
    next_index = kept.followed.first_index if kept.followed is not None else LogIndex(0)
    for run in found:
        taken, segment = run.range, infos.get(run.range.segment_start)
        fits = segment is not None and taken.last_index <= applied and await _fits(run, log)
        if fits and run.path.suffix and segment is kept.followed and taken.first_index == next_index:
            kept.parts.append(run)
            next_index = LogIndex(taken.last_index + 1)
        elif fits and not run.path.suffix and segment is not None and _is_whole(run, segment, newest):
            kept.runs[taken.segment_start] = run
        else:
            kept.useless.append(run.path)
    if kept.followed is not None:
        older = {start for start in infos if start < kept.followed.start_offset}
        kept.missing = older - kept.runs.keys()
    return kept


def _is_whole(run: KeyRun, segment: SegmentInfo, newest: int) -> bool:
    """Tell whether a run covers a whole segment. The newest one still grows."""
    taken = run.range
    same = (taken.first_index, taken.last_index) == (segment.first_index, segment.last_index)
    return same and segment.start_offset != newest


async def _fits(run: KeyRun, log: LogShape) -> bool:
    """Tell whether a run was built from the entries in the log."""
    taken = run.range
    try:
        last = await log.header_at(LogIndex(taken.last_index))
    except StorageError:
        return False
    return (last.crc, last.end) == (taken.last_crc, taken.end_offset)

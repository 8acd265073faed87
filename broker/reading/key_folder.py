"""The folder `keyindex/` at a start: which of its files belong to this log, and what has to be made.

Owns: that decision.   Must not: believe a file for its name. A file that fits no segment, was made of other entries (its
last one has another checksum, and checksums are chained), or is damaged, is useless.
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
    """The part of CommitLog that tells what it holds."""

    def segments(self) -> Sequence[SegmentInfo]: ...

    async def header_at(self, index: LogIndex) -> EntryHeader: ...


@dataclass(slots=True)
class Kept:
    """What is there, and what is not."""

    #: The segment of the last applied entry, which is followed from its first entry (or from the end of `parts`).
    followed: SegmentInfo | None = None
    parts: list[KeyRun] = field(default_factory=list)
    runs: dict[int, KeyRun] = field(default_factory=dict)  # of whole segments, by start
    missing: set[int] = field(default_factory=set)
    useless: list[Path] = field(default_factory=list)


def read_folder(files: FileSystem, folder: Path, form: ItemForm) -> tuple[list[KeyRun], list[Path]]:
    """Return the runs in the folder, oldest first, and the files that are none. Blocking."""
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
        else:  # incomplete, of other segments, or under another name
            useless.append(path)
    return found, useless


async def keep_what_fits(found: list[KeyRun], log: LogShape, applied: int) -> Kept:
    """Choose among the runs of the folder; `applied`: index of the last applied entry."""
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
    """Tell whether a run holds a whole segment. The newest one still grows."""
    taken = run.range
    same = (taken.first_index, taken.last_index) == (segment.first_index, segment.last_index)
    return same and segment.start_offset != newest


async def _fits(run: KeyRun, log: LogShape) -> bool:
    """Tell whether a run was made of the entries that the log has."""
    taken = run.range
    try:
        last = await log.header_at(LogIndex(taken.last_index))
    except StorageError:
        return False
    return (last.crc, last.end) == (taken.last_crc, taken.end_offset)

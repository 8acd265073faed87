"""Bugs of the CommitLog, the hard state and recovery, as real systems had them.

Test-only. A mutant is a list of patches (owner, attribute, replacement), so that any test that stores
something can apply it. Each names its row of the bug list (K..., E..., C8) or the rule (P..., D6) that it
breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.proto.entry import EntryHeader
from ledgermq.proto.errors import CorruptError
from ledgermq.raft.disk import page_writer
from ledgermq.raft.disk.files import File, FileSystem
from ledgermq.raft.folder import recovery
from ledgermq.raft.folder.recovery import LogRecovery
from ledgermq.raft.log import reads as log_reads
from ledgermq.raft.log import segment_keeper, segment_scan, wire_batch
from ledgermq.raft.log import writer as log_writer
from ledgermq.raft.log.contents import TailCache
from ledgermq.raft.log.hard_state import BLOCK, DurableState, HardStateFile, encode_state
from ledgermq.raft.log.identity import read_identity
from ledgermq.raft.log.segment import create_segment
from ledgermq.raft.log.segment_keeper import SegmentKeeper
from ledgermq.raft.log.writer import LogWriter, Truncate
from ledgermq.raft.types import LogIndex

Patch = tuple[Any, str, Any]
_sync, _truncate, _with_floor = LogWriter.sync, LogWriter._truncate, LogWriter._with_floor
_file_for, _write, _open = LogWriter._file_for, HardStateFile.write, HardStateFile.__dict__["open"].__func__
_from_index, _delete_after, _cut, _add = (
    LogRecovery._from_index, SegmentKeeper.delete_after, TailCache.cut, TailCache.add,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StorageMutant:
    """One bug. `rows`: its place in the bug list, or the rule that it breaks."""

    name: str
    rows: str
    what: str
    patches: tuple[Patch, ...]


STORAGE_MUTANTS: list[StorageMutant] = []


def _mutant(name: str, rows: str, what: str, *patches: Patch) -> None:
    STORAGE_MUTANTS.append(StorageMutant(name, rows, what, patches))


class _Without:
    """A file or file system with one operation that does nothing."""

    def __init__(self, real: Any, operation: str) -> None:
        self._real = real
        self._operation = operation

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name == self._operation else getattr(self._real, name)


# --- flushes ------------------------------------------------------------------------------------------------
def _sync_nothing(self: LogWriter, *, others_write: bool = False) -> bool:
    file = self._file
    if file is None:
        return _sync(self, others_write=others_write)
    self._file = _Without(file, "fdatasync")
    try:
        return _sync(self, others_write=others_write)
    finally:
        self._file = file


def _write_without_sync(self: HardStateFile, state: DurableState) -> None:
    file = self._file
    self._file = _Without(file, "fdatasync")
    try:
        _write(self, state)
    finally:
        self._file = file


def _sync_again(self: LogWriter, *, others_write: bool = False) -> bool:
    try:
        return _sync(self, others_write=others_write)
    except OSError:
        return _sync(self, others_write=others_write)


def _file_without_sync(self: LogWriter, offset: int) -> File:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogWriter, "sync", _no_sync)
        return _file_for(self, offset)


def _no_sync(self: LogWriter, *, others_write: bool = False) -> bool:
    return False


def _floor_of_what_is_written(self: LogWriter, state: DurableState) -> DurableState:
    return replace(state, floor_index=self.written.index, floor_term=self.written.term)


_mutant("LogIsNotFlushed", "K1", "Log bytes are called durable in the page cache.",
        (LogWriter, "sync", _sync_nothing))  # fmt: skip
_mutant("VoteIsNotFlushed", "E2, K1", "Term and vote are called durable in the page cache.",
        (HardStateFile, "write", _write_without_sync))  # fmt: skip
_mutant("FailedFlushIsTriedAgain", "K7, P15",
"A flush that failed is tried again on the same file, and succeeds.",
        (LogWriter, "sync", _sync_again))  # fmt: skip
_mutant("NextSegmentBeforeTheLastIsDurable", "K8",
"A segment is written while the one before is not durable yet.",
        (LogWriter, "_file_for", _file_without_sync))  # fmt: skip
_mutant("FloorAboveWhatIsDurable", "P18", "The acked floor names entries that are only written.",
        (LogWriter, "_with_floor", _floor_of_what_is_written))  # fmt: skip


# --- hard state ---------------------------------------------------------------------------------------------
def _write_twice(self: HardStateFile, state: DurableState) -> None:
    if state.hard != self.state.hard:
        _write(self, replace(state, hard=replace(state.hard, term=self.state.hard.term)))
    _write(self, state)


def _write_one_copy(self: HardStateFile, state: DurableState) -> None:
    sequence = self._sequence + 1
    self._file.pwritev([encode_state(state, sequence)], sequence % 2 * BLOCK)
    self._file.fdatasync()
    self._sequence, self.state = sequence, state


def _open_or_forget(
    cls: type[HardStateFile], files: FileSystem, path: Path, *, writable: bool = True
) -> HardStateFile:
    try:
        opened: HardStateFile = _open(cls, files, path, writable=writable)
        return opened
    except CorruptError:
        incarnation = read_identity(files, path.with_name("identity"), "").incarnation
        return cls(files.open(path, writable=writable), 0, DurableState(incarnation=incarnation))


_mutant("VoteAndTermAreWrittenApart", "E3, P1", "The hard state is stored in two writes, the vote first.",
        (HardStateFile, "write", _write_twice))  # fmt: skip
_mutant("VoteHasNoCopy", "K3, P1",
"Each hard state stands in one block: damage to it brings the one before back.",
        (HardStateFile, "write", _write_one_copy))  # fmt: skip
_mutant("DamagedVoteIsForgotten", "K4, K10",
"A hard state that cannot be read is taken for that of a new node.",
        (HardStateFile, "open", classmethod(_open_or_forget)))  # fmt: skip


# --- truncation ---------------------------------------------------------------------------------------------
def _write_without_intent(self: HardStateFile, state: DurableState) -> None:
    _write(self, replace(state, cut_turn=0, cut_offset=0))


def _zero_nothing(file: File, start: int, end: int) -> None:
    """A truncation that only forgets."""


def _truncate_below_the_floor(self: LogWriter, cut: Truncate) -> None:
    floor_index, floor_term = self._hard.state.floor_index, self._hard.state.floor_term

    def write(hard: HardStateFile, state: DurableState) -> None:
        if state.floor_index < floor_index:
            state = replace(state, floor_index=floor_index, floor_term=floor_term)
        _write(hard, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HardStateFile, "write", write)
        _truncate(self, cut)


def _delete_without_directory(self: SegmentKeeper, start: int) -> None:
    files = self._files
    self._files = _Without(files, "sync_directory")
    try:
        _delete_after(self, start)
    finally:
        self._files = files


def _cut_nothing(self: TailCache, index: LogIndex) -> None:
    if index > self.last_index or index <= self.first_index:
        _cut(self, index)


def _add_what_is_new(self: TailCache, header: EntryHeader, view: memoryview, filler: bytes = b"") -> None:
    if header.index > self.last_index:
        _add(self, header, view, filler)


_mutant("CutWithoutAnIntent", "K9, D6", "A truncation that a power cut interrupts is not repeated.",
        (HardStateFile, "write", _write_without_intent))  # fmt: skip
_mutant("CutWithoutZeros", "K9, D6", "A truncation leaves the old bytes behind the new end.",
        (log_writer, "zero_tail", _zero_nothing),
        (page_writer, "PAGE", 8))  # what pads the next append would hide the bug  # fmt: skip
_mutant("FloorStaysOverACut", "K9, P18", "A truncation below the acked floor leaves the floor where it was.",
        (LogWriter, "_truncate", _truncate_below_the_floor))  # fmt: skip
_mutant("CutSegmentsComeBack", "K9, P17", "Segments that a truncation deletes are not deleted durably.",
        (SegmentKeeper, "delete_after", _delete_without_directory))  # fmt: skip
_mutant("CacheOutlivesACut", "C8", "Entries that were cut off are still read from memory.",
        (TailCache, "cut", _cut_nothing), (TailCache, "add", _add_what_is_new))  # fmt: skip


# --- segments and recovery ----------------------------------------------------------------------------------
def _create_without_directory(
    files: FileSystem, folder: Path, start: int, segment_size: int, pace: Callable[[int], None] | None = None
) -> None:
    create_segment(_Without(files, "sync_directory"), folder, start, segment_size, pace)


def _verify_nothing(buffer: Any, position: int, header: EntryHeader) -> None:
    """Every checksum is right."""


def _judge_all_torn(self: LogRecovery, *_: object) -> None:
    """Whatever cannot be read is a torn tail."""


def _judge_all_damaged(self: LogRecovery, stop: recovery._Stop) -> None:
    if not stop.reason.startswith("zeros"):
        raise self._stopped(stop, stop.reason)


_mutant("SegmentNameIsNotDurable", "P17", "A new segment is used before its name is durable.",
        (segment_keeper, "create_segment", _create_without_directory))  # fmt: skip
_mutant("ChecksumsAreNotChecked", "K3", "An entry is believed whatever its checksum says.",
        *((module, "verify_entry", _verify_nothing) for module in (segment_scan, log_reads, recovery,
        wire_batch)))  # fmt: skip
_mutant("DamageIsTakenForATornTail", "K3, K6, P18",
"The log is cut off where it cannot be read, acknowledged or not.",
        (LogRecovery, "_judge", _judge_all_torn), (LogRecovery, "_refuse_gap", _judge_all_torn),
        (LogRecovery, "_check_floor", _judge_all_torn))  # fmt: skip
_mutant("TornTailIsTakenForDamage", "P18", "A node that lost power while it wrote refuses to start.",
        (LogRecovery, "_judge", _judge_all_damaged))  # fmt: skip

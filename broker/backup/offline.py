"""Dump point of a node that is not running, found from its files alone.

Owns: reading a data folder without opening the log. Opening would recover it, and might refuse what a dump
has to preserve.
Must not: change anything in the folder, apart from holding its lock.
A stopped node knows only a lower bound of what is committed. Entries behind it are dumped too, marked as not
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from ledgermq.proto.entry import (
    ALIGNMENT,
    MAGIC,
    VERSION,
    EntryHeader,
    EntryKind,
    decode_header,
    verify_entry,
)
from ledgermq.proto.errors import CorruptError, LayoutError
from ledgermq.raft.disk.files import LockedError, RealFileSystem
from ledgermq.raft.errors import LockedFolderError, StateTransferError
from ledgermq.raft.log.hard_state import HardStateFile
from ledgermq.raft.log.identity import read_identity, read_manifest
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.repair.offline_digests import digest_log

from ..checkpoint.store import CheckpointStore
from ..checkpoint.transfer import open_state
from ..errors import CheckpointError
from ..reading.consume_queue_files import ConsumeQueueFiles
from ..state.consume_queue import UNIT_SIZE
from .dump_files import CommitPoint, DumpError, DumpPoint, QueueSource, StateSource

_MAGIC: Final = MAGIC + bytes([VERSION])


@contextmanager
def offline_point(data: Path, *, with_queues: bool, digests: bool = False) -> Iterator[DumpPoint]:
    """Lock a data folder and yield its dump point. Raises: DumpError, RaftError, OSError.

    `digests`: read the whole log, and dump digests of what is intact in it.
    """
    folders, files = LogFolders(data), RealFileSystem()
    if not folders.identity.exists():
        raise DumpError(
            f"{data} is not a node's data folder (no {folders.identity.name} in it). Point --data at one."
        )
    if (data / "reset" / "marker").exists() or (with_queues and (data / "checkpoint" / "rebuild").exists()):
        raise DumpError(
            f"{data} is half way through a reset to its leader's state. "
            "Start the node, wait until it is ready, then"
            " dump it: ledgermq dump DIR; nothing was changed."
        )
    try:
        lock = files.lock(folders.lock)
    except LockedError as error:
        raise LockedFolderError(
            f"{data} is in use ({error.strerror}). "
            "Dump the running node: ledgermq dump DIR; nothing was changed."
        ) from None
    try:
        point = _point(data, folders, files, with_queues=with_queues)
        yield _with_digests(point, files) if digests else point
    finally:
        lock.release()


def _point(data: Path, folders: LogFolders, files: RealFileSystem, *, with_queues: bool) -> DumpPoint:
    identity = read_identity(files, folders.identity, data.name)
    base = read_manifest(files, folders.manifest, identity.node_id)
    state_file = HardStateFile.open(files, folders.hard_state, writable=False)
    state_file.close()
    starts = sorted(int(name) for name in files.list_directory(folders.segments) if name.isdecimal())
    starts = [start for start in starts if start >= base.first_offset]
    log = _StoppedLog(folders.segments, identity.segment_size, starts)
    last = log.last()
    hint = log.last(state_file.state.hard.commit_hint)
    commit = CommitPoint(base.first_index - 1, base.prev_term, base.prev_crc, base.first_offset)
    if hint is not None:
        commit = CommitPoint(hint.index, hint.term, hint.crc, hint.end)
    return DumpPoint(
        cluster=identity.cluster_id,
        broker_group=identity.group,
        node=identity.node_id,
        incarnation=identity.incarnation,
        group_id=identity.group_id,
        former_group_ids=identity.former_group_ids,
        voters=tuple(sorted(identity.members)) or (identity.node_id,),
        segment_size=identity.segment_size,
        log_folder=folders.segments,
        segment_starts=tuple(starts),
        base=base,
        commit=commit,
        end_offset=last.end if last else base.first_offset,
        log_time_ms=last.timestamp if last else base.prev_timestamp,
        queues=tuple(_queues(data / "consumequeue")) if with_queues else None,
        queues_complete=False,
        state=_state(data, files, base.first_index),
    )


def _with_digests(point: DumpPoint, files: RealFileSystem) -> DumpPoint:
    """Return the point of a digest dump: digests up to the commit point, and the bytes of the rest."""
    made = digest_log(
        files, point.log_folder, point.segment_starts, incarnation=point.incarnation,
        segment_size=point.segment_size, begin=point.base.first_offset, before=point.base.before,
        end=point.commit.end,
    )  # fmt: skip
    return replace(point, queues=None, state=None, digests={each.start: each for each in made})


def _state(data: Path, files: RealFileSystem, first_index: int) -> StateSource | None:
    """Return the newest checkpoint that fits a log whose beginning was deleted, or None."""
    if first_index == 1 or (data / "checkpoint" / "rebuild").exists():
        return None
    store = CheckpointStore(files, data / "checkpoint", ConsumeQueueFiles(files, data / "consumequeue"))
    for index in reversed(store.indexes):
        with suppress(CheckpointError, StateTransferError, OSError):
            state = open_state(files, store, index, first_index)
            state.close()
            return StateSource(index, state.size, partial(_pieces, files, store, index, first_index))
    return None


def _pieces(files: RealFileSystem, store: CheckpointStore, index: int, first_index: int) -> Iterator[bytes]:
    state = open_state(files, store, index, first_index)
    try:
        yield from state.read()
    finally:
        state.close()


@dataclass(frozen=True, slots=True)
class _StoppedLog:
    """Segment files of a stopped node, read without an index."""

    folder: Path
    segment_size: int  # bytes
    starts: Sequence[int]  # physical offsets of the segments, ascending

    def last(self, index: int | None = None) -> EntryHeader | None:
        """Return the last intact entry of the log, or the intact one at `index` or nearest before it."""
        for start in reversed(self.starts):
            found = None
            for header in self._entries(start):
                if index is not None and header.index > index:
                    break
                found = header
            if found is not None:
                return found
        return None

    def _entries(self, start: int) -> Iterator[EntryHeader]:
        """Yield the intact entries of a segment (no fillers); skip damage."""
        data = memoryview((self.folder / f"{start:020d}").read_bytes())[: self.segment_size]
        raw, position = bytes(data), 0
        while position >= 0:
            try:
                header = decode_header(raw, position)
                verify_entry(raw, position, header)
                if header.physical_offset != start + position:
                    raise CorruptError("entry of another place", position)
            except LayoutError:  # this includes headers of a newer version: a dump copies, and does not judge
                position = _next_magic(raw, position + ALIGNMENT)
                continue
            if header.kind is not EntryKind.FILLER:
                yield header
            position += header.size
            if position >= len(raw):
                return


def _next_magic(raw: bytes, position: int) -> int:
    """Return the next aligned position with an entry's magic, or -1."""
    position = raw.find(_MAGIC, position)
    while position >= 0 and position % ALIGNMENT:
        position = raw.find(_MAGIC, position + 1)
    return position


def _queues(folder: Path) -> Iterator[QueueSource]:
    """Yield the consume queues that the node had written to files."""
    for queue in sorted(folder.glob("*@*/*")):
        topic, _, topic_id = queue.parent.name.rpartition("@")
        files = sorted((int(path.name), path) for path in queue.iterdir() if path.name.isdecimal())
        if not (files and topic_id.isdecimal() and queue.name.isdecimal()):
            continue
        begin = files[0][0] // UNIT_SIZE
        end = (files[-1][0] + files[-1][1].stat().st_size) // UNIT_SIZE
        yield QueueSource(topic, int(topic_id), int(queue.name), begin, end, _reader(files))


def _reader(files: Sequence[tuple[int, Path]]) -> Callable[[int, int], bytes]:
    """Return a function that reads units from a queue's files; bytes that no file has are zeros.

    `files`: (start in bytes, file), ascending.
    """

    def read(first: int, behind: int) -> bytes:
        lo, hi = first * UNIT_SIZE, behind * UNIT_SIZE
        out = bytearray(hi - lo)
        for start, path in files:
            end = start + path.stat().st_size
            if start < hi and lo < end:
                with path.open("rb") as file:
                    file.seek(max(lo, start) - start)
                    data = file.read(min(hi, end) - max(lo, start))
                at = max(lo, start) - lo
                out[at : at + len(data)] = data
        return bytes(out)

    return read

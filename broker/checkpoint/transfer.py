"""Transfer of a broker's state to a follower that is being reset (D8; ledgermq.raft.reset.state_transfer).

Format, little-endian:

    head      "LMQT" · u32 version · u64 size of the checkpoint · u32 count of leading blocks
    state     a checkpoint file, as it is (checkpoint/layout.py)
    leading   per queue whose begin is inside a block: u32 topic id · u32 queue id · u64 first unit · u32
    count ·
              u32 0, and the units of that block before the begin: its checksum covers them, but the log may
              not have them

The queues themselves are not transferred: the follower rebuilds them from the log (rebuild.py).
Owns: these bytes.   Must not: hold a whole state in memory while sending.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ledgermq.raft.disk.files import File, FileSystem
from ledgermq.raft.errors import StateTransferError
from ledgermq.raft.folder.reset_install import ResetPlan
from ledgermq.raft.types import LogIndex

from ..errors import CheckpointError, ConsumeQueueError
from ..replica import Replica
from ..state.consume_queue import BLOCK_UNITS, UNIT_DTYPE, UNIT_SIZE, ColdRead, UnwrittenRun
from .layout import Snapshot, decode_snapshot
from .schedule import Checkpointing
from .store import CheckpointStore

PIECE: Final = 256 << 10
_MAGIC: Final = b"LMQT"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIQI")
_LEADING: Final = struct.Struct("<IIQII")


@dataclass(frozen=True, slots=True)
class _Leading:
    """Units of a queue's first block before its begin."""

    key: tuple[int, int]  # topic id, queue id
    folder: str
    block: int  # number of the block in its queue
    count: int  # number of units before the begin


class OutgoingCheckpoint:
    """A state that is being sent. The open file stays readable when a newer checkpoint replaces it."""

    def __init__(
        self, index: int, log_start: int, file: File, leading: list[_Leading], store: CheckpointStore
    ) -> None:
        self.index = LogIndex(index)
        self.log_start = LogIndex(log_start)  # first entry that its queues need
        self._file = file
        self._file_size = file.size()
        self._leading = leading
        self._store = store
        units = sum(each.count for each in leading)
        self.size = _HEAD.size + self._file_size + len(leading) * _LEADING.size + units * UNIT_SIZE

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes; the disk is read in a thread. Raises: StateTransferError."""
        pieces = self.read()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    def read(self) -> Generator[bytes, None, None]:
        """Yield the bytes. Blocks. Raises: StateTransferError."""
        yield _HEAD.pack(_MAGIC, _VERSION, self._file_size, len(self._leading))
        for position in range(0, self._file_size, PIECE):
            yield self._file.pread(min(PIECE, self._file_size - position), position)
        for each in self._leading:
            yield self._load(each)

    def _load(self, each: _Leading) -> bytes:
        try:
            raw = self._store.files.load(ColdRead(each.key, each.folder, each.block))
        except ConsumeQueueError as error:
            raise StateTransferError(f"retention took a file that is needed ({error})") from None
        if len(raw) < each.count * UNIT_SIZE:
            raise StateTransferError(f"queue {each.key} has fewer units in its file than the state says")
        head = _LEADING.pack(*each.key, each.block * BLOCK_UNITS, each.count, 0)
        return head + raw[: each.count * UNIT_SIZE]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BrokerStateTransfer:
    """Implements `ledgermq.raft.reset.state_transfer.StateTransfer`."""

    def __init__(
        self, filesystem: FileSystem, store: CheckpointStore, replica: Replica, checkpointing: Checkpointing
    ) -> None:
        self._filesystem = filesystem
        self._store = store
        self._replica = replica
        self._checkpointing = checkpointing

    # --- leader ---------------------------------------------------------------------------------------------
    async def open(self, first_index: LogIndex) -> OutgoingCheckpoint:
        """Return a checkpoint of the current state. Raises: StateTransferError."""
        if not self._checkpointing.is_running:
            raise StateTransferError("this node is still starting")
        if self._replica.rebuild is not None:  # missing units read as zeros until it is done
            raise StateTransferError("this node makes its queues again")
        applied = self._replica.state.applied_index
        index = await self._checkpointing.write_now()
        if index < applied:
            raise StateTransferError("the checkpoint to send could not be written; its log says why")
        if self._store.rebuilding:  # the newest checkpoint does not cover the rebuilt units yet
            raise StateTransferError(
                "no checkpoint was written yet since this node has made its queues again"
            )
        try:
            return await asyncio.to_thread(open_state, self._filesystem, self._store, index, first_index)
        except (CheckpointError, OSError) as error:
            raise StateTransferError(f"the checkpoint to send cannot be read: {error}") from None

    # --- follower -------------------------------------------------------------------------------------------
    @property
    def needs_entries_to(self) -> LogIndex:
        """Index of the entry from which on the state is whole; 0: it is whole."""
        rebuild = self._replica.rebuild
        return LogIndex(rebuild.target if rebuild is not None else 0)

    @property
    def counts_on_log_to(self) -> LogIndex:
        """Index up to which the log must hold entries after a loss of queue files; 0 otherwise.

        After a reset, the log need not have them yet.
        """
        return LogIndex(self._store.counts_on_log_to)

    def install(self, staged: Path, plan: ResetPlan) -> None:
        """Replace checkpoints and queue files by the received state. Raises: CheckpointError, OSError."""
        install_state(self._filesystem, self._store, staged, plan.state_index, plan.base_index)


def open_state(
    filesystem: FileSystem, store: CheckpointStore, index: int, first_index: int
) -> OutgoingCheckpoint:
    """Return the checkpoint of an index for sending, with a log that begins at `first_index`. Blocks.

    Raises: CheckpointError, StateTransferError (the state needs entries before that), OSError.
    """
    path = store.path(index)
    file = filesystem.open(path, writable=False)
    try:
        snapshot = decode_snapshot(file.pread(file.size(), 0), str(path))
        log_start = snapshot.numbers[2]
        if log_start < first_index:
            raise StateTransferError(
                f"the state still counts on entry {log_start}, the log begins at {first_index}"
            )
        return OutgoingCheckpoint(index, log_start, file, _leading_blocks(snapshot), store)
    except BaseException:
        file.close()
        raise


def staged_snapshot(filesystem: FileSystem, staged: Path) -> Snapshot:
    """Return the state in a transferred file. Raises: CheckpointError, OSError."""
    file = filesystem.open(staged, writable=False)
    try:
        size, _ = _head(file, staged)
        return decode_snapshot(file.pread(size, _HEAD.size), str(staged))
    finally:
        file.close()


def _head(file: File, staged: Path) -> tuple[int, int]:
    """Return the size of the checkpoint and the count of leading blocks. Raises: CheckpointError."""
    raw = file.pread(_HEAD.size, 0)
    if len(raw) < _HEAD.size:
        raise CheckpointError(str(staged), "the state that came is cut short")
    magic, version, size, count = _HEAD.unpack(raw)
    if magic != _MAGIC or version > _VERSION:
        raise CheckpointError(
            str(staged), f"this is no state that this build can install (version {version})"
        )
    return size, count


def install_state(
    filesystem: FileSystem, store: CheckpointStore, staged: Path, index: int, base_index: int
) -> None:
    """Replace checkpoints and queue files by the state in a file. Idempotent.

    Raises: CheckpointError, OSError.
    `index`: last entry in the state. The log that belongs to it begins after entry `base_index`.
    """
    file = filesystem.open(staged, writable=False)
    try:
        size, count = _head(file, staged)
        store.install(
            index,
            base_index,
            _copied(file, _HEAD.size, size),
            lambda snapshot: _runs(file, str(staged), _HEAD.size + size, count, snapshot),
        )
    finally:
        file.close()


def _leading_blocks(snapshot: Snapshot) -> list[_Leading]:
    folders = {topic.topic_id: topic.folder for topic in snapshot.topics}
    return [
        _Leading((topic_id, queue_id), folders[topic_id], begin // BLOCK_UNITS, begin % BLOCK_UNITS)
        for topic_id, queue_id, begin, _ in sorted(snapshot.queues)
        if begin % BLOCK_UNITS
    ]


def _copied(file: File, start: int, size: int) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        for position in range(0, size, PIECE):
            yield file.pread(min(PIECE, size - position), start + position)

    return pieces


def _runs(file: File, staged: str, position: int, count: int, snapshot: Snapshot) -> Iterator[UnwrittenRun]:
    """Yield the leading units that follow a received checkpoint. Raises: CheckpointError."""
    folders = {topic.topic_id: topic.folder for topic in snapshot.topics}
    for _ in range(count):
        head = file.pread(_LEADING.size, position)
        topic_id, queue_id, first, units, _ = _LEADING.unpack(head.ljust(_LEADING.size, b"\0"))
        size, position = units * UNIT_SIZE, position + _LEADING.size
        folder = folders.get(topic_id)
        if folder is None or position + size > file.size():
            raise CheckpointError(staged, "the queue units that came with the state do not fit it")
        yield UnwrittenRun(
            (topic_id, queue_id), folder, first, np.frombuffer(file.pread(size, position), UNIT_DTYPE)
        )
        position += size

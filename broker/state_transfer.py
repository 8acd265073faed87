"""The state of a broker on its way to a follower that is being reset (D8; ledgermq.raft.state_transfer).

What travels, little-endian:

    head      "LMQT" · u32 version · u64 size of the checkpoint · u32 count of leading blocks
    state     a checkpoint file, as it is (checkpoint.py)
    leading   per queue whose begin is inside a block: u32 topic id · u32 queue id · u64 first unit · u32 count · u32 0,
              and the units of that block before the begin: its checksum covers them, the log need not hold them

The queues themselves do not travel: the follower makes them from the log (rebuild.py).
Owns: these bytes. Must not: hold a whole state in memory while it sends.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ledgermq.raft.errors import StateTransferError
from ledgermq.raft.files import File, FileSystem
from ledgermq.raft.reset_install import ResetPlan
from ledgermq.raft.types import LogIndex

from .checkpoint import Snapshot, decode_snapshot
from .checkpoint_store import CheckpointStore
from .checkpointing import Checkpointing
from .consume_queue import UNIT_DTYPE, UNIT_SIZE, ColdRead, UnwrittenRun
from .errors import CheckpointError, ConsumeQueueError
from .queue_sums import BLOCK_UNITS
from .replica import Replica

PIECE: Final = 256 << 10
_MAGIC: Final = b"LMQT"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIQI")
_LEADING: Final = struct.Struct("<IIQII")


@dataclass(frozen=True, slots=True)
class _Leading:
    """Units of a queue's first block before its begin."""

    key: tuple[int, int]
    folder: str
    block: int
    count: int


class OutgoingCheckpoint:
    """One state that is being sent; the open file stays readable when a newer checkpoint replaces it."""

    def __init__(self, index: int, file: File, leading: list[_Leading], store: CheckpointStore) -> None:
        self.index = LogIndex(index)
        self._file = file
        self._file_size = file.size()
        self._leading = leading
        self._store = store
        units = sum(each.count for each in leading)
        self.size = _HEAD.size + self._file_size + len(leading) * _LEADING.size + units * UNIT_SIZE

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the bytes. Raises: StateTransferError."""
        yield _HEAD.pack(_MAGIC, _VERSION, self._file_size, len(self._leading))
        for position in range(0, self._file_size, PIECE):
            size = min(PIECE, self._file_size - position)
            yield await asyncio.to_thread(self._file.pread, size, position)
        for each in self._leading:
            yield await asyncio.to_thread(self._load, each)

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
    """Implements `ledgermq.raft.state_transfer.StateTransfer`. Call `attach` when checkpoints can be written."""

    def __init__(self, filesystem: FileSystem, store: CheckpointStore, replica: Replica) -> None:
        self._filesystem = filesystem
        self._store = store
        self._replica = replica
        self._checkpointing: Checkpointing | None = None

    def attach(self, checkpointing: Checkpointing) -> None:
        """Give it what writes checkpoints."""
        self._checkpointing = checkpointing

    # --- leader ---------------------------------------------------------------------------------------------
    async def open(self, first_index: LogIndex) -> OutgoingCheckpoint:
        """Return a checkpoint of now. Raises: StateTransferError."""
        if self._checkpointing is None:
            raise StateTransferError("this node is still starting")
        applied = self._replica.state.applied_index
        index = await self._checkpointing.write_now()
        if index < applied:
            raise StateTransferError("the checkpoint to send could not be written; its log says why")
        try:
            return await asyncio.to_thread(self._open, index, first_index)
        except (CheckpointError, OSError) as error:
            raise StateTransferError(f"the checkpoint to send cannot be read: {error}") from None

    def _open(self, index: int, first_index: int) -> OutgoingCheckpoint:
        path = self._store.path(index)
        file = self._filesystem.open(path, writable=False)
        try:
            snapshot = decode_snapshot(file.pread(file.size(), 0), str(path))
            log_start = snapshot.numbers[2]
            if log_start < first_index:
                raise StateTransferError(
                    f"the state still counts on entry {log_start}, the log begins at {first_index}"
                )
            return OutgoingCheckpoint(index, file, _leading_blocks(snapshot), self._store)
        except BaseException:
            file.close()
            raise

    # --- follower -------------------------------------------------------------------------------------------
    @property
    def needs_entries_to(self) -> LogIndex:
        """The received state is whole from this entry on; 0 when nothing is missing."""
        rebuild = self._replica.rebuild
        return LogIndex(rebuild.target if rebuild is not None else 0)

    def install(self, staged: Path, plan: ResetPlan) -> None:
        """Replace checkpoints and queue files by what came. Raises: CheckpointError, OSError."""
        file = self._filesystem.open(staged, writable=False)
        try:
            magic, version, size, count = _HEAD.unpack(file.pread(_HEAD.size, 0))
            if magic != _MAGIC or version > _VERSION:
                raise CheckpointError(
                    str(staged), f"this is no state that this build can install (version {version})"
                )
            self._store.install(
                plan.state_index,
                plan.base_index,
                _copied(file, _HEAD.size, size),
                lambda snapshot: _runs(file, _HEAD.size + size, count, snapshot),
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


def _runs(file: File, position: int, count: int, snapshot: Snapshot) -> Iterator[UnwrittenRun]:
    folders = {topic.topic_id: topic.folder for topic in snapshot.topics}
    for _ in range(count):
        topic_id, queue_id, first, units, _ = _LEADING.unpack(file.pread(_LEADING.size, position))
        raw = file.pread(units * UNIT_SIZE, position + _LEADING.size)
        position += _LEADING.size + len(raw)
        yield UnwrittenRun((topic_id, queue_id), folders[topic_id], first, np.frombuffer(raw, UNIT_DTYPE))

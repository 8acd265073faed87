"""Checkpoint files of a node: `checkpoint/<20-digit index>`, the last two (D12).

    job = begin_checkpoint(state)                 # on the loop; cheap
    await to_thread(store.run, job)               # writes queues, syncs them, writes the checkpoint
    finish_checkpoint(state, job)                 # on the loop

A checkpoint has its name only when it is complete and durable. `kept_index` is the older of the two: retention never goes beyond
it, so a node can always start from either.
Owns: the names and their order.   Must not: know the contents (checkpoint.py).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.raft.files import FileSystem, is_full, write_zeros

from .checkpoint import Snapshot, decode_snapshot, encode_snapshot, restore_state, take_snapshot
from .consume_queue import UnwrittenRun
from .consume_queue_files import ConsumeQueueFiles
from .errors import CheckpointError, CheckpointVersionError
from .state import BrokerState

_log = logging.getLogger(__name__)
_KEPT: Final = 2
_PARTIAL: Final = ".part"
#: Given back when the disk is full: retention must be able to run, and it needs a new checkpoint first.
_RESERVE: Final = "reserve"
_RESERVE_SIZE: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointJob:
    """What a thread needs to write a checkpoint: nothing in it changes."""

    snapshot: Snapshot
    runs: list[UnwrittenRun]


def begin_checkpoint(state: BrokerState) -> CheckpointJob:
    """Take what must be written; both parts at the same index."""
    return CheckpointJob(take_snapshot(state), state.queues.unwritten())


def finish_checkpoint(state: BrokerState, job: CheckpointJob) -> None:
    """Tell the queues that their units are in files."""
    state.queues.mark_written(job.runs)


class CheckpointStore:
    """The folder `checkpoint/`. `run` belongs to the background worker that also writes the queue files."""

    def __init__(self, filesystem: FileSystem, folder: Path, files: ConsumeQueueFiles) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._files = files

    @property
    def files(self) -> ConsumeQueueFiles:
        """The queue files."""
        return self._files

    @property
    def kept_index(self) -> int:
        """Index of the oldest checkpoint kept; 0 when there is none. Log entries up to it may be deleted."""
        indexes = self._indexes()
        return indexes[0] if indexes else 0

    def _indexes(self) -> list[int]:
        return [int(name) for name in self._filesystem.list_directory(self._folder) if name.isdigit()]

    def _path(self, index: int) -> Path:
        return self._folder / f"{index:020d}"

    # --- writing --------------------------------------------------------------------------------------------
    def run(self, job: CheckpointJob) -> int:
        """Make queues and state durable; return the bytes of the checkpoint. Raises: OSError (nothing is lost).

        On a full disk the reserve and all checkpoints but the newest make room.
        """
        try:
            size = self._run(job)
        except OSError as error:
            if not is_full(error):
                raise
            self._make_room()
            size = self._run(job)
        self._keep_reserve()
        return size

    def _run(self, job: CheckpointJob) -> int:
        self._files.write(job.runs)
        self._files.sync()
        size = self._write(job.snapshot)
        for index in self._indexes()[:-_KEPT]:
            self._filesystem.unlink(self._path(index))
        return size

    def _make_room(self) -> None:
        _log.warning("disk full, older checkpoints make room path=%s", self._folder)
        dispensable = {f"{index:020d}" for index in self._indexes()[:-1]}
        for name in self._filesystem.list_directory(self._folder):
            if name in dispensable or name == _RESERVE or name.endswith(_PARTIAL):
                self._filesystem.unlink(self._folder / name)

    def _keep_reserve(self) -> None:
        """Take the reserve space unless it is taken. Without room there is none: that is no error."""
        path = self._folder / _RESERVE
        if self._filesystem.exists(path):
            return
        self._filesystem.make_directory(self._folder)
        file = self._filesystem.open(path, create=True)
        try:
            write_zeros(file, 0, _RESERVE_SIZE)
        except OSError as error:
            if not is_full(error):
                raise
            self._filesystem.unlink(path)
        finally:
            file.close()

    def _write(self, snapshot: Snapshot) -> int:
        """Write one file: under another name, synced, then renamed."""
        self._filesystem.make_directory(self._folder)
        path = self._path(snapshot.index)
        partial = path.with_name(path.name + _PARTIAL)
        if self._filesystem.exists(partial):
            self._filesystem.unlink(partial)
        file = self._filesystem.open(partial, create=True)
        try:
            position = 0
            for piece in encode_snapshot(snapshot):
                file.pwritev([piece], position)
                position += len(piece)
            file.fdatasync()
        finally:
            file.close()
        self._filesystem.rename(partial, path)
        self._filesystem.sync_directory(self._folder)
        self._filesystem.sync_directory(self._folder.parent)
        return position

    # --- start ----------------------------------------------------------------------------------------------
    def load(self) -> BrokerState:
        """Return the state to start with: the newest usable checkpoint, else an empty state; queue files attached.

        Replay the log from `applied_index` + 1. Raises: CheckpointVersionError, CheckpointError (none is usable),
        ConsumeQueueError.
        """
        state = self._load_newest()
        for name in self._filesystem.list_directory(self._folder):
            if name.endswith(_PARTIAL):
                self._filesystem.unlink(self._folder / name)
        for queue in state.queues:
            self._files.check(queue)
        self._files.remove_orphans({topic.folder for topic in state.topics})
        self._keep_reserve()
        state.queues.attach(self._files)
        return state

    def _load_newest(self) -> BrokerState:
        failure: CheckpointError | None = None
        for index in reversed(self._indexes()):
            path = self._path(index)
            try:
                return restore_state(decode_snapshot(self._read(path), str(path)))
            except CheckpointVersionError:
                raise
            except CheckpointError as error:
                failure = failure or error
                _log.warning("checkpoint skipped path=%s reason=%s", path, error.reason)
        if failure is not None:
            raise CheckpointError(
                failure.path,
                f"{failure.reason}, and no older checkpoint is usable. Move the folders `checkpoint` and "
                "`consumequeue` away and start again: both are rebuilt when the log still begins at its first entry; "
                "else use ledgermq broker --rejoin",
            )
        return BrokerState()

    def _read(self, path: Path) -> bytes:
        file = self._filesystem.open(path, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

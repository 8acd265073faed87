"""Checkpoint files of a node: `checkpoint/<20-digit index>`, the last two (D12).

    job = begin_checkpoint(state)                 # on the loop; cheap
    await to_thread(store.run, job)               # writes queues, syncs them, writes the checkpoint
    finish_checkpoint(state, job)                 # on the loop

After a reset (D8) the received checkpoint comes before its queue files: the record `rebuild` says so, and from which entry
on the log must be read again to make them. It goes with the first checkpoint that is written when they are whole.

A checkpoint has its name only when it is complete and durable. `kept_index` is the older of the two: retention never goes beyond
it, so a node can always start from either.
Owns: the names and their order.   Must not: know the contents (checkpoint.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.raft.checked_file import read_record, write_record
from ledgermq.raft.files import FileSystem, is_full, write_zeros

from .checkpoint import Snapshot, decode_snapshot, encode_snapshot, restore_state, take_snapshot
from .consume_queue import UNIT_SIZE, ColdRead, ConsumeQueue, UnwrittenRun
from .consume_queue_files import ConsumeQueueFiles
from .errors import CheckpointError, CheckpointVersionError
from .queue_sums import BLOCK_UNITS
from .rebuild import QueueRebuild
from .state import BrokerState

_log = logging.getLogger(__name__)
_KEPT: Final = 2
_PARTIAL: Final = ".part"
#: Given back when the disk is full: retention must be able to run, and it needs a new checkpoint first.
_RESERVE: Final = "reserve"
_RESERVE_SIZE: Final = 1 << 20
_REBUILD: Final = "rebuild"
_REBUILD_VERSION: Final = 1


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
        #: After `load`: the queues that must be made from the log before the state serves.
        self.rebuild: QueueRebuild | None = None
        #: True until a checkpoint counts on the rebuilt queue files. Nothing of the log may be deleted before.
        self.rebuilding = False

    @property
    def files(self) -> ConsumeQueueFiles:
        """The queue files."""
        return self._files

    @property
    def kept_index(self) -> int:
        """Index of the oldest checkpoint kept; 0 when there is none. Log entries up to it may be deleted."""
        if self.rebuilding:
            return 0
        indexes = self._indexes()
        return indexes[0] if indexes else 0

    def _indexes(self) -> list[int]:
        return [int(name) for name in self._filesystem.list_directory(self._folder) if name.isdigit()]

    def path(self, index: int) -> Path:
        """Return the file of the checkpoint at an index."""
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
        size = self._write(job.snapshot.index, encode_snapshot(job.snapshot))
        self._end_rebuild()
        for index in self._indexes()[:-_KEPT]:
            self._filesystem.unlink(self.path(index))
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

    def _write(self, index: int, pieces: Iterable[bytes]) -> int:
        """Write one file: under another name, synced, then renamed."""
        self._filesystem.make_directory(self._folder)
        path = self.path(index)
        partial = path.with_name(path.name + _PARTIAL)
        if self._filesystem.exists(partial):
            self._filesystem.unlink(partial)
        file = self._filesystem.open(partial, create=True)
        try:
            position = 0
            for piece in pieces:
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
        self._begin_rebuild(state)
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
            path = self.path(index)
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

    # --- reset ----------------------------------------------------------------------------------------------
    def install(
        self,
        index: int,
        base_index: int,
        pieces: Callable[[], Iterator[bytes]],
        leading: Callable[[Snapshot], Iterator[UnwrittenRun]],
    ) -> None:
        """Replace everything by a received checkpoint and the `leading` units of its queues, durably. Repeatable.

        The rest of the queues is made from the log behind entry `base_index`. Raises: CheckpointError, OSError.
        """
        for name in self._filesystem.list_directory(self._folder):
            if name != _RESERVE:
                self._filesystem.unlink(self._folder / name)
        self._files.remove_orphans(set())
        self._filesystem.make_directory(self._folder)
        fields = {"base_index": base_index, "state_index": index}
        write_record(self._filesystem, self._folder / _REBUILD, "rebuild", _REBUILD_VERSION, fields)
        self._write(index, pieces())
        path = self.path(index)
        self._files.write(leading(decode_snapshot(self._read(path), str(path))))
        self._files.sync()

    def _begin_rebuild(self, state: BrokerState) -> None:
        """See whether the queue files of the loaded state must be made first. Raises: CheckpointError."""
        path = self._folder / _REBUILD
        try:
            fields = read_record(self._filesystem, path, "rebuild", _REBUILD_VERSION)
            base_index, state_index = int(fields["base_index"]), int(fields["state_index"])
        except FileNotFoundError:
            return
        except NewerFormatError as error:
            raise CheckpointVersionError(str(path), error.found, error.supported) from None
        except (CorruptError, KeyError) as error:
            raise CheckpointError(
                str(path), f"{error}. Fetch everything again: ledgermq broker --rejoin"
            ) from None
        if state.applied_index < state_index:
            raise CheckpointError(
                str(self.path(state_index)),
                "the state that the leader sent is gone. Fetch it again: ledgermq broker --rejoin",
            )
        self.rebuilding = True
        if state.applied_index > state_index:
            self._end_rebuild()  # a checkpoint was written since, so the queue files are whole
            return
        rebuild = QueueRebuild(state, base_index, self._leading_units)
        self.rebuild = None if rebuild.is_whole else rebuild

    def _leading_units(self, queue: ConsumeQueue) -> bytes:
        """Return the units of a queue's first block before its begin: they came with the state."""
        block, count = divmod(queue.begin, BLOCK_UNITS)
        if not count:
            return b""
        return self._files.load(ColdRead(queue.key, queue.folder, block))[: count * UNIT_SIZE]

    def _end_rebuild(self) -> None:
        if self.rebuilding:
            self._filesystem.unlink(self._folder / _REBUILD)
            self._filesystem.sync_directory(self._folder)
            self.rebuilding = False

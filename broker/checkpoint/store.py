"""Store of a node's last two checkpoint files: `checkpoint/<20-digit index>` (D12).

    job = begin_checkpoint(state)                 # on the loop; cheap
    await to_thread(store.run, job)               # writes queues, syncs them, writes the checkpoint
    state.queues.mark_written(job.runs)           # on the loop

The record file `rebuild` marks incomplete queue files: after a reset (D8) the received checkpoint precedes
them, and at start some may be missing or cut short. They are rebuilt from the log (rebuild.py). The first
checkpoint written after that removes the record.

A checkpoint gets its name only once it is complete and durable. `kept_index` is the index of the older one:
retention never goes beyond it, so a node can start from either.
Owns: the names and their order.   Must not: know the contents (checkpoint/layout.py).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.raft.disk.checked_file import read_record, write_record
from ledgermq.raft.disk.files import FileSystem, is_full, write_zeros
from ledgermq.raft.log.identity import read_manifest
from ledgermq.raft.log.segment_keeper import LogFolders

from ..errors import CheckpointError, CheckpointVersionError, ConsumeQueueError
from ..reading.consume_queue_files import ConsumeQueueFiles
from ..state.consume_queue import BLOCK_UNITS, UNIT_SIZE, ColdRead, ConsumeQueue, QueueKey, UnwrittenRun
from ..state.machine import BrokerState
from ..state.rebuild import QueueRebuild
from .layout import Snapshot, decode_snapshot, encode_snapshot, restore_state, take_snapshot

_log = logging.getLogger(__name__)
_KEPT: Final = 2
_PARTIAL: Final = ".part"
#: Placeholder file, deleted when the disk is full: retention needs a new checkpoint before it can free space.
_RESERVE: Final = "reserve"
_RESERVE_SIZE: Final = 1 << 20
_REBUILD: Final = "rebuild"
#: Version of the record for lost files. A former build would expect those of a reset, with leading units.
_REBUILD_VERSION: Final = 2
_RESET_VERSION: Final = 1
#: Suffix of an unusable checkpoint, added when the node starts without it.
_DAMAGED: Final = ".damaged"


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointJob:
    """Immutable input of a thread that writes a checkpoint."""

    snapshot: Snapshot
    runs: list[UnwrittenRun]  # units up to the queue ends of the snapshot that are not in files


def begin_checkpoint(state: BrokerState) -> CheckpointJob:
    """Return the data to write. Both parts are of the same index."""
    return CheckpointJob(take_snapshot(state), state.queues.unwritten())


class CheckpointStore:
    """Folder `checkpoint/`. Only the background worker that also writes the queue files calls `run`."""

    def __init__(self, filesystem: FileSystem, folder: Path, files: ConsumeQueueFiles) -> None:
        self.filesystem = filesystem
        self._folder = folder
        self.files = files
        #: After `load`: rebuild that must be whole before the state may serve; None: the queue files are
        #: whole.
        self.rebuild: QueueRebuild | None = None
        #: After a loss of queue files: the log must hold the entries up to this index. 0 otherwise, even
        #: after a reset.
        self.counts_on_log_to = 0
        #: True until a checkpoint covers the rebuilt queue files. The log must not be deleted before.
        self.rebuilding = False

    @property
    def kept_index(self) -> int:
        """Index of the oldest kept checkpoint; 0: none, or a rebuild. Log entries up to it may be deleted."""
        if self.rebuilding:
            return 0
        indexes = self.indexes
        return indexes[0] if indexes else 0

    @property
    def indexes(self) -> list[int]:
        """Indexes of the kept checkpoints, ascending."""
        return [int(name) for name in self.filesystem.list_directory(self._folder) if name.isdecimal()]

    def path(self, index: int) -> Path:
        """Return the path of the checkpoint at an index."""
        return self._folder / f"{index:020d}"

    # --- writing --------------------------------------------------------------------------------------------
    def run(self, job: CheckpointJob) -> int:
        """Make queues and state durable; return the size of the checkpoint in bytes.

        On a full disk, the reserve and all checkpoints but the newest are deleted to make room.
        Raises: OSError (nothing is lost), StorageFailedError.
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
        self.files.write(job.runs)
        if self.rebuilding and self.rebuild is not None:
            self.files.write(self.rebuild.bridges)
        self.files.sync()
        size = self._write(job.snapshot.index, encode_snapshot(job.snapshot))
        self._end_rebuild()
        for index in self.indexes[:-_KEPT]:
            self.filesystem.unlink(self.path(index))
        return size

    def _make_room(self) -> None:
        _log.warning("disk full, older checkpoints make room path=%s", self._folder)
        dispensable = {f"{index:020d}" for index in self.indexes[:-1]}
        for name in self.filesystem.list_directory(self._folder):
            if name in dispensable or name == _RESERVE or name.endswith(_PARTIAL):
                self.filesystem.unlink(self._folder / name)

    def _keep_reserve(self) -> None:
        """Create the reserve file unless it exists. A disk without room for it is not an error."""
        path = self._folder / _RESERVE
        if self.filesystem.exists(path):
            return
        self.filesystem.make_directory(self._folder)
        file = self.filesystem.open(path, create=True)
        try:
            write_zeros(file, 0, _RESERVE_SIZE)
        except OSError as error:
            if not is_full(error):
                raise
            self.filesystem.unlink(path)
        finally:
            file.close()

    def _write(self, index: int, pieces: Iterable[bytes]) -> int:
        """Write one file under a temporary name, sync it, then rename it; return its size."""
        self.filesystem.make_directory(self._folder)
        path = self.path(index)
        partial = path.with_name(path.name + _PARTIAL)
        if self.filesystem.exists(partial):
            self.filesystem.unlink(partial)
        file = self.filesystem.open(partial, create=True)
        try:
            position = 0
            for piece in pieces:
                file.pwritev([piece], position)
                position += len(piece)
            file.fdatasync()
        finally:
            file.close()
        self.filesystem.rename(partial, path)
        self.filesystem.sync_directory(self._folder)
        self.filesystem.sync_directory(self._folder.parent)
        return position

    # --- start ----------------------------------------------------------------------------------------------
    def load(self) -> BrokerState:
        """Return the newest usable state, or an empty one, with its queue files attached.

        Replay the log from `applied_index` + 1, or from `rebuild.applied_index` + 1.
        Raises: CheckpointVersionError, CheckpointError (no checkpoint is usable, and the log does not go back
        to its first entry), OSError.
        """
        first_index = self._log_first_index()
        state = self._load_newest(first_index)
        self._begin_rebuild(state, first_index)
        for name in self.filesystem.list_directory(self._folder):
            if name.endswith(_PARTIAL):
                self.filesystem.unlink(self._folder / name)
        self.files.remove_orphans({topic.folder for topic in state.topics})
        self._keep_reserve()
        state.queues.attach(self.files)
        return state

    def _log_first_index(self) -> int:
        """Return the index of the first entry that retention left in this node's log."""
        path = LogFolders(self._folder.parent).manifest
        if not self.filesystem.exists(path):  # no log yet, so nothing was deleted
            return 1
        return read_manifest(self.filesystem, path, str(self._folder.parent)).first_index

    def _load_newest(self, first_index: int) -> BrokerState:
        failures: list[CheckpointError] = []
        state: BrokerState | None = None
        for index in reversed(self.indexes):
            path = self.path(index)
            try:
                state = restore_state(decode_snapshot(self._read(path), str(path)))
                break
            except CheckpointVersionError:
                raise
            except CheckpointError as error:
                failures.append(error)
        if state is None and first_index > 1:
            raise _lost(failures[0] if failures else None, self._folder, first_index)
        for failure in failures:
            _log.warning("checkpoint set aside path=%s reason=%s", failure.path, failure.reason)
            self.filesystem.rename(Path(failure.path), Path(failure.path + _DAMAGED))
        return state if state is not None else BrokerState()

    def _read(self, path: Path) -> bytes:
        file = self.filesystem.open(path, writable=False)
        try:
            return file.pread(file.size(), 0)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CheckpointError(str(path), "the disk cannot read it") from None
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
        """Durably replace all files by a received checkpoint and the `leading` units of its queues.

        Idempotent. The other units are rebuilt from the log after entry `base_index`.
        Raises: CheckpointError, OSError.
        """
        for name in self.filesystem.list_directory(self._folder):
            if name != _RESERVE:
                self.filesystem.unlink(self._folder / name)
        self.files.remove_orphans(set())
        self.filesystem.make_directory(self._folder)
        fields = {"base_index": base_index, "state_index": index}
        write_record(self.filesystem, self._folder / _REBUILD, "rebuild", _RESET_VERSION, fields)
        self._write(index, pieces())
        path = self.path(index)
        self.files.write(leading(decode_snapshot(self._read(path), str(path))))
        self.files.sync()

    # --- incomplete queue files -----------------------------------------------------------------------------
    def _begin_rebuild(self, state: BrokerState, first_index: int) -> None:
        """Set `rebuild` if queue files of the loaded state are incomplete.

        Raises: CheckpointVersionError, CheckpointError, OSError.
        """
        noted = self._rebuild_record()
        if noted is not None:
            self.rebuilding = True
            state_index, base_index = noted
            if base_index is not None and state.applied_index < state_index:
                raise CheckpointError(
                    str(self.path(state_index)),
                    "the state that the leader sent is gone. Fetch it again: ledgermq broker --rejoin",
                )
            if state.applied_index <= state_index:
                if base_index is None:
                    self._rebuild_lost(state, first_index)
                else:
                    self.rebuild = self._rebuild_received(state, base_index)
                return
            self._end_rebuild()  # a later checkpoint exists, so the queue files were whole
        damage = {queue.key: error for queue in state.queues if (error := self.files.damage(queue))}
        if damage:
            first = next(iter(damage.values()))
            _log.warning(
                "queue files missing or cut short, making them again from the log"
                " queues=%d first_path=%s reason=%r",
                len(damage), first.path, first.reason,
            )  # fmt: skip
            fields = {"state_index": state.applied_index}
            write_record(self.filesystem, self._folder / _REBUILD, "rebuild", _REBUILD_VERSION, fields)
            self.rebuilding = True
            self._rebuild_lost(state, first_index, damage.keys())

    def _rebuild_lost(
        self, state: BrokerState, first_index: int, keys: Collection[QueueKey] | None = None
    ) -> None:
        self.counts_on_log_to = state.applied_index
        self.rebuild = QueueRebuild(state, first_index - 1, None, keys)

    def _rebuild_record(self) -> tuple[int, int | None] | None:
        """Return (index of the state, base index after a reset or None) of a pending rebuild; None: none."""
        path = self._folder / _REBUILD
        try:
            fields = read_record(self.filesystem, path, "rebuild", _REBUILD_VERSION)
            base_index = fields.get("base_index")
            return int(fields["state_index"]), int(base_index) if base_index is not None else None
        except FileNotFoundError:
            return None
        except NewerFormatError as error:
            raise CheckpointVersionError(str(path), error.found, error.supported) from None
        except (CorruptError, KeyError) as error:
            raise CheckpointError(
                str(path), f"{error}. Fetch everything again: ledgermq broker --rejoin"
            ) from None

    def _rebuild_received(self, state: BrokerState, base_index: int) -> QueueRebuild:
        try:
            return QueueRebuild(state, base_index, self._leading_units)
        except ConsumeQueueError as error:
            _log.warning("units of a received state are lost path=%s reason=%r", error.path, error.reason)
            return QueueRebuild(state, base_index, None)

    def _leading_units(self, queue: ConsumeQueue) -> bytes:
        """Return the received units of a queue's first block before its begin. Raises: ConsumeQueueError."""
        block, count = divmod(queue.begin, BLOCK_UNITS)
        if not count:
            return b""
        raw = self.files.load(ColdRead(queue.key, queue.folder, block))[: count * UNIT_SIZE]
        if len(raw) < count * UNIT_SIZE:
            raise self.files.damaged(queue.folder, queue.key[1], block * BLOCK_UNITS, "it is cut short")
        return raw

    def _end_rebuild(self) -> None:
        if self.rebuilding:
            self.filesystem.unlink(self._folder / _REBUILD)
            self.filesystem.sync_directory(self._folder)
            self.rebuilding = False


def _lost(failure: CheckpointError | None, folder: Path, first_index: int) -> CheckpointError:
    """Return the error for a node without a usable checkpoint whose log does not reach back to entry 1."""
    path, reason = str(folder), "there is no checkpoint"
    if failure is not None:
        path, reason = failure.path, f"{failure.reason}, and no other checkpoint is usable"
    return CheckpointError(
        path,
        f"{reason}. The log begins at entry {first_index}, so topics, offsets and leases cannot be made again"
        " from it; nothing was changed. Put the folder `checkpoint` back if it was moved; else let the other"
        " nodes send everything: ledgermq broker --rejoin. A broker group of one node has only its dumps and"
        f" backups; its messages can still be read: ledgermq dump --data {folder.parent} DIR",
    )

"""Storage of one node: opens a data folder and assembles identity, hard state, CommitLog and flusher.

Owns: the folder's lock, the order of opening and closing.   Must not: elect, replicate, apply.
Files: identity, manifest, hardstate, ballast, lock, commitlog/, entryindex/. All I/O goes through the given
FileSystem, so a test can lose whatever was not synced.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..core.reign import Claim, Reign
from ..damage import Before, RepairNote
from ..disk.files import FileSystem, Lock, LockedError, is_full
from ..errors import DamagedFolderError, LockedFolderError, NewerFolderError, StorageError
from ..log.commit_log import CommitLog
from ..log.entry_index import write_index
from ..log.flusher import DurableReports, Flusher, FlushMode, FlushStatistics, SteppedFlusher
from ..log.hard_state import NO_BOOT_ID, DurableState, HardStateFile
from ..log.identity import (
    Identity,
    Manifest,
    check_identity,
    damaged_folder,
    is_new,
    keep_records,
    read_identity,
    read_manifest,
    write_identity,
    write_manifest,
)
from ..log.open_files import LogFiles
from ..log.repair_note import read_note_of, write_note
from ..log.rewrite import renew_identity
from ..log.segment import create_segment, segment_start
from ..log.segment_keeper import LogFolders, SegmentKeeper, make_ballast
from ..log.writer import LogWriter, PersistOp, WritePosition
from ..node_status import StartStep
from ..types import HardState, LogIndex, NodeId, Term
from .group_recovery import belongs_together, finish_recovery
from .recovery import LogRecovery, RecoveredLog
from .reset_install import InstallState, settle_reset

_log = logging.getLogger(__name__)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Machine:
    """Facts about the machine, apart from its files. A simulator has its own."""

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        try:
            return _BOOT_ID.read_text().strip()
        except FileNotFoundError:
            return NO_BOOT_ID

    def random_bits(self, count: int) -> int:
        """Return an unpredictable random number."""
        return secrets.randbits(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Settings of one data folder. Sizes are in bytes."""

    data_dir: Path
    cluster_id: str
    group: str
    node_id: NodeId
    segment_size: int
    flush: str = "sync"  # sync | async_timed | async_notify (D7)
    flush_interval_ms: int = 500
    flush_bytes: int = 8 << 20
    cache_bytes: int = 24 << 20
    direct_write_bytes: int = 128 << 10  # turns of at least this size bypass the page cache; 0: none do
    read_threads: int = 4  # 0: cold reads block the calling thread (simulators)
    # async modes: a reboot without a clean stop may have lost acknowledged entries (D7)
    learner_after_reboot: bool = False
    reign: Reign | None = None  # reign of a folder created now; None: a majority decides
    machine: Machine = field(default_factory=Machine)
    step: StartStep = field(default_factory=StartStep, compare=False)  # receives the progress of the opening


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Findings of opening a folder."""

    clean_stop: bool  # the last stop was clean, so the log was not scanned
    # new boot id without a clean-stop mark; in async mode the node catches up before it votes
    rebooted_unclean: bool
    scanned_bytes: int
    truncated_bytes: int  # bytes of a torn tail
    floor_index: LogIndex  # highest entry that the last run knew to be durable
    floor_term: Term


class RaftStorage:
    """Open data folder of one node. Holds the folder's lock until `close`."""

    def __init__(
        self,
        config: StorageConfig,
        files: FileSystem,
        lock: Lock,
        identity: Identity,
        hard: HardStateFile,
        base: Manifest,
        recovered: RecoveredLog,
        report: RecoveryReport,
    ) -> None:
        self._config = config
        self._files = files
        self._lock = lock
        self.identity = identity
        self.recovered = report
        folders = self._folders = LogFolders(config.data_dir)
        self._keeper = SegmentKeeper(files, folders, config.segment_size, recovered.existing)
        end = recovered.end
        end_offset = recovered.segments[-1].end_offset if recovered.segments else base.first_offset
        position = WritePosition(end_offset, end.index, end.term)
        self._writer = LogWriter(
            self._keeper, hard, position, recovered.turn, config.segment_size, config.direct_write_bytes
        )
        state = hard.state.hard
        self.hard_state = replace(state, commit_hint=min(state.commit_hint, end.index))
        self._read_files = LogFiles(files, folders, config.read_threads)
        self.log = CommitLog(
            config.node_id,
            config.segment_size,
            base,
            recovered.segments,
            config.cache_bytes,
            self._read_files,
            folders,
            keeper=self._keeper,
            submit=self._submit,
        )
        self._flusher: Flusher | SteppedFlusher | None = None
        self._unsaved = recovered.unsaved

    @property
    def incarnation(self) -> int:
        return self.identity.incarnation

    def start(
        self,
        post: Callable[[Callable[[], None]], object],
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        on_disk_full: Callable[[bool], None],
    ) -> DurableReports:
        """Start the threads. `post` is `loop.call_soon_threadsafe`; every callback goes through it.

        `on_failed` is terminal (P15). `on_disk_full(True)` means no room for another segment,
        `on_disk_full(False)` that there is room again.
        """
        self._keeper.start(post, on_disk_full, on_failed)
        for segment in self._unsaved:
            self.log.save_index(segment)
        reports = DurableReports(post, self._told(on_durable))
        flusher = Flusher(
            self._writer,
            FlushMode(self._config.flush),
            interval_seconds=self._config.flush_interval_ms / 1000,
            max_unsynced_bytes=self._config.flush_bytes,
            on_done=reports.report,
            on_failed=lambda error: post(lambda: on_failed(error)),
            path=self._config.data_dir,
            learner_after_failure=self._config.learner_after_reboot,
        )
        self._flusher = flusher
        flusher.start()
        return reports

    def start_stepped(self, *, on_durable: Callable[[int], None]) -> SteppedFlusher:
        """Start without threads (simulators).

        The caller runs each turn, and background work with `run_background`.
        """
        done = self._told(on_durable)
        self._flusher = flusher = SteppedFlusher(self._writer, FlushMode(self._config.flush), done)
        for segment in self._unsaved:
            self.log.save_index(segment)
        return flusher

    def _told(self, on_durable: Callable[[int], None]) -> Callable[[int], None]:
        def done(seq: int) -> None:
            self.log.note_written(seq)
            on_durable(seq)

        return done

    def note_failure(self) -> None:
        """Do what the flusher's threads do after an error (only after `start_stepped`). Raises: OSError."""
        if self._config.learner_after_reboot:
            self._writer.give_up_vote()

    def run_background(self) -> None:
        """Run queued background work on this thread (only after `start_stepped`). Raises: OSError."""
        self._keeper.run_pending()

    @property
    def has_background_work(self) -> bool:
        """Return whether `run_background` would do anything."""
        return self._keeper.has_work

    def has_segment(self, offset: int) -> bool:
        """Return whether the segment file for a physical offset exists."""
        return self._keeper.has(segment_start(offset, self._config.segment_size))

    def learn_members(self, members: dict[NodeId, int]) -> None:
        """Store the incarnations of the members durably. Blocking; call it in a thread."""
        identity = self.identity
        for node, known in identity.members.items():
            if node != identity.node_id and members.get(node, known) != known:
                identity = identity.with_former(node, known)
        identity = replace(identity, members={**identity.members, **members})
        if identity != self.identity:
            self._store(identity)

    def note_commit(self, index: LogIndex) -> None:
        """Note that entries up to `index` are committed: a hint that is stored with the next floor (P13)."""
        self._writer.commit_index = index

    def learn_group_id(self, group_id: int) -> None:
        """Store the broker group id durably.

        It never changes afterwards. Blocking; call it in a thread. Raises: OSError.
        """
        assert self.identity.group_id in (0, group_id)
        self._store(replace(self.identity, group_id=group_id))

    def learn_successor(self, reign: Reign) -> None:
        """Store durably that the next opening moves this folder aside.

        Blocking; call it in a thread. Raises: OSError.
        """
        self._store(replace(self.identity, successor=reign))

    def learn_claim(self, claim: Claim) -> None:
        """Store durably which generation another node is about to begin.

        It replaces that node's earlier claim, which never began. Blocking; call it in a thread. Raises:
        OSError.
        """
        others = [known for known in self.identity.claims if known.reign.master != claim.reign.master]
        self._store(replace(self.identity, claims=(*others, claim)))

    def _store(self, identity: Identity) -> None:
        write_identity(self._files, self._folders.identity, identity)
        self.identity = identity

    def statistics(self) -> FlushStatistics:
        """Return fsync latency (p50, p99 in ms), flushed index and more. Call `start` first."""
        assert self._flusher is not None
        return self._flusher.statistics(disk_full=self._keeper.full)

    def close(self, *, clean: bool = True) -> None:
        """Flush what is queued, mark a clean stop, stop the threads and unlock.

        Blocking; call it in a thread.

        Nothing may be staged afterwards. With `clean=False`, or after a failure, the next start scans the
        log.
        """
        self._keeper.stop_waiting()
        flushed = self._flusher.close() if self._flusher is not None else True
        self._keeper.stop()
        if clean and flushed and self.log.last_index == self._writer.flushed.index:
            self._mark_clean_stop()
        self._writer.close()
        self._read_files.close()
        self._lock.release()

    def _submit(self, op: PersistOp) -> None:
        assert self._flusher is not None, "start() comes first"
        self._flusher.submit(op)

    def _mark_clean_stop(self) -> None:
        try:
            segment = self.log.open_segment()
            if segment is not None:
                write_index(self._files, self._folders.indexes, segment)
            self._writer.store_floor(clean_stop=True)
        except OSError as error:  # the next start scans the log: nothing is lost
            _log.warning("clean stop not marked path=%s error=%s", self._folders.hard_state, error)


def is_initialized(data_dir: Path, files: FileSystem, node: str) -> bool:
    """Return whether the folder holds a node's data. `node` is used in error texts.

    Raises: DamagedFolderError (files, but no identity).
    """
    folders = LogFolders(data_dir)
    if files.exists(folders.identity):
        return read_identity(files, folders.identity, node).complete
    for path in (folders.hard_state, folders.manifest):
        if files.exists(path):
            raise damaged_folder(node, folders.identity, "is missing")
    if files.list_directory(folders.segments):
        raise damaged_folder(node, folders.identity, "is missing")
    return False


def create_data_folder(
    config: StorageConfig,
    files: FileSystem,
    *,
    is_voter: bool = True,
    hard_state: HardState | None = None,
    mark: int | None = None,
) -> None:
    """Turn an empty folder into a node's data folder: identity with a new incarnation, hard state, first
    segment.

    After a crash half way the folder is created again. `hard_state` carries an older promise over. `mark`
    says what the folder is (rejoin). Raises: DataFolderError subclasses, OSError.
    """
    files.make_directory(config.data_dir)
    files.sync_directory(config.data_dir.parent)
    lock = lock_folder(config.node_id, config.data_dir, files)
    try:
        fill_data_folder(config, files, is_voter=is_voter, hard_state=hard_state, mark=mark)
    finally:
        lock.release()


def fill_data_folder(
    config: StorageConfig,
    files: FileSystem,
    *,
    is_voter: bool,
    hard_state: HardState | None = None,
    mark: int | None = None,
    former: dict[NodeId, tuple[int, ...]] | None = None,
) -> None:
    """Do what `create_data_folder` does in an existing folder whose lock the caller holds.

    Raises: the same.
    """
    folders = LogFolders(config.data_dir)
    assert not is_initialized(config.data_dir, files, config.node_id)
    for folder in (folders.segments, folders.indexes):
        files.make_directory(folder)
    incarnation = config.machine.random_bits(63) | 1
    identity = Identity(
        cluster_id=config.cluster_id,
        group=config.group,
        node_id=config.node_id,
        incarnation=incarnation,
        segment_size=config.segment_size,
        members={config.node_id: incarnation if mark is None else mark},
        complete=False,
        reign=config.reign,
        former=former or {},
    )
    # Write the identity first, marked incomplete: a folder without one was never ours, and this can be
    # repeated.
    write_identity(files, folders.identity, identity)
    for name in files.list_directory(folders.segments):
        files.unlink(folders.segments / name)
    create_segment(files, folders.segments, 0, config.segment_size)
    write_manifest(files, folders.manifest, Manifest())
    hard = replace(hard_state or HardState(), commit_hint=LogIndex(0), is_voter=is_voter)
    state = DurableState(hard=hard, incarnation=incarnation)
    HardStateFile.create(files, folders.hard_state, state).close()
    make_ballast(files, folders.ballast)
    files.sync_directory(config.data_dir)
    write_identity(files, folders.identity, replace(identity, complete=True))


def open_storage(
    config: StorageConfig, files: FileSystem, install_state: InstallState | None = None
) -> RaftStorage:
    """Lock, check and recover a data folder. Finishes a decided reset. Blocking: it may scan gigabytes.

    Raises: DataFolderError subclasses, DamagedLogError. In both cases nothing was changed but the lock file.
    From a reset also: DiskFullError, and what `install_state` raises; the next opening repeats it.
    """
    folders = LogFolders(config.data_dir)
    identity = read_own_identity(config, files, folders)
    lock = lock_folder(config.node_id, config.data_dir, files)
    hard: HardStateFile | None = None
    try:
        # If a person deleted them: the indexes are rebuilt, and the log is judged like one with missing
        # segments.
        for folder in (folders.indexes, folders.segments):
            if not files.exists(folder):
                files.make_directory(folder)
        # A killed process may leave names that its successor sees although they are not on disk yet (P17).
        for folder in (config.data_dir, folders.segments):
            files.sync_directory(folder)
        hard = _open_hard_state(config, files, folders, identity)
        identity = finish_recovery(files, folders.identity, identity, hard)
        settle_reset(files, folders, config.node_id, config.segment_size, hard, install_state)
        base = read_manifest(files, folders.manifest, config.node_id)
        state = hard.state
        recovery = LogRecovery(
            config.node_id,
            files,
            folders,
            config.segment_size,
            base,
            state,
            note=read_note_of(config.node_id, files, config.data_dir),
            every_turn_synced=config.flush == "sync",
            step=config.step,
        )
        recovered = recovery.run()
        report = RecoveryReport(
            clean_stop=state.clean_stop,
            rebooted_unclean=not state.clean_stop
            and state.boot_id not in (config.machine.boot_id(), NO_BOOT_ID),
            scanned_bytes=recovered.scanned_bytes,
            truncated_bytes=recovered.truncated_bytes,
            floor_index=state.floor_index,
            floor_term=state.floor_term,
        )
        identity = _begin_run(config, files, identity, hard, recovered.end, report)
        _keep_copies(files, folders, identity, base)
        return RaftStorage(config, files, lock, identity, hard, base, recovered, report)
    except BaseException:
        if hard is not None:
            hard.close()
        lock.release()
        raise


def _begin_run(
    config: StorageConfig,
    files: FileSystem,
    identity: Identity,
    hard: HardStateFile,
    end: Before,
    report: RecoveryReport,
) -> Identity:
    """Store the end of the log as the floor, and that this boot uses the folder. Returns the identity.

    A reboot may have lost acknowledged entries (D7). The node then comes back as a learner under a new
    incarnation: acknowledgements and votes of the old one that are still in flight must not count. A new
    member has promised nothing and stays one: as learners, new members would wait for a leader for
    ever.
    """
    state = hard.state
    floor = replace(state, floor_index=end.index, floor_term=end.term)
    lost = config.learner_after_reboot and report.rebooted_unclean
    if lost and not is_new(identity, state.hard, end.index):
        floor = replace(
            floor, hard=replace(state.hard, is_voter=False), incarnation=config.machine.random_bits(63) | 1
        )
        write_note(files, config.data_dir, RepairNote(0, 0, open_ended=False, rejoin_as=floor.incarnation))
    hard.write(replace(floor, boot_id=config.machine.boot_id(), clean_stop=False, cut_turn=0, cut_offset=0))
    if floor.incarnation == identity.incarnation:
        return identity
    return renew_identity(files, LogFolders(config.data_dir), identity, floor.incarnation)


def _keep_copies(files: FileSystem, folders: LogFolders, identity: Identity, base: Manifest) -> None:
    """Store identity and manifest twice in their files. On a full disk they stay unchanged."""
    try:
        keep_records(files, (folders.identity, folders.manifest), identity, base)
    except OSError as error:
        if not is_full(error):
            raise
        _log.warning("disk full, a second copy is written at the next start path=%s", folders.data)


def lock_folder(node_id: str, data_dir: Path, files: FileSystem) -> Lock:
    """Lock a data folder. Raises: LockedFolderError."""
    path = LogFolders(data_dir).lock
    try:
        return files.lock(path)
    except LockedError as error:
        raise LockedFolderError(
            f"{node_id} will not start: its data folder {data_dir} is {error.strerror}. Stop that"
            f" process, or point --data elsewhere; nothing was changed."
        ) from None
    except (PermissionError, IsADirectoryError) as error:
        raise DamagedFolderError(
            f"{node_id} will not start: {path} cannot be locked ({error.strerror}). It must be a file that "
            f"this user may write, and holds nothing that is needed: remove it (rm -r {path}) and start "
            "again; nothing was changed.",
            found=f"{path} cannot be locked ({error.strerror})",
        ) from None


def read_own_identity(config: StorageConfig, files: FileSystem, folders: LogFolders) -> Identity:
    """Read the folder's identity. Raises: DamagedFolderError, NewerFolderError, ForeignFolderError."""
    identity = read_identity(files, folders.identity, config.node_id)
    check_identity(
        identity,
        cluster_id=config.cluster_id,
        broker_group=config.group,
        node_id=config.node_id,
        segment_size=config.segment_size,
        folder=config.data_dir,
    )
    if not identity.complete:
        raise damaged_folder(config.node_id, folders.identity, "was never finished")
    return identity


def _open_hard_state(
    config: StorageConfig, files: FileSystem, folders: LogFolders, identity: Identity
) -> HardStateFile:
    path = folders.hard_state
    try:
        hard = HardStateFile.open(files, path)
    except FileNotFoundError:
        raise damaged_folder(config.node_id, path, "is missing") from None
    except CorruptError as error:
        raise damaged_folder(config.node_id, path, f"is damaged ({error.reason})") from None
    except NewerFormatError as error:
        raise NewerFolderError(config.node_id, path, error) from None
    if not belongs_together(identity, hard.state):
        hard.close()
        raise damaged_folder(
            config.node_id, path, "comes from another incarnation of this node (a mixed backup?)"
        )
    return hard

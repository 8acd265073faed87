"""Opens the data folder of a node at its start: makes a new one, or moves a lost one aside (blocking).

Owns: the decision between the three, and the check that log and state belong together. Must not: make a folder that
could be taken for a voter's: a new one starts without the right to vote (bootstrap.py, P19).
"""

from __future__ import annotations

import logging

from .commit_log import CommitLog
from .config import RaftConfig
from .errors import DamagedFolderError, DamagedLogError, DataFolderError, OldHardStateError
from .files import FileSystem
from .hard_state import check_not_older
from .identity import REJOINED_MARK, is_new
from .log_view import LogView
from .reset_install import InstallState
from .segment_keeper import LogFolders
from .storage import RaftStorage, StorageConfig, create_data_folder, is_initialized, open_storage, rejoin
from .types import LogIndex

logger = logging.getLogger(__name__)


def open_node_storage(
    config: RaftConfig,
    files: FileSystem,
    install_state: InstallState | None = None,
    settings: StorageConfig | None = None,
) -> RaftStorage:
    """Return the open data folder; `settings` when they are not those of `storage_config` (simulators).

    Raises: DataFolderError subclasses, DamagedLogError, and as `open_storage`.
    """
    wanted = settings or storage_config(config)
    if config.rejoin:
        if not config.peers:
            raise DataFolderError(
                f"{config.node_id} cannot rejoin: it is alone in group {config.group}, so nobody has its data. Start it"
                " without --rejoin; nothing was changed."
            )
        return _open_for_rejoin(wanted, files, install_state)
    if not is_initialized(wanted.data_dir, files, wanted.node_id):
        create_data_folder(wanted, files, is_voter=False)
        logger.info("data folder created node=%s folder=%s", config.node_id, config.data_dir)
    return _open(wanted, files, install_state)


def _open(wanted: StorageConfig, files: FileSystem, install_state: InstallState | None) -> RaftStorage:
    """Open a folder whose promises are at least as new as its log. Raises: as `open_storage`."""
    storage = open_storage(wanted, files, install_state)
    try:
        path = LogFolders(wanted.data_dir).hard_state
        check_not_older(wanted.node_id, path, storage.hard_state, storage.log.last_term)
    except OldHardStateError:
        storage.close(clean=False)
        raise
    return storage


def _open_for_rejoin(
    wanted: StorageConfig, files: FileSystem, install_state: InstallState | None
) -> RaftStorage:
    """Put the old log and state aside and start as a learner under a new incarnation.

    A folder that was begun so already is kept: the flag may still be set when the process is started again. Not that of
    another learner: it may be of a group that was recovered without it, and then nobody gives it what it lacks.
    """
    storage = _open_rejoined(wanted, files, install_state)
    if storage is not None:
        return storage
    moved = rejoin(wanted, files)
    logger.warning("rejoin: starting with an empty log node=%s old_data=%s", wanted.node_id, moved)
    storage = open_storage(wanted, files)
    storage.learn_members({wanted.node_id: REJOINED_MARK})
    return storage


def _open_rejoined(
    wanted: StorageConfig, files: FileSystem, install_state: InstallState | None
) -> RaftStorage | None:
    """Open the folder if it is a learner's that began empty; None: it must be replaced.

    Raises: ForeignFolderError and the like.
    """
    try:
        if not is_initialized(wanted.data_dir, files, wanted.node_id):
            return None
        storage = _open(wanted, files, install_state)
    except (DamagedFolderError, DamagedLogError):
        return None
    if is_learner(storage) and storage.identity.members.get(wanted.node_id) == REJOINED_MARK:
        return storage
    storage.close(clean=storage.recovered.clean_stop)
    return None


def is_learner(storage: RaftStorage) -> bool:
    """Tell whether this folder must catch up before it may vote (P19), rather than be a new one."""
    hard = storage.hard_state
    return not hard.is_voter and not is_new(storage.identity, hard, storage.log.last_index)


def storage_config(config: RaftConfig) -> StorageConfig:
    """Return the storage's part of the settings."""
    return StorageConfig(
        data_dir=config.data_dir,
        cluster_id=config.cluster_id,
        group=config.group,
        node_id=config.node_id,
        segment_size=config.segment_size,
        flush=config.flush,
        learner_after_reboot=config.flush != "sync" and bool(config.peers),
    )


def view_of(log: CommitLog, applied: LogIndex, state_index: LogIndex) -> LogView:
    """Return what the core must know of an opened log."""
    return LogView(
        first_index=log.first_index,
        base_term=log.prev_term,
        term_runs=tuple(log.term_runs()),
        last_index=log.last_index,
        stable_index=log.last_index,
        applied_index=applied,
        state_index=state_index,
    )


def check_state_fits(config: RaftConfig, applied: LogIndex, log: CommitLog) -> None:
    """Check that the log continues the state that was loaded. Raises: DamagedFolderError."""
    if applied > log.last_index:
        problem = f"its state is that of entry {applied}, but its log ends at entry {log.last_index}"
    elif applied < log.first_index - 1:
        problem = f"its state is that of entry {applied}, but its log begins at entry {log.first_index}"
    else:
        return
    raise DamagedFolderError(
        f"{config.node_id} will not start: {problem}, so {config.data_dir} lost something (a mixed backup, a deleted"
        f" folder, a disk that loses what it was told to keep). Fetch a clean copy from the other nodes:"
        f" ledgermq broker --rejoin; nothing was changed."
    )

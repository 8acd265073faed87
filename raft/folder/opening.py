"""Opens the data folder of a node at its start: makes a new one, or moves a lost one aside (blocking).

Owns: the decision between the three, and the check that log and state belong together. Must not: make a folder that
could be taken for a voter's: a new one starts without the right to vote (bootstrap.py, P19).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ..config import RaftConfig
from ..core.config import LogView
from ..core.reign import Reign
from ..disk.files import FileSystem
from ..errors import (
    ConfigurationError,
    DamagedFolderError,
    DamagedLogError,
    DataFolderError,
    ForeignFolderError,
)
from ..log.commit_log import CommitLog
from ..log.hard_state import check_not_older, check_term
from ..log.identity import REJOINED_MARK, Identity, is_new, read_identity
from ..log.segment_keeper import LogFolders
from ..types import NO_INDEX, LogIndex, NodeId
from .quarantine import MARKER, finish_rejoin, is_asked, rejoin
from .reset_install import InstallState
from .storage import RaftStorage, StorageConfig, create_data_folder, is_initialized, open_storage

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
    asked = is_asked(wanted.data_dir, files)
    finish_rejoin(wanted, files, anew=config.rejoin or asked)
    identity = _identity_if_readable(wanted, files)
    if identity is not None and identity.successor is not None:
        return _open_as_successor_wants(wanted, files, install_state, identity)
    if identity is not None and not _may_be_made_anew(config, identity):
        check_reign(config, identity)
        wanted = replace(wanted, reign=identity.reign)  # also of the folder that a rejoin makes
    asked = is_asked(wanted.data_dir, files)  # still: what was finished may have been what it asked for
    if config.rejoin or asked:
        if not config.peers:
            without = f"after you removed {wanted.data_dir / MARKER}" if asked else "without --rejoin"
            raise DataFolderError(
                f"{config.node_id} cannot rejoin: it is alone in group {config.group}, so nobody has its data. Start it"
                f" {without}; nothing was changed."
            )
        return _open_for_rejoin(wanted, files, install_state, asked=asked)
    if not is_initialized(wanted.data_dir, files, wanted.node_id):
        _check_master_known(wanted)
        create_data_folder(wanted, files, is_voter=False)
        logger.info("data folder created node=%s folder=%s", config.node_id, config.data_dir)
    return _open(wanted, files, install_state)


def _open(wanted: StorageConfig, files: FileSystem, install_state: InstallState | None) -> RaftStorage:
    """Open a folder whose promises are at least as new as its log. Raises: as `open_storage`."""
    storage = open_storage(wanted, files, install_state)
    try:
        path = LogFolders(wanted.data_dir).hard_state
        check_not_older(wanted.node_id, path, storage.hard_state, storage.log.last_term)
        check_term(wanted.node_id, path, storage.hard_state)
    except DataFolderError:
        storage.close(clean=False)
        raise
    return storage


def _open_for_rejoin(
    wanted: StorageConfig, files: FileSystem, install_state: InstallState | None, *, asked: bool
) -> RaftStorage:
    """Put the old log and state aside and start as a learner under a new incarnation.

    A folder that was begun so already is kept: the flag may still be set when the process is started again. Not that of
    another learner: it may be of a group that was recovered without it, and then nobody gives it what it lacks.
    Nor when it was `asked` for by a file, which does not outlive what it asks for.
    """
    storage = None if asked else _open_rejoined(wanted, files, install_state)
    if storage is not None:
        return storage
    _check_master_known(wanted)
    moved = rejoin(wanted, files, asked=asked)
    logger.warning("rejoin: starting with an empty log node=%s old_data=%s", wanted.node_id, moved)
    return open_storage(wanted, files)


def _identity_if_readable(wanted: StorageConfig, files: FileSystem) -> Identity | None:
    """Return whose folder this is; None: it is not known here, and a start, or `--rejoin`, says what that means."""
    path = LogFolders(wanted.data_dir).identity
    if not files.exists(path):
        return None
    try:
        return read_identity(files, path, wanted.node_id)
    except DataFolderError:
        return None


def _open_as_successor_wants(
    wanted: StorageConfig, files: FileSystem, install_state: InstallState | None, identity: Identity
) -> RaftStorage:
    """Move a folder aside that was left behind, and start as a learner of the generation that follows it (D24)."""
    assert identity.successor is not None
    moved = rejoin(replace(wanted, reign=identity.successor), files, seen=identity)
    logger.warning(
        "left behind: this folder's log is kept, the group goes on without what it has behind entry %d node=%s master=%s "
        "generation=%d old_data=%s; to read it: ledgermq dump --data %s DIR",
        identity.successor.began_after, wanted.node_id, identity.successor.master, identity.successor.generation, moved,
        moved,
    )  # fmt: skip
    return open_storage(wanted, files, install_state)


def _check_master_known(wanted: StorageConfig) -> None:
    """Check that a folder may be made now. Raises: ConfigurationError."""
    if wanted.reign is not None and not wanted.reign.master:
        raise ConfigurationError(
            f"{wanted.node_id} will not start: group {wanted.group} has a master, and who that is was not told. Set `master`"
            " to the id of that node; nothing was changed"
        )


def _may_be_made_anew(config: RaftConfig, identity: Identity) -> bool:
    """Tell whether a folder was never finished, so that it binds nobody to the master that its first settings named.

    Settings that name none leave it to the folder; so they do after a promotion, of which they know nothing.
    """
    if identity.complete or (identity.reign is not None and identity.reign.generation):
        return False
    return bool(config.master) or not config.replication.has_master


def check_reign(config: RaftConfig, identity: Identity) -> None:
    """Check that a folder was made for the mode of replication that is configured. Raises: ForeignFolderError."""
    reign, mode = identity.reign, config.replication
    stays = "The choice between a majority and a master is fixed when a group is made"
    if reign is None and mode.has_master:
        raise ForeignFolderError(
            f"{config.node_id} will not start: its data folder {config.data_dir} belongs to a group with replication"
            f" quorum, and {mode.value} is configured. {stays}: set replication = quorum; nothing was changed."
        )
    if reign is not None and not mode.has_master:
        raise ForeignFolderError(
            f"{config.node_id} will not start: its data folder {config.data_dir} belongs to a group with a master"
            f" ({reign.master}), and replication quorum is configured. {stays}: set replication = async_master or"
            " sync_master; nothing was changed."
        )
    if reign is not None and not reign.generation and config.master not in ("", reign.master):
        raise ForeignFolderError(
            f"{config.node_id} will not start: the master of group {config.group} is {reign.master}, and"
            f" {config.master} is configured. Set master = {reign.master}, and make another node the master with:"
            f" ledgermq cluster promote {config.master}; nothing was changed."
        )


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
        direct_write_bytes=config.direct_write_bytes,
        learner_after_reboot=config.flush != "sync" and bool(config.peers),
        reign=Reign(master=NodeId(config.master)) if config.replication.has_master else None,
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


def check_state_fits(
    config: RaftConfig, applied: LogIndex, log: CommitLog, counts_on: LogIndex = NO_INDEX
) -> None:
    """Check that the log continues the state that was loaded, and reaches to entry `counts_on`.

    Raises: DamagedFolderError.
    """
    if (state := max(applied, counts_on)) > log.last_index:
        problem = f"its state is that of entry {state}, but its log ends at entry {log.last_index}"
    elif applied < log.first_index - 1:
        problem = f"its state is that of entry {applied}, but its log begins at entry {log.first_index}"
    else:
        return
    raise DamagedFolderError(
        f"{config.node_id} will not start: {problem}, so {config.data_dir} lost something (a mixed backup, a deleted"
        f" folder, a disk that loses what it was told to keep). Fetch a clean copy from the other nodes:"
        f" ledgermq broker --rejoin; nothing was changed."
    )

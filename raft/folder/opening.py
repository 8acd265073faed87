"""Opening of a node's data folder at start: existing, new, or replaced after a loss (blocking).

Owns: the choice between the three, and the check that log and state match. Must not: create a folder that
could pass for a voter's. A new folder starts without the right to vote (bootstrap.py, P19).
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
    """Return the open data folder. `settings` overrides those of `storage_config` (simulators).

    Raises: DataFolderError subclasses, DamagedLogError, and the errors of `open_storage`.
    """
    wanted = settings or storage_config(config)
    asked = is_asked(wanted.data_dir, files)
    finish_rejoin(wanted, files, anew=config.rejoin or asked)
    identity = _identity_if_readable(wanted, files)
    if identity is not None and identity.successor is not None:
        return _open_as_successor_wants(wanted, files, install_state, identity)
    if identity is not None and not _may_be_made_anew(config, identity):
        check_reign(config, identity)
        wanted = replace(wanted, reign=identity.reign)  # also for the folder that a rejoin creates
    # read again: the finished move may be the one that the file asked for
    asked = is_asked(wanted.data_dir, files)
    if config.rejoin or asked:
        if not config.peers:
            without = f"after you removed {wanted.data_dir / MARKER}" if asked else "without --rejoin"
            raise DataFolderError(
                f"{config.node_id} cannot rejoin: it is alone in broker group {config.group}, so no other "
                f"node has its data. Start it {without}; nothing was changed."
            )
        return _open_for_rejoin(wanted, files, install_state, asked=asked)
    if not is_initialized(wanted.data_dir, files, wanted.node_id):
        _check_master_known(wanted)
        create_data_folder(wanted, files, is_voter=False)
        logger.info("data folder created node=%s folder=%s", config.node_id, config.data_dir)
    return _open(wanted, files, install_state)


def _open(wanted: StorageConfig, files: FileSystem, install_state: InstallState | None) -> RaftStorage:
    """Open a folder whose hard state is at least as new as its log. Raises: see `open_storage`."""
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
    """Move the old log and state aside and start as a learner under a new incarnation.

    A folder that already began that way is kept, because the flag may still be set at a restart. The folder
    of any other learner is replaced: its broker group may have been recovered without it, and no member would
    send it what it lacks. It is also replaced if a file `asked` for it, because that file does not survive
    the move it asks for.
    """
    storage = None if asked else _open_rejoined(wanted, files, install_state)
    if storage is not None:
        return storage
    _check_master_known(wanted)
    moved = rejoin(wanted, files, asked=asked)
    logger.warning("rejoin: starting with an empty log node=%s old_data=%s", wanted.node_id, moved)
    return open_storage(wanted, files)


def _identity_if_readable(wanted: StorageConfig, files: FileSystem) -> Identity | None:
    """Return the identity, or None if it cannot be read here.

    A start, or `--rejoin`, then reports the reason.
    """
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
    """Move a superseded folder aside and start as a learner of the generation that follows it (D24)."""
    assert identity.successor is not None
    moved = rejoin(replace(wanted, reign=identity.successor), files, seen=identity)
    logger.warning(
        "left behind: this folder's log is kept, the broker group goes on without what it has behind entry "
        "%d node=%s master=%s generation=%d old_data=%s; to read it: ledgermq dump --data %s DIR",
        identity.successor.began_after, wanted.node_id, identity.successor.master,
        identity.successor.generation, moved,
        moved,
    )  # fmt: skip
    return open_storage(wanted, files, install_state)


def _check_master_known(wanted: StorageConfig) -> None:
    """Check that a folder may be created now. Raises: ConfigurationError."""
    if wanted.reign is not None and not wanted.reign.master:
        raise ConfigurationError(
            f"{wanted.node_id} will not start: broker group {wanted.group} has a master, and who that is was "
            "not told. Set `master` to the id of that node; nothing was changed"
        )


def _may_be_made_anew(config: RaftConfig, identity: Identity) -> bool:
    """Return whether a folder was never completed, so it is not bound to the master in its first settings.

    Settings without a master leave the choice to the folder, also after a promotion that they do not know of.
    """
    if identity.complete or (identity.reign is not None and identity.reign.generation):
        return False
    return bool(config.master) or not config.replication.has_master


def check_reign(config: RaftConfig, identity: Identity) -> None:
    """Check that a folder was created for the configured mode of replication. Raises: ForeignFolderError."""
    reign, mode = identity.reign, config.replication
    stays = "The choice between a majority and a master is fixed when a broker group is made"
    if reign is None and mode.has_master:
        raise ForeignFolderError(
            f"{config.node_id} will not start: its data folder {config.data_dir} belongs to a broker group "
            f"with replication quorum, and {mode.value} is configured. {stays}: set replication = quorum; "
            "nothing was changed."
        )
    if reign is not None and not mode.has_master:
        raise ForeignFolderError(
            f"{config.node_id} will not start: its data folder {config.data_dir} belongs to a broker group "
            f"with a master ({reign.master}), and replication quorum is configured. {stays}: set replication "
            "= async_master or sync_master; nothing was changed."
        )
    if reign is not None and not reign.generation and config.master not in ("", reign.master):
        raise ForeignFolderError(
            f"{config.node_id} will not start: the master of broker group {config.group} is {reign.master}, "
            f"and {config.master} is configured. Set master = {reign.master}, and make another node the "
            f"master with: ledgermq cluster promote {config.master}; nothing was changed."
        )


def _open_rejoined(
    wanted: StorageConfig, files: FileSystem, install_state: InstallState | None
) -> RaftStorage | None:
    """Open the folder if it belongs to a learner that began empty. None: it must be replaced.

    Raises: ForeignFolderError and the other errors of opening.
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
    """Return whether this node must catch up before it may vote (P19). A new folder is no learner."""
    hard = storage.hard_state
    return not hard.is_voter and not is_new(storage.identity, hard, storage.log.last_index)


def storage_config(config: RaftConfig) -> StorageConfig:
    """Return the storage settings."""
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
    """Return the core's view of an opened log."""
    return LogView(
        first_index=log.first_index,
        base_term=log.base.prev_term,
        term_runs=tuple(log.term_runs()),
        last_index=log.last_index,
        stable_index=log.last_index,
        applied_index=applied,
        state_index=state_index,
    )


def check_state_fits(
    config: RaftConfig, applied: LogIndex, log: CommitLog, counts_on: LogIndex = NO_INDEX
) -> None:
    """Check that the log continues the loaded state and reaches entry `counts_on`.

    Raises: DamagedFolderError.
    """
    if (state := max(applied, counts_on)) > log.last_index:
        problem = f"its state is that of entry {state}, but its log ends at entry {log.last_index}"
    elif applied < log.first_index - 1:
        problem = f"its state is that of entry {applied}, but its log begins at entry {log.first_index}"
    else:
        return
    raise DamagedFolderError(
        f"{config.node_id} will not start: {problem}, so {config.data_dir} lost something (a mixed backup, a "
        "deleted folder, a disk that loses what it was told to keep). Fetch a clean copy from the other "
        "nodes: ledgermq broker --rejoin; nothing was changed."
    )

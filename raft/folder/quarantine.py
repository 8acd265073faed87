"""Quarantine: moves a whole data folder aside and creates that of a learner with an empty log instead (P19).

Three causes: `ledgermq broker --rejoin`; the file `do-rejoin`, which an operator puts into one node's folder
if all nodes share their flags (a pod, a compose service); and a folder superseded by a promotion
(succession.py). The file asks once: it moves to the quarantine with everything else, and by then the record
has taken over.

The record `rejoin` decides the move. It is durable before anything moves, and holds what must survive the
move: the folder's identity, its term and vote, the reign of the new folder, and the destination of the old
one. From then on every opening of the folder continues where the last one ended, whatever its flags, until
the record is gone. There are two stages:

- MOVE: nothing new is in the folder. Everything in it moves to the quarantine, the identity last.
- MAKE: nothing old is in the folder, durably. The new folder is created, repeatedly if need be. Then the
  record is removed.

All of it, from the first look, happens under the folder's lock. Of two concurrent starts the second finds the
folder that the first one made.

Owns: the record, `quarantine-<n>`. Must not: delete any of a node's files; look into what it moves. Blocking.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..core.reign import Reign, first_term_of
from ..disk.checked_file import read_record, write_record
from ..disk.files import FileSystem
from ..errors import DamagedFolderError, DataFolderError, NewerFolderError
from ..log.hard_state import DurableState, HardStateFile
from ..log.identity import REJOINED_MARK, Identity, check_identity, read_identity, reign_of
from ..log.segment_keeper import LogFolders
from ..types import LAST_TERM, MAX_TERM_JUMP, NO_INDEX, NO_TERM, HardState, NodeId, Term
from .storage import StorageConfig, fill_data_folder, is_initialized, lock_folder, read_own_identity

logger = logging.getLogger(__name__)

RECORD: Final = "rejoin"
#: Created by an operator: move this folder aside once. It is moved too (`_is_moved`).
MARKER: Final = "do-rejoin"
RECORD_VERSION: Final = 2  # 2: with the former incarnations
_QUARANTINE: Final = "quarantine-"
_MOVE: Final = "move"
_MAKE: Final = "make"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rejoin:
    """The record `rejoin`."""

    cluster_id: str
    group: str
    node_id: str
    segment_size: int
    reign: Reign | None  # of the new folder; None: a majority decides
    target: str  # name of the quarantine folder; "": there was nothing to move
    stage: str  # MOVE or MAKE, as above
    promise: tuple[int, str | None] | None  # term and vote of the old folder; None: unreadable
    #: Earlier incarnations of the members, including the old folder's. A folder that still uses one is old.
    former: dict[str, list[int]] = field(default_factory=dict)


def is_under_way(data_dir: Path, files: FileSystem) -> bool:
    """Return whether a move was decided but not finished: the folder is neither the old one nor the
    new one.
    """
    return files.exists(data_dir / RECORD)


def is_asked(data_dir: Path, files: FileSystem) -> bool:
    """Return whether an operator's file asks for a move."""
    return files.exists(data_dir / MARKER)


def rejoin(
    config: StorageConfig, files: FileSystem, *, seen: Identity | None = None, asked: bool = False
) -> Path | None:
    """Give a node an empty log under its known id.

    Returns the quarantine folder; None: there was nothing to move.

    The node comes back as a non-voter with a new incarnation. It keeps its term and vote if they are
    readable. `config.reign` is the reign of the new folder. `seen`: the identity of the folder to move; a
    different folder found here by now stays. `asked`: everything stays if the request is gone, because
    another start has served it. Raises: ForeignFolderError, LockedFolderError, OSError.
    """
    files.make_directory(config.data_dir)
    with _locked(config, files):  # the inputs of the plan cannot change from here on
        try:
            plan = _read(config, files) if is_under_way(config.data_dir, files) else None
        except DamagedFolderError:
            plan = None
        if plan is None:
            if seen is not None and seen != _identity(config, files):
                return None
            if asked and not is_asked(config.data_dir, files):
                return None
            plan = _plan(config, files)
            _write(files, config.data_dir, plan)
        return _carry_out(config, files, plan)


def finish_rejoin(config: StorageConfig, files: FileSystem, *, anew: bool = False) -> None:
    """Finish a move that a crash interrupted. `anew`: another move follows anyway, so drop a damaged record.

    Raises: DamagedFolderError, NewerFolderError, ForeignFolderError, LockedFolderError, OSError.
    """
    if not is_under_way(config.data_dir, files):
        return
    with _locked(config, files):
        if not is_under_way(config.data_dir, files):  # a concurrent start has finished it
            return
        try:
            plan = _read(config, files)
        except DamagedFolderError:
            if anew:
                return
            raise
        moved = _carry_out(config, files, plan)
    logger.warning(
        "rejoin: an earlier start did not finish it, now done: starting with an empty log node=%s "
        "old_data=%s",
        config.node_id, moved,
    )  # fmt: skip


@contextmanager
def _locked(config: StorageConfig, files: FileSystem) -> Iterator[None]:
    lock = lock_folder(config.node_id, config.data_dir, files)
    try:
        yield
    finally:
        lock.release()


def _plan(config: StorageConfig, files: FileSystem) -> _Rejoin:
    promise = _readable_promise(config, files, LogFolders(config.data_dir))
    names = files.list_directory(config.data_dir)
    is_empty = not any(_is_moved(name) for name in names)
    return _Rejoin(
        cluster_id=config.cluster_id,
        group=config.group,
        node_id=config.node_id,
        segment_size=config.segment_size,
        reign=config.reign,
        target="" if is_empty else _next_quarantine(names),
        stage=_MAKE if is_empty else _MOVE,
        promise=(promise.term, promise.voted_for) if promise is not None else None,
        former=_former(config, files),
    )


def _next_quarantine(names: list[str]) -> str:
    """Return a name after all existing ones. Operators delete some, and two folders must not be mixed."""
    numbers = [name.removeprefix(_QUARANTINE) for name in names if name.startswith(_QUARANTINE)]
    highest = max((int(number) for number in numbers if number.isdecimal()), default=0)
    return f"{_QUARANTINE}{highest + 1}"


def _former(config: StorageConfig, files: FileSystem) -> dict[str, list[int]]:
    try:
        identity = _identity(config, files)
    except DataFolderError:
        return {}
    if identity is None or identity.node_id != config.node_id:
        return {}
    identity = identity.with_former(identity.node_id, identity.incarnation)
    return {node: list(numbers) for node, numbers in identity.former.items()}


def _identity(config: StorageConfig, files: FileSystem) -> Identity | None:
    path = LogFolders(config.data_dir).identity
    return read_identity(files, path, config.node_id) if files.exists(path) else None


def _carry_out(config: StorageConfig, files: FileSystem, plan: _Rejoin) -> Path | None:
    """Continue from the stage in the record until it is gone. The caller holds the lock."""
    data_dir = config.data_dir
    target = data_dir / plan.target if plan.target else None
    # A killed process may leave names that its successor sees although they are not on disk yet (P17).
    for folder in (data_dir.parent, data_dir):
        files.sync_directory(folder)
    if target is not None and plan.stage == _MOVE:
        _move(data_dir, target, files)
        plan = replace(plan, stage=_MAKE)
        _write(files, data_dir, plan)
    if not is_initialized(data_dir, files, config.node_id):
        promise = None
        if plan.promise is not None:
            term, voted_for = plan.promise
            promise = HardState(
                Term(term), NodeId(voted_for) if voted_for else None, NO_INDEX, is_voter=False
            )
        fill_data_folder(
            replace(config, reign=plan.reign), files, is_voter=False, hard_state=promise, mark=REJOINED_MARK,
            former={NodeId(node): tuple(numbers) for node, numbers in plan.former.items()},
        )  # fmt: skip
    files.unlink(data_dir / RECORD)
    files.sync_directory(data_dir)
    return target


def _move(data_dir: Path, target: Path, files: FileSystem) -> None:
    files.make_directory(target)
    names = [name for name in files.list_directory(data_dir) if _is_moved(name)]
    # Move the identity last: while it is here, the folder itself tells whose it is.
    for name in sorted(names, key=lambda name: name == "identity"):
        files.rename(data_dir / name, _free_name(target, name, files))
    files.sync_directory(target)
    files.sync_directory(data_dir)
    logger.warning("data folder moved aside path=%s", target)


def _is_moved(name: str) -> bool:
    return name != "lock" and not name.startswith((_QUARANTINE, RECORD))


def _free_name(target: Path, name: str, files: FileSystem) -> Path:
    """Return a free name for a file or folder.

    A crash, or a person, may have left another one of that name.
    """
    path, number = target / name, 1
    while files.exists(path):
        number += 1
        path = target / f"{name}-{number}"
    return path


def _readable_promise(config: StorageConfig, files: FileSystem, folders: LogFolders) -> HardState | None:
    """Return the term and vote of a folder that is about to be given up, if they are readable and
    credible.
    """
    reign = config.reign
    try:
        if files.exists(folders.identity):
            reign = read_own_identity(config, files, folders).reign
        hard = HardStateFile.open(files, folders.hard_state, writable=False)
    except (FileNotFoundError, CorruptError, DamagedFolderError):
        return None
    hard.close()
    return hard.state.hard if _is_credible(hard.state, reign) else None


def _is_credible(state: DurableState, reign: Reign | None) -> bool:
    """Return whether elections can have reached a folder's term.

    If not, `--rejoin` is the way to get rid of it.

    With such a term the new folder would be refused for ever, like the old one. Dropping the promise is as
    safe as with an unreadable hard state: the node votes in no term that a voter had reached when it came
    back (bootstrap.py, `Rejoin`).
    """
    begin = first_term_of(reign.generation, NO_TERM) if reign is not None else NO_TERM
    return state.hard.term <= min(max(state.floor_term, begin) + MAX_TERM_JUMP, LAST_TERM)


def _write(files: FileSystem, data_dir: Path, plan: _Rejoin) -> None:
    write_record(files, data_dir / RECORD, RECORD, RECORD_VERSION, asdict(plan))


def _read(config: StorageConfig, files: FileSystem) -> _Rejoin:
    path = config.data_dir / RECORD
    try:
        fields: dict[str, Any] = read_record(files, path, RECORD, RECORD_VERSION)
        promise = fields.pop("promise")
        plan = _Rejoin(
            reign=reign_of(fields.pop("reign")), promise=tuple(promise) if promise else None, **fields
        )
    except NewerFormatError as error:
        raise NewerFolderError(config.node_id, path, error) from None
    except (CorruptError, KeyError, TypeError):
        raise DamagedFolderError(
            f"{config.node_id} will not start: {path} is damaged, so what of {config.data_dir} was moved "
            "aside already is not known. To move the rest, too, and fetch everything from the other nodes: "
            "ledgermq broker --rejoin; nothing was changed."
        ) from None
    check_identity(
        Identity(
            cluster_id=plan.cluster_id,
            group=plan.group,
            node_id=NodeId(plan.node_id),
            incarnation=0,
            segment_size=plan.segment_size,
        ),
        cluster_id=config.cluster_id,
        broker_group=config.group,
        node_id=config.node_id,
        segment_size=config.segment_size,
        folder=config.data_dir,
    )
    return plan

"""Makes the folder of a surviving node, and copies of it, into a new group after a majority was lost for ever.

Owns: what changes in a stopped node's folder, and the order on disk.   Must not: ask a person; decide who survives.

`promote_folder` does the same with the folder of a slave whose master is gone (reign.py); this one votes at once, for it
is the only voter. The others are not given copies: they find out that they were left behind, and start over by
themselves.

`recover_folder` gives the folder a new group id, a new incarnation and a higher term; `clone_folder` makes a copy of
that folder into another member's. No folder votes from then on: each is a FRESH member that begins with a log
(bootstrap.py), so the group works again when all members have met, and whoever was left behind is refused.

Each change is decided by one atomic replacement of `identity`, which names the incarnation that the hard state still
has. Whoever opens the folder next writes the hard state that belongs to it (`finish_recovery`), so a crash anywhere
leaves the old folder or the new one. What is committed by it: every entry of this log, as soon as a leader of the new
group has committed its first own one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..core.reign import Claim, Reign, first_term_of
from ..disk.files import FileSystem, LockedError
from ..disk.overlay_files import OverlayFiles
from ..errors import (
    DamagedFolderError,
    DamagedLogError,
    GroupRecoveryError,
    LockedFolderError,
    NewerFolderError,
)
from ..log.hard_state import NO_BOOT_ID, DurableState, HardStateFile
from ..log.identity import Identity, Manifest, Recovery, read_identity, read_manifest, write_identity
from ..log.segment_keeper import LogFolders
from ..types import LAST_TERM, MAX_TERM_JUMP, NO_INDEX, HardState, LogIndex, NodeId, Term
from .bootstrap import group_id_of
from .recovery import LogRecovery, RecoveredLog

#: Files that say that something else was begun in the folder and must be finished first: a repair of the log in place,
#: the installation of a state that a leader sent, a move of the whole folder into its quarantine.
UNDER_WAY: Final = ("repair", "reset/marker", "rejoin")
#: A person's file: the next start moves the whole folder aside (quarantine.py).
ASKED: Final = "do-rejoin"


@dataclass(slots=True)
class StoppedFolder:
    """The locked folder of a node that does not run. `hard` is open."""

    data: Path
    files: FileSystem
    identity: Identity
    base: Manifest
    hard: HardStateFile

    @property
    def folders(self) -> LogFolders:
        return LogFolders(self.data)

    @property
    def recovery(self) -> Recovery | None:
        """How the folder was recovered; `counted` also when only the hard state says so by now."""
        recovery, state = self.identity.recovery, self.hard.state
        if recovery is None or state.incarnation != self.identity.incarnation:
            return recovery
        return replace(recovery, counted=recovery.counted or _may_have_voted(recovery, state.hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """What a folder holds, after every entry of its log was read and verified."""

    identity: Identity
    term: Term
    votes: bool  # False: it had lost something, or was catching up, when it stopped
    commit_hint: LogIndex  # it knew everything up to here to be committed; more may be
    first_index: LogIndex
    last_index: LogIndex
    last_term: Term
    last_crc: int
    last_timestamp: int  # log time (ms since 1970) of the last entry; 0: there is none
    log_bytes: int
    torn_bytes: int  # of a write that never finished, behind the last entry; a start cuts them off


def belongs_together(identity: Identity, state: DurableState) -> bool:
    """Tell whether the two records of a folder are of one incarnation, or of a change that is not finished."""
    recovery = identity.recovery
    return state.incarnation in (identity.incarnation, recovery.from_incarnation if recovery else None)


def finish_recovery(files: FileSystem, path: Path, identity: Identity, hard: HardStateFile) -> Identity:
    """Finish a change that a crash interrupted, and note that a first member has voted. Returns the identity.

    Call it before anything else is written to a folder whose records belong together. Raises: OSError.
    """
    recovery = identity.recovery
    if recovery is None:
        return identity
    state = hard.state
    if state.incarnation == recovery.from_incarnation:  # of no other: a later term is never taken back
        hint = state.hard.commit_hint
        promise = HardState(
            term=Term(recovery.term), voted_for=None, commit_hint=hint, is_voter=recovery.promoted
        )
        hard.write(
            replace(
                state, hard=promise, incarnation=identity.incarnation, boot_id=NO_BOOT_ID, clean_stop=False
            )
        )
    elif not recovery.counted and _may_have_voted(recovery, state.hard):
        # Before it can lose its vote again (a reboot in an async flush mode): then it is a learner, not a first member.
        identity = replace(identity, recovery=replace(recovery, counted=True))
        write_identity(files, path, identity)
    return identity


def _may_have_voted(recovery: Recovery, hard: HardState) -> bool:
    """Tell whether a first member's copy may count by now. A failed write can take the vote in the run that gave it.

    Its term shows it: all begin in that of the recovery, and who votes promises nothing before it hears of the next
    one. Whoever else heard of that, without a vote, is safe as a learner: a majority voted, durably, before it began.
    """
    return hard.is_voter or hard.term > recovery.term


@contextmanager
def stopped_folder(data: Path, files: FileSystem) -> Iterator[StoppedFolder]:
    """Lock the folder of a node that does not run and read its records; nothing is changed.

    Raises: GroupRecoveryError, LockedFolderError, NewerFolderError, OSError.
    """
    folders = LogFolders(data)
    if not files.exists(folders.identity):
        raise GroupRecoveryError(
            f"{data} is not a node's data folder (no {folders.identity.name} in it). Point --data at the folder of a"
            " node that survived; nothing was changed."
        )
    try:
        lock = files.lock(folders.lock)
    except LockedError as error:
        raise LockedFolderError(
            f"{data} is in use ({error.strerror}). Stop that node first (SIGTERM), and make sure that no majority of"
            " its group can come back: ledgermq cluster status; nothing was changed."
        ) from None
    try:
        with _readable(data):
            folder = _open(data, folders, files)
        try:
            yield folder
        finally:
            folder.hard.close()
    finally:
        lock.release()


def _open(data: Path, folders: LogFolders, files: FileSystem) -> StoppedFolder:
    identity = read_identity(files, folders.identity, data.name)
    if not identity.complete:
        raise GroupRecoveryError(f"{folders.identity} was never finished: nothing was ever stored in {data}.")
    for name in UNDER_WAY:
        if files.exists(data / name):
            raise GroupRecoveryError(
                f"something is under way in {data} that is not finished ({data / name}), so its log cannot be judged."
                f" Start {identity.node_id} once, so that it finishes that by itself, stop it and run this again; or"
                " recover from another node that survived; nothing was changed."
            )
    if files.exists(data / ASKED):
        raise GroupRecoveryError(
            f"{data / ASKED} asks for all of {data} to be moved aside at the next start of {identity.node_id}. If the broker"
            " group is to go on with this folder, remove that file and run this again; nothing was changed."
        )
    base = read_manifest(files, folders.manifest, identity.node_id)
    try:
        hard = HardStateFile.open(files, folders.hard_state)
    except NewerFormatError as error:
        raise NewerFolderError(
            identity.node_id, folders.hard_state, error.what, error.found, error.supported
        ) from None
    if not belongs_together(identity, hard.state):
        hard.close()
        raise GroupRecoveryError(
            f"{folders.hard_state} comes from another incarnation of {identity.node_id} than its identity (a mixed"
            " backup?). Recover from another node that survived; nothing was changed."
        )
    return StoppedFolder(data, files, identity, base, hard)


@contextmanager
def _readable(data: Path) -> Iterator[None]:
    """Say of a damaged folder what can be done when there is no majority to fetch a copy from."""
    way_out = (
        "Recover from another node that survived, and let this one fetch everything from it: ledgermq broker --rejoin."
        f" What can still be read here: ledgermq dump --data {data} DIR; nothing was changed."
    )
    try:
        yield
    except DamagedFolderError as error:
        raise GroupRecoveryError(f"{error.found}. {way_out}") from None
    except (FileNotFoundError, CorruptError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error.reason})"
        raise GroupRecoveryError(f"{LogFolders(data).hard_state} {what}. {way_out}") from None
    except DamagedLogError as error:
        raise GroupRecoveryError(
            f"{error.path} is damaged at byte {error.position} (physical offset {error.offset}): {error.reason}."
            f" {way_out}"
        ) from None


def inspect(folder: StoppedFolder, *, verified: bool = False) -> Survivor:
    """Read and verify the whole log (seconds per GiB); nothing is changed. `verified`: the node did that before it stopped.

    Raises: GroupRecoveryError (damage), NewerFolderError, OSError.
    """
    identity, state = folder.identity, folder.hard.state
    # Nothing is believed: no index file, no clean stop. What is found must then reach what was acknowledged. After a node
    # that has just read all of it, what every start believes is enough.
    believed = state if verified else replace(state, clean_stop=False, floor_index=NO_INDEX)
    with _readable(folder.data):
        found = _recover_log(folder, OverlayFiles(folder.files), believed)
    end = found.end
    if end.index < state.floor_index:
        raise GroupRecoveryError(
            f"the log of {identity.node_id} ends at entry {end.index}, but entry {state.floor_index} was acknowledged by"
            " it: its disk lost something. Recover from another node that survived; nothing was changed."
        )
    end_offset = found.segments[-1].end_offset if found.segments else folder.base.first_offset
    return Survivor(
        identity=replace(identity, recovery=folder.recovery),
        term=state.hard.term,
        votes=state.hard.is_voter,
        commit_hint=min(state.hard.commit_hint, end.index),
        first_index=folder.base.first_index,
        last_index=end.index,
        last_term=end.term,
        last_crc=end.crc,
        last_timestamp=end.timestamp,
        log_bytes=end_offset - folder.base.first_offset,
        torn_bytes=found.truncated_bytes,
    )


def check_recoverable(folder: StoppedFolder) -> None:
    """Raises: GroupRecoveryError when there is no lost majority to recover from, or it was done already."""
    identity, recovery = folder.identity, folder.recovery
    if identity.reign is not None:
        raise GroupRecoveryError(
            f"group {identity.group} has a master ({identity.reign.master}), so no majority was lost. If the master does"
            f" not come back, start {identity.node_id} as it is, and make it the master: ledgermq cluster promote"
            f" {identity.node_id}; nothing was changed."
        )
    if len(identity.members) < 2:
        raise GroupRecoveryError(
            f"{identity.node_id} has never met another member of group {identity.group}, so it needs none to work."
            " Start it as usual; nothing was changed."
        )
    if recovery is not None and not recovery.counted:
        raise GroupRecoveryError(
            f"group {identity.group} was recovered in this folder already. Next: copy the folder to the other nodes and"
            " run `ledgermq cluster recover --data COPY --clone-for NODE` on each copy; nothing was changed."
        )


def recover_folder(folder: StoppedFolder, survivor: Survivor) -> Identity:
    """Make the folder the first member of a new group that begins with its log; return its new identity.

    `survivor` is what `inspect` found under the same lock. Raises: GroupRecoveryError, OSError.
    """
    check_recoverable(folder)
    return _begin_anew(folder, survivor, _new_incarnation())


def restore_folder(folder: StoppedFolder, survivor: Survivor) -> Identity:
    """Make a folder that was made from a dump (restored_folder.py) the first member of a new group, of one node or more.

    Whoever restores wants a new group, whatever became of the dumped one. Raises: GroupRecoveryError, OSError.
    """
    return _begin_anew(folder, survivor, _new_incarnation())


def _new_incarnation() -> int:
    return secrets.randbits(63) | 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionPlan:
    """What a folder is to begin. The other nodes can be told before, for it fixes the id of the group (`claim_of`)."""

    incarnation: int = field(default_factory=_new_incarnation)
    claims: frozenset[Claim] = frozenset()  # left behind, besides those that the folder knows


def promote_folder(folder: StoppedFolder, survivor: Survivor, plan: PromotionPlan | None = None) -> Identity:
    """Make the folder that of the master of a new generation, which begins with its log; return its new identity.

    `survivor` is what `inspect` found under the same lock; without a plan nobody was told. Raises: GroupRecoveryError, OSError.
    """
    plan, identity = plan or PromotionPlan(), folder.identity
    if identity.reign is None or not identity.group_id or identity.successor is not None:
        raise GroupRecoveryError(
            f"{identity.node_id} cannot be promoted: its folder is not that of a node of a group with a master, or was"
            " never part of one; nothing was changed."
        )
    claim = claim_of(identity, plan, survivor.last_index)
    return _begin_anew(folder, survivor, plan.incarnation, claim.reign)


def claim_of(identity: Identity, plan: PromotionPlan, last_index: LogIndex) -> Claim:
    """Return the generation that a folder begins by this plan."""
    assert identity.reign is not None
    others = (*identity.claims, *plan.claims)
    return Claim(
        group_id=group_id_of(identity.cluster_id, identity.group, {identity.node_id: plan.incarnation}),
        reign=identity.reign.next(identity.node_id, identity.group_id, last_index, others),
    )


def _begin_anew(
    folder: StoppedFolder, survivor: Survivor, incarnation: int, reign: Reign | None = None
) -> Identity:
    """Begin a group with this folder's log: one that waits for copies of it, or (`reign`) one that works at once."""
    term = _credible_term(survivor.term, survivor.last_term)
    _settle(folder)
    old, state = folder.identity, folder.hard.state
    return _replace_identity(
        folder,
        replace(
            old,
            incarnation=incarnation,
            group_id=group_id_of(old.cluster_id, old.group, {old.node_id: incarnation}),
            members={**dict.fromkeys(old.members, 0), old.node_id: incarnation},
            reign=reign,
            claims=(),
            recovery=Recovery(
                replaced_group_id=old.group_id,
                from_incarnation=state.incarnation,
                term=first_term_of(reign.generation if reign else 0, Term(term)),
                last_index=survivor.last_index,
                last_crc=survivor.last_crc,
                counted=reign is not None,
                promoted=reign is not None,
            ),
        ),
    )


def _credible_term(stored: Term, last_term: Term) -> Term:
    """Return the highest term that elections can have led to. Votes of the old group count for nothing in the new one.

    A stored term far above the log came from a damaged or forged message: this is the way back from it.
    """
    if last_term > LAST_TERM - MAX_TERM_JUMP:
        raise GroupRecoveryError(
            f"the last entry of the log has term {last_term}, behind which no leader can be elected: a damaged or forged"
            " message brought it. Make a new broker group from a dump; nothing was changed."
        )
    return Term(max(stored, last_term)) if stored <= last_term + MAX_TERM_JUMP else last_term


def clone_folder(folder: StoppedFolder, node_id: NodeId, survivor: Survivor) -> Identity:
    """Make a copy of a recovered folder into the folder of another member; return its identity.

    The caller has made the copied files durable. Raises: GroupRecoveryError (not recovered, not a copy of the whole
    log, a member that votes already, no such member), OSError.
    """
    old = folder.identity
    recovery = check_cloneable(folder, node_id)
    if (survivor.last_index, survivor.last_crc) != (recovery.last_index, recovery.last_crc):
        raise GroupRecoveryError(
            f"the log in {folder.data} ends at entry {survivor.last_index}, that of the recovered folder at entry"
            f" {recovery.last_index}: the copy is not whole, or the folder was started since. Copy it again;"
            " nothing was changed."
        )
    _settle(folder)
    incarnation = _new_incarnation()
    return _replace_identity(
        folder,
        replace(
            old,
            node_id=node_id,
            incarnation=incarnation,
            members={**dict.fromkeys(old.members, 0), node_id: incarnation},
            recovery=replace(recovery, from_incarnation=folder.hard.state.incarnation),
        ),
    )


def check_cloneable(folder: StoppedFolder, node_id: NodeId) -> Recovery:
    """Return how the folder was recovered. Raises: GroupRecoveryError when no copy of it may become `node_id`'s."""
    identity, recovery = folder.identity, folder.recovery
    group = identity.group
    if recovery is None:
        raise GroupRecoveryError(
            f"group {group} was not recovered in this folder: a copy of a voter's folder must not vote as another node."
            " Run `ledgermq cluster recover --data DIR` on the survivor's folder first; nothing was changed."
        )
    if recovery.counted:
        raise GroupRecoveryError(
            f"{identity.node_id} votes in the recovered group {group} by now, so a copy of its folder must not become"
            f" {node_id}'s. Start {node_id} with an empty folder: ledgermq broker --rejoin; nothing was changed."
        )
    if node_id not in identity.members:
        raise GroupRecoveryError(
            f"there is no node {node_id} in group {group} (its nodes are {', '.join(sorted(identity.members))});"
            " nothing was changed."
        )
    if node_id == identity.node_id:
        raise GroupRecoveryError(
            f"this folder is {node_id}'s already. Name another node, and the copy that is for it; nothing was changed."
        )
    return recovery


def _settle(folder: StoppedFolder) -> None:
    """Do what a start does: finish what was begun, make the end of the log durable and say so."""
    folder.identity = finish_recovery(folder.files, folder.folders.identity, folder.identity, folder.hard)
    with _readable(folder.data):
        end = _recover_log(folder, folder.files, folder.hard.state).end
    folder.hard.write(
        replace(
            folder.hard.state,
            floor_index=end.index,
            floor_term=end.term,
            clean_stop=False,
            cut_turn=0,
            cut_offset=0,
        )
    )


def _recover_log(folder: StoppedFolder, files: FileSystem, state: DurableState) -> RecoveredLog:
    identity = folder.identity
    recovery = LogRecovery(identity.node_id, files, folder.folders, identity.segment_size, folder.base, state)
    return recovery.run()


def _replace_identity(folder: StoppedFolder, identity: Identity) -> Identity:
    """The step that decides, and then what follows from it."""
    write_identity(folder.files, folder.folders.identity, identity)
    folder.identity = finish_recovery(folder.files, folder.folders.identity, identity, folder.hard)
    return folder.identity

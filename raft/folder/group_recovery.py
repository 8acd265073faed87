"""Recovery of a broker group that lost its majority for good, from a surviving node's folder.

Owns: the changes to a stopped node's folder, and their order on disk.   Must not: prompt; decide who
survives.

`recover_folder` gives the folder a new broker group id, a new incarnation and a higher term. `clone_folder`
turns a copy of that folder into another member's. Neither folder votes yet: each is a FRESH member that
begins with a log (bootstrap.py). The broker group works again once all members have met, and nodes left out
are refused.

`promote_folder` does the same with the folder of a slave whose master is gone (reign.py). That folder votes
at once, because it is the only voter. The other nodes get no copies: they find out that they were superseded
and start over by themselves.

One atomic replacement of `identity` decides each change. It names the incarnation that the hard state still
has. The next opening of the folder writes the matching hard state (`finish_recovery`), so a crash at any
point leaves either the old folder or the new one. The change commits every entry of this log as soon as a
leader of the new broker group has committed its first own entry.
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
    BrokerGroupRecoveryError,
    DamagedFolderError,
    DamagedLogError,
    LockedFolderError,
    NewerFolderError,
)
from ..log.hard_state import NO_BOOT_ID, DurableState, HardStateFile
from ..log.identity import Identity, Manifest, Recovery, read_identity, read_manifest, write_identity
from ..log.segment_keeper import LogFolders
from ..types import LAST_TERM, MAX_TERM_JUMP, NO_INDEX, HardState, LogIndex, NodeId, Term
from .bootstrap import group_id_of
from .recovery import LogRecovery, RecoveredLog

#: Files of an operation that was begun in the folder and must be finished first: an in-place repair of the
#: log, the installation of a state from a leader, a move of the folder to quarantine.
UNDER_WAY: Final = ("repair", "reset/marker", "rejoin")
#: Created by an operator: the next start moves the whole folder aside (quarantine.py).
ASKED: Final = "do-rejoin"


@dataclass(slots=True)
class StoppedFolder:
    """Locked folder of a stopped node. `hard` is open."""

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
        """How the folder was recovered. `counted` is also set if only the hard state shows it so far."""
        recovery, state = self.identity.recovery, self.hard.state
        if recovery is None or state.incarnation != self.identity.incarnation:
            return recovery
        return replace(recovery, counted=recovery.counted or _may_have_voted(recovery, state.hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """Contents of a folder, after every entry of its log was read and verified."""

    identity: Identity
    term: Term
    votes: bool  # False: it had lost data, or was still catching up, when it stopped
    commit_hint: LogIndex  # highest index that it knew to be committed; more may be
    first_index: LogIndex
    last_index: LogIndex
    last_term: Term
    last_crc: int
    last_timestamp: int  # log time (ms since 1970) of the last entry; 0: the log is empty
    log_bytes: int
    torn_bytes: int  # of an unfinished write after the last entry; a start cuts them off


def belongs_together(identity: Identity, state: DurableState) -> bool:
    """Return whether both records of a folder have the same incarnation, or belong to an unfinished
    change.
    """
    recovery = identity.recovery
    return state.incarnation in (identity.incarnation, recovery.from_incarnation if recovery else None)


def finish_recovery(files: FileSystem, path: Path, identity: Identity, hard: HardStateFile) -> Identity:
    """Finish a change that a crash interrupted, and record that a first member has voted.

    Returns the identity.

    Call it before any other write to a folder whose records belong together. Raises: OSError.
    """
    recovery = identity.recovery
    if recovery is None:
        return identity
    state = hard.state
    # only for that incarnation: a later term is never taken back
    if state.incarnation == recovery.from_incarnation:
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
        # Record it before the vote can be lost again, by a reboot in an async flush mode. It is then a
        # learner, not a first member.
        identity = replace(identity, recovery=replace(recovery, counted=True))
        write_identity(files, path, identity)
    return identity


def _may_have_voted(recovery: Recovery, hard: HardState) -> bool:
    """Return whether a vote of this first member may count by now.

    A failed write can take the vote away in the run that gave it.

    The term shows it. All first members begin in the recovery's term, and a voter promises nothing before it
    learns of the next one. A node that learned of that term without a vote is safe as a learner: a majority
    voted, durably, before the term began.
    """
    return hard.is_voter or hard.term > recovery.term


@contextmanager
def stopped_folder(data: Path, files: FileSystem) -> Iterator[StoppedFolder]:
    """Lock the folder of a stopped node and read its records, without changing anything.

    Raises: BrokerGroupRecoveryError, LockedFolderError, NewerFolderError, OSError.
    """
    folders = LogFolders(data)
    if not files.exists(folders.identity):
        raise BrokerGroupRecoveryError(
            f"{data} is not a node's data folder (no {folders.identity.name} in it). Point --data at the "
            "folder of a node that survived; nothing was changed."
        )
    try:
        lock = files.lock(folders.lock)
    except LockedError as error:
        raise LockedFolderError(
            f"{data} is in use ({error.strerror}). Stop that node first (SIGTERM), and make sure that no "
            "majority of its broker group can come back: ledgermq cluster status; nothing was changed."
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
        raise BrokerGroupRecoveryError(
            f"{folders.identity} was never finished: nothing was ever stored in {data}."
        )
    for name in UNDER_WAY:
        if files.exists(data / name):
            raise BrokerGroupRecoveryError(
                f"something is under way in {data} that is not finished ({data / name}), so its log cannot "
                f"be judged. Start {identity.node_id} once, so that it finishes that by itself, stop it and "
                "run this again; or recover from another node that survived; nothing was changed."
            )
    if files.exists(data / ASKED):
        raise BrokerGroupRecoveryError(
            f"{data / ASKED} asks for all of {data} to be moved aside at the next start of "
            f"{identity.node_id}. If the broker group is to go on with this folder, remove that file and run "
            "this again; nothing was changed."
        )
    base = read_manifest(files, folders.manifest, identity.node_id)
    try:
        hard = HardStateFile.open(files, folders.hard_state)
    except NewerFormatError as error:
        raise NewerFolderError(identity.node_id, folders.hard_state, error) from None
    if not belongs_together(identity, hard.state):
        hard.close()
        raise BrokerGroupRecoveryError(
            f"{folders.hard_state} comes from another incarnation of {identity.node_id} than its identity (a "
            "mixed backup?). Recover from another node that survived; nothing was changed."
        )
    return StoppedFolder(data, files, identity, base, hard)


@contextmanager
def _readable(data: Path) -> Iterator[None]:
    """Add to an error about a damaged folder what to do when there is no majority to fetch a copy from."""
    way_out = (
        "Recover from another node that survived, and let this one fetch everything from it: ledgermq "
        f"broker --rejoin. What can still be read here: ledgermq dump --data {data} DIR; nothing was changed."
    )
    try:
        yield
    except DamagedFolderError as error:
        raise BrokerGroupRecoveryError(f"{error.found}. {way_out}") from None
    except (FileNotFoundError, CorruptError) as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error.reason})"
        raise BrokerGroupRecoveryError(f"{LogFolders(data).hard_state} {what}. {way_out}") from None
    except DamagedLogError as error:
        raise BrokerGroupRecoveryError(
            f"{error.path} is damaged at byte {error.position} (physical offset {error.offset}): "
            f"{error.reason}. {way_out}"
        ) from None


def inspect(folder: StoppedFolder, *, verified: bool = False) -> Survivor:
    """Read and verify the whole log (seconds per GiB), without changing anything.

    `verified`: the node did that just before it stopped. Raises: BrokerGroupRecoveryError (damage),
    NewerFolderError, OSError.
    """
    identity, state = folder.identity, folder.hard.state
    # Trust neither index files nor the clean-stop mark. The log found must then reach everything
    # acknowledged. If the node has just read all of it, trust what every start trusts.
    believed = state if verified else replace(state, clean_stop=False, floor_index=NO_INDEX)
    with _readable(folder.data):
        found = _recover_log(folder, OverlayFiles(folder.files), believed)
    end = found.end
    if end.index < state.floor_index:
        raise BrokerGroupRecoveryError(
            f"the log of {identity.node_id} ends at entry {end.index}, but entry {state.floor_index} was "
            "acknowledged by it: its disk lost something. Recover from another node that survived; nothing "
            "was changed."
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
    """Check that there is a lost majority to recover from.

    Raises: BrokerGroupRecoveryError (not so, or done already).
    """
    identity, recovery = folder.identity, folder.recovery
    if identity.reign is not None:
        raise BrokerGroupRecoveryError(
            f"broker group {identity.group} has a master ({identity.reign.master}), so no majority was lost. "
            f"If the master does not come back, start {identity.node_id} as it is, and make it the master: "
            f"ledgermq cluster promote {identity.node_id}; nothing was changed."
        )
    if len(identity.members) < 2:
        raise BrokerGroupRecoveryError(
            f"{identity.node_id} has never met another member of broker group {identity.group}, so it needs "
            "none to work. Start it as usual; nothing was changed."
        )
    if recovery is not None and not recovery.counted:
        raise BrokerGroupRecoveryError(
            f"broker group {identity.group} was recovered in this folder already. Next: copy the folder to "
            "the other nodes and run `ledgermq cluster recover --data COPY --clone-for NODE` on each copy; "
            "nothing was changed."
        )


def recover_folder(folder: StoppedFolder, survivor: Survivor) -> Identity:
    """Make the folder the first member of a new broker group that begins with its log.

    Returns its new identity.

    `survivor` is the result of `inspect` under the same lock. Raises: BrokerGroupRecoveryError, OSError.
    """
    check_recoverable(folder)
    return _begin_anew(folder, survivor, _new_incarnation())


def restore_folder(folder: StoppedFolder, survivor: Survivor) -> Identity:
    """Make a folder built from a dump (restored_folder.py) the first member of a new broker group of any
    size.

    A restore always creates a new broker group, whatever became of the dumped one. Raises:
    BrokerGroupRecoveryError, OSError.
    """
    return _begin_anew(folder, survivor, _new_incarnation())


def _new_incarnation() -> int:
    return secrets.randbits(63) | 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionPlan:
    """Generation that a folder is about to begin.

    It fixes the broker group id, so other nodes can be told first (`claim_of`).
    """

    incarnation: int = field(default_factory=_new_incarnation)
    claims: frozenset[Claim] = frozenset()  # generations to supersede, besides those that the folder knows


def promote_folder(folder: StoppedFolder, survivor: Survivor, plan: PromotionPlan | None = None) -> Identity:
    """Make the folder that of the master of a new generation, which begins with its log.

    Returns its new identity.

    `survivor` is the result of `inspect` under the same lock. Without a plan no other node was told. Raises:
    BrokerGroupRecoveryError, OSError.
    """
    plan, identity = plan or PromotionPlan(), folder.identity
    if identity.reign is None or not identity.group_id or identity.successor is not None:
        raise BrokerGroupRecoveryError(
            f"{identity.node_id} cannot be promoted: its folder is not that of a node of a broker group with "
            "a master, or was never part of one; nothing was changed."
        )
    claim = claim_of(identity, plan, survivor.last_index)
    return _begin_anew(folder, survivor, plan.incarnation, claim.reign)


def claim_of(identity: Identity, plan: PromotionPlan, last_index: LogIndex) -> Claim:
    """Return the generation that a folder begins under this plan."""
    assert identity.reign is not None
    others = (*identity.claims, *plan.claims)
    return Claim(
        group_id=group_id_of(identity.cluster_id, identity.group, {identity.node_id: plan.incarnation}),
        reign=identity.reign.next(identity.node_id, identity.group_id, last_index, others),
    )


def _begin_anew(
    folder: StoppedFolder, survivor: Survivor, incarnation: int, reign: Reign | None = None
) -> Identity:
    """Begin a broker group with this folder's log.

    With `reign` it works at once, else it waits for its copies.
    """
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
    """Return the highest term that elections can have reached.

    Votes of the old broker group do not count in the new one.

    A stored term far above the log came from a damaged or forged message. This is how to get rid of it.
    """
    if last_term > LAST_TERM - MAX_TERM_JUMP:
        raise BrokerGroupRecoveryError(
            f"the last entry of the log has term {last_term}, behind which no leader can be elected: a "
            "damaged or forged message brought it. Make a new broker group from a dump; nothing was changed."
        )
    return Term(max(stored, last_term)) if stored <= last_term + MAX_TERM_JUMP else last_term


def clone_folder(folder: StoppedFolder, node_id: NodeId, survivor: Survivor) -> Identity:
    """Turn a copy of a recovered folder into another member's folder. Returns its identity.

    The caller has made the copied files durable. Raises: BrokerGroupRecoveryError (not recovered, not a copy
    of the whole log, a member that already votes, no such member), OSError.
    """
    old = folder.identity
    recovery = check_cloneable(folder, node_id)
    if (survivor.last_index, survivor.last_crc) != (recovery.last_index, recovery.last_crc):
        raise BrokerGroupRecoveryError(
            f"the log in {folder.data} ends at entry {survivor.last_index}, that of the recovered folder at "
            f"entry {recovery.last_index}: the copy is not whole, or the folder was started since. Copy it "
            "again; nothing was changed."
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
    """Return how the folder was recovered.

    Raises: BrokerGroupRecoveryError if no copy of it may become `node_id`'s folder.
    """
    identity, recovery = folder.identity, folder.recovery
    if recovery is None:
        raise BrokerGroupRecoveryError(
            f"broker group {identity.group} was not recovered in this folder: a copy of a voter's folder "
            "must not vote as another node. Run `ledgermq cluster recover --data DIR` on the survivor's "
            "folder first; nothing was changed."
        )
    if recovery.counted:
        raise BrokerGroupRecoveryError(
            f"{identity.node_id} votes in the recovered broker group {identity.group} by now, so a copy of "
            f"its folder must not become {node_id}'s. Start {node_id} with an empty folder: ledgermq broker "
            "--rejoin; nothing was changed."
        )
    if node_id not in identity.members:
        raise BrokerGroupRecoveryError(
            f"there is no node {node_id} in broker group {identity.group} (its nodes are "
            f"{', '.join(sorted(identity.members))}); nothing was changed."
        )
    if node_id == identity.node_id:
        raise BrokerGroupRecoveryError(
            f"this folder is {node_id}'s already. Name another node, and the copy that is for it; nothing "
            "was changed."
        )
    return recovery


def _settle(folder: StoppedFolder) -> None:
    """Do what a start does: finish pending work, make the end of the log durable and record that."""
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
    """Replace the identity, which decides the change, then finish what follows from it."""
    write_identity(folder.files, folder.folders.identity, identity)
    folder.identity = finish_recovery(folder.files, folder.folders.identity, identity, folder.hard)
    return folder.identity

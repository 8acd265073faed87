"""Recovery of a broker group from a survivor's folder: reports, refusals, no state between old and new."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from ledgermq.proto.entry import decode_header
from ledgermq.raft.errors import (
    BrokerGroupRecoveryError,
    DamagedLogError,
    DataFolderError,
    LockedFolderError,
    NewerFolderError,
)
from ledgermq.raft.folder.group_recovery import (
    clone_folder,
    finish_recovery,
    inspect,
    recover_folder,
    stopped_folder,
)
from ledgermq.raft.folder.opening import is_learner, open_node_storage
from ledgermq.raft.folder.quarantine import MARKER, rejoin
from ledgermq.raft.folder.storage import RaftStorage, open_storage
from ledgermq.raft.log.hard_state import BLOCK, HardStateFile
from ledgermq.raft.log.identity import REJOINED_MARK, Identity, read_identity, write_identity
from ledgermq.raft.log.rewrite import StoppedLog
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, Stored, node_config, storage_config
from ..simulated_disk import SimulatedDisk, crashes, power_back

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
OLD_GROUP_ID = 77


def survivor_disk(
    *, clean: bool = True, entries: int = 30, seed: int = 1
) -> tuple[SimulatedDisk, list[Stored]]:
    """A stopped voter of a broker group of three, with entries of terms 2 and 3 in several segments."""
    disk, rng = SimulatedDisk(), random.Random(seed)
    rig = LogRig(disk)
    rig.storage.learn_members({N2: 22, N3: 33})
    rig.storage.learn_group_id(OLD_GROUP_ID)
    for number in range(entries):
        rig.append_random(rng, term=2 if number < entries // 2 else 3)
        if number % 4 == 0:
            rig.flush()
    rig.persist(HardState(Term(5), N3, LogIndex(entries - 3)))
    rig.flush()
    rig.close(clean=clean)
    return (disk if clean else disk.crash(rng, Keep.NONE)), rig.entries


def recover(disk: SimulatedDisk) -> Identity:
    with stopped_folder(DATA, disk) as folder:
        return recover_folder(folder, inspect(folder))


def clone(disk: SimulatedDisk, node: NodeId) -> Identity:
    with stopped_folder(DATA, disk) as folder:
        return clone_folder(folder, node, inspect(folder))


def opened(disk: SimulatedDisk, node: NodeId = N1) -> RaftStorage:
    return open_storage(replace(storage_config(), node_id=node), disk)


def entries_of(storage: RaftStorage) -> list[tuple[int, int]]:
    log = storage.log
    indexes = range(log.first_index, log.last_index + 1)
    headers = [asyncio.run(log.header_at(LogIndex(index))) for index in indexes]
    return [(header.index, header.term) for header in headers if header]


@pytest.mark.parametrize("clean", [True, False])
def test_looking_shows_what_the_folder_holds_and_changes_nothing(clean: bool) -> None:
    disk, entries = survivor_disk(clean=clean)
    before = disk.contents()
    with stopped_folder(DATA, disk) as folder:
        found = inspect(folder)
    assert (found.last_index, found.last_term) == (entries[-1].index, entries[-1].term)
    assert (found.term, found.commit_hint, found.votes) == (5, entries[-1].index - 3, True)
    assert found.last_timestamp == len(entries)
    assert found.identity.members.keys() == {N1, N2, N3}
    assert disk.contents() == before
    assert not disk.locked


def test_looking_at_a_torn_tail_tells_its_size_and_leaves_it() -> None:
    disk, entries = survivor_disk()
    rig = LogRig(disk)
    position, path = (
        rig.log.end_offset % SEGMENT,
        DATA / "commitlog" / f"{rig.log.end_offset // SEGMENT * SEGMENT:020d}",
    )
    rig.close(clean=False)
    file = disk.open(path)
    file.pwritev([b"never finished"], position)
    file.fdatasync()
    before = disk.contents()
    with stopped_folder(DATA, disk) as folder:
        found = inspect(folder)
    assert (found.last_index, found.torn_bytes) == (entries[-1].index, len(b"never finished"))
    assert disk.contents() == before
    recover(disk)
    assert opened(disk).log.last_index == entries[-1].index


def test_the_recovered_folder_keeps_its_log_and_belongs_to_a_new_group() -> None:
    disk, entries = survivor_disk()
    old = read_identity(disk, DATA / "identity", "n1")
    made = recover(disk)
    with pytest.raises(BrokerGroupRecoveryError, match=r"already.*--clone-for"):
        recover(disk)
    storage = opened(disk)
    assert entries_of(storage) == [(entry.index, entry.term) for entry in entries]
    assert made.incarnation != old.incarnation
    assert made.group_id not in (0, OLD_GROUP_ID)
    assert made.members == {N1: made.incarnation, N2: 0, N3: 0}
    assert made.recovery is not None
    assert (made.recovery.replaced_group_id, made.recovery.counted) == (OLD_GROUP_ID, False)
    state = storage.hard_state
    assert (state.term, state.voted_for, state.is_voter) == (6, None, False)
    assert not is_learner(storage)


def test_a_clone_has_the_same_log_and_group_and_an_incarnation_of_its_own() -> None:
    disk, entries = survivor_disk(clean=False)
    first, made = recover(disk), dict[NodeId, Identity]()
    for node in (N2, N3):
        copy = disk.copy()
        made[node] = clone(copy, node)
        storage = opened(copy, node)
        assert entries_of(storage) == [(entry.index, entry.term) for entry in entries]
        assert (storage.hard_state.term, storage.hard_state.is_voter) == (6, False)
    assert len({first.incarnation, *(each.incarnation for each in made.values())}) == 3
    assert {each.group_id for each in made.values()} == {first.group_id}
    assert made[N2].members == {N1: 0, N2: made[N2].incarnation, N3: 0}


def _in_term(term: int, *, log_term: int = 3) -> SimulatedDisk:
    """The survivor's folder after its node accepted a term that no election leads to."""
    disk = SimulatedDisk()
    rig = LogRig(disk)
    rig.storage.learn_members({N2: 22, N3: 33})
    rig.storage.learn_group_id(OLD_GROUP_ID)
    rig.append_random(random.Random(1), term=log_term)
    rig.persist(HardState(Term(term), None, LogIndex(1)))
    rig.flush()
    rig.close(clean=True)
    return disk


@pytest.mark.parametrize("term", [(1 << 64) - 1, 1 << 62])
def test_recovery_is_the_way_back_from_a_term_that_no_election_leads_to(term: int) -> None:
    disk = _in_term(term)
    recover(disk)
    with stopped_folder(DATA, disk) as folder:
        assert folder.hard.state.hard.term == 4


def test_a_log_whose_last_term_is_the_last_of_all_is_not_recovered_and_unchanged() -> None:
    disk = _in_term((1 << 64) - 1, log_term=(1 << 64) - 1)
    before = disk.contents()
    with pytest.raises(BrokerGroupRecoveryError, match="from a dump"):
        recover(disk)
    assert disk.contents() == before


def test_a_node_with_a_term_behind_the_last_one_does_not_start_and_says_what_to_do() -> None:
    disk = _in_term((1 << 64) - 1)
    with pytest.raises(DataFolderError, match="cluster recover"):
        open_node_storage(node_config("n1"), disk)


@pytest.mark.parametrize("term", [(1 << 64) - 1, 1 << 62], ids=["behind the last one", "far ahead"])
@pytest.mark.parametrize("asked", [False, True], ids=["by the flag", "by the file"])
def test_a_rejoin_is_the_way_back_from_a_term_that_no_election_leads_to(term: int, asked: bool) -> None:
    disk = _in_term(term)
    if asked:
        disk.open(DATA / MARKER, create=True).close()
    storage = open_node_storage(node_config("n1", "n2", "n3", rejoin=not asked), disk)
    assert storage.hard_state == HardState(Term(0), None, LogIndex(0), is_voter=False)
    assert storage.identity.members[N1] == REJOINED_MARK and is_learner(storage)


Step = Callable[[SimulatedDisk], Identity]


def crash_everywhere(disk: SimulatedDisk, change: Step, check: Callable[[SimulatedDisk], str]) -> set[str]:
    """Cut the power at each file operation of `change`. Returns the outcomes according to `check`."""
    found = [check(after) for keep in Keep for after in crashes(disk.copy, change, power_back(keep))]
    assert len(found) > 5 * len(Keep)
    return set(found)


@pytest.mark.parametrize("clean", [True, False])
def test_a_crash_at_any_file_operation_leaves_the_old_folder_or_the_new_one(clean: bool) -> None:
    disk, entries = survivor_disk(clean=clean, entries=12)
    old = read_identity(disk, DATA / "identity", "n1")

    def check(after: SimulatedDisk) -> str:
        storage = opened(after)
        state, identity = storage.hard_state, storage.identity
        assert entries_of(storage) == [(entry.index, entry.term) for entry in entries]
        if identity.incarnation == old.incarnation:
            assert (state.term, state.voted_for, state.is_voter) == (5, N3, True)
            assert (identity.group_id, identity.recovery) == (OLD_GROUP_ID, None)
            return "old"
        assert (state.term, state.voted_for, state.is_voter) == (6, None, False)
        assert identity.group_id not in (0, OLD_GROUP_ID)
        assert not is_learner(storage)
        return "new"

    assert crash_everywhere(disk, recover, check) == {"old", "new"}


def test_a_crash_while_a_clone_is_made_leaves_the_copy_or_the_clone() -> None:
    disk, entries = survivor_disk(entries=12)
    first = recover(disk)

    def check(after: SimulatedDisk) -> str:
        identity = read_identity(after, DATA / "identity", "n1")
        storage = opened(after, identity.node_id)
        assert entries_of(storage) == [(entry.index, entry.term) for entry in entries]
        assert (storage.hard_state.term, storage.hard_state.is_voter) == (6, False)
        assert (identity.node_id == N1) == (identity.incarnation == first.incarnation)
        return str(identity.node_id)

    assert crash_everywhere(disk, lambda victim: clone(victim, N2), check) == {"n1", "n2"}


def test_an_interrupted_recovery_is_finished_by_whatever_opens_the_folder_next() -> None:
    disk, _ = survivor_disk()
    hard_state = bytes(disk.names[DATA / "hardstate"].current)
    made = recover(disk)
    disk.names[DATA / "hardstate"].current[:] = hard_state  # as if it had not been written
    disk.names[DATA / "hardstate"].durable[:] = hard_state
    copy = disk.copy()
    with pytest.raises(BrokerGroupRecoveryError, match="recovered in this folder already"):
        recover(disk)
    assert clone(copy, N2).group_id == made.group_id
    assert opened(copy, N2).hard_state.term == 6
    assert opened(disk).hard_state.term == 6


def _vote(disk: SimulatedDisk, *, again: bool = True) -> None:
    """Let the recovered folder take part as a voter and restart once, which records that in its identity."""
    rig = LogRig(disk)
    rig.persist(HardState(Term(7), N1, rig.log.last_index))
    rig.flush()
    rig.close()
    if again:
        LogRig(disk).close()


@pytest.mark.parametrize("again", [True, False])
def test_a_folder_that_votes_in_the_recovered_group_makes_no_clones(again: bool) -> None:
    disk, _ = survivor_disk()
    recover(disk)
    _vote(disk, again=again)
    before = disk.contents()
    with pytest.raises(
        BrokerGroupRecoveryError, match=r"votes in the recovered broker group g0 by now.*--rejoin"
    ):
        clone(disk, N2)
    assert disk.contents() == before


def _without_boot(disk: SimulatedDisk) -> RaftStorage:
    """Open after a power cut, in an async flush mode."""
    file = HardStateFile.open(disk, DATA / "hardstate")
    file.write(replace(file.state, boot_id="00000000-0000-0000-0000-0000000000ff"))
    return open_storage(replace(storage_config(flush="async_timed"), learner_after_reboot=True), disk)


def test_a_first_member_that_lost_its_vote_later_is_a_learner_and_not_new() -> None:
    """An async flush mode and a reboot take the vote away: acknowledged entries may be lost (D7)."""
    disk, _ = survivor_disk()
    recover(disk)
    rig = LogRig(disk)
    rig.persist(HardState(Term(7), N1, rig.log.last_index))
    rig.flush()
    rig.close(clean=False)
    storage = _without_boot(disk)
    assert not storage.hard_state.is_voter
    assert is_learner(storage)


def test_a_first_member_that_never_voted_is_still_one_after_a_power_cut() -> None:
    """The others may know it by its incarnation, and would refuse another one.

    It has promised nothing yet.
    """
    disk, _ = survivor_disk()
    identity = recover(disk)
    LogRig(disk).close(clean=False)
    storage = _without_boot(disk)
    assert storage.recovered.rebooted_unclean
    assert storage.incarnation == identity.incarnation
    assert not is_learner(storage)


def test_a_first_member_whose_vote_a_failed_write_took_is_a_learner_and_not_new() -> None:
    """In the run in which it began to vote: no start has recorded that yet."""
    disk, _ = survivor_disk()
    recover(disk)
    rig = LogRig(disk, flush="async_timed", learner_after_reboot=True)
    assert not is_learner(rig.storage)
    term = rig.storage.hard_state.term
    rig.persist(HardState(term, N1, rig.log.last_index))  # it votes
    rig.persist(HardState(Term(term + 1), N2, rig.log.last_index))  # and a leader was elected
    rig.flush()
    rig.storage.note_failure()
    after = opened(disk.killed())
    assert not after.hard_state.is_voter
    assert is_learner(after)


def test_a_hard_state_that_is_not_of_the_recovered_folder_is_left_alone() -> None:
    """Another change of the incarnation later: the term of the recovery must not replace a later term."""
    disk, _ = survivor_disk()
    identity = recover(disk)
    hard = HardStateFile.open(disk, DATA / "hardstate")
    later = replace(
        hard.state, incarnation=identity.incarnation ^ 2, hard=HardState(Term(99), N2, LogIndex(1))
    )
    hard.write(later)
    finish_recovery(disk, DATA / "identity", identity, hard)
    assert HardStateFile.open(disk, DATA / "hardstate").state == later


@pytest.mark.parametrize("again", [True, False])
def test_a_recovered_group_can_be_recovered_again(again: bool) -> None:
    disk, _ = survivor_disk()
    first = recover(disk)
    _vote(disk, again=again)
    second = recover(disk)
    assert second.group_id != first.group_id
    assert second.recovery is not None
    assert second.recovery.replaced_group_id == first.group_id


def test_a_node_that_rejoins_forgets_the_recovery() -> None:
    disk, _ = survivor_disk()
    recover(disk)
    rejoin(storage_config(), disk)
    storage = opened(disk)
    assert storage.identity.recovery is None
    assert storage.log.last_index == 0


# --- refusals -----------------------------------------------------------------------------------------------


def _flip(disk: SimulatedDisk, name: str, *positions: int) -> None:
    for position in positions:
        disk.flip(DATA / name, position)


def _damage_entry(disk: SimulatedDisk) -> None:
    segment = DATA / "commitlog" / f"{0:020d}"
    header = decode_header(bytes(disk.names[segment].current[:64]))
    disk.flip(segment, header.size + 70)


def _damage_hard_state(disk: SimulatedDisk) -> None:
    for block in range(4):
        disk.flip(DATA / "hardstate", block * BLOCK + 30)


def _older_tail(disk: SimulatedDisk) -> None:
    """The last segment with entries, as it was before anything was written to it."""
    segments = sorted(path for path in disk.names if path.parent.name == "commitlog")
    filled = [path for path in segments if any(disk.names[path].current[:SEGMENT])]
    for data in (disk.names[filled[-1]].current, disk.names[filled[-1]].durable):
        data[:] = bytes(len(data))


def test_a_first_member_that_lost_a_part_of_its_log_is_a_learner_and_not_new() -> None:
    """It has another incarnation since. As a new member it would be refused by the nodes that it had met."""
    disk, _ = survivor_disk()
    identity = recover(disk)
    _older_tail(disk)
    with pytest.raises(DamagedLogError) as refusal:
        opened(disk)
    assert refusal.value.damage is not None
    disk.locked.clear()
    stopped = StoppedLog("n1", disk, LogFolders(DATA), SEGMENT)
    stopped.give_up_vote(*stopped.begin(refusal.value.damage))
    storage = opened(disk)
    assert storage.incarnation != identity.incarnation
    assert is_learner(storage)


def _newer_identity(disk: SimulatedDisk) -> None:
    inode = disk.names[DATA / "identity"]
    for data in (inode.current, inode.durable):
        data[:] = data.replace(b"LMQ identity 4 ", b"LMQ identity 9 ")


def _alone(disk: SimulatedDisk) -> None:
    identity = read_identity(disk, DATA / "identity", "n1")
    write_identity(disk, DATA / "identity", replace(identity, members={N1: identity.incarnation}))


def _mixed(disk: SimulatedDisk) -> None:
    identity = read_identity(disk, DATA / "identity", "n1")
    write_identity(disk, DATA / "identity", replace(identity, incarnation=identity.incarnation ^ 2))


REFUSED: list[tuple[str, Callable[[SimulatedDisk], object], type[Exception], str]] = [
    ("in use", lambda disk: disk.lock(DATA / "lock"), LockedFolderError, "in use .*Stop that node first"),
    ("not a folder", lambda disk: disk.unlink(DATA / "identity"), BrokerGroupRecoveryError,
    "is not a node's data folder"),
    ("identity", lambda disk: _flip(disk, "identity", 60, 4156), BrokerGroupRecoveryError,
    "identity is damaged.*another node"),
    ("manifest", lambda disk: _flip(disk, "manifest", 60, 4156), BrokerGroupRecoveryError,
    "manifest is damaged.*another node"),
    ("manifest gone", lambda disk: disk.unlink(DATA / "manifest"), BrokerGroupRecoveryError,
    "manifest is missing"),
    ("hard state", _damage_hard_state, BrokerGroupRecoveryError, "hardstate is damaged.*another node"),
    ("hard state gone", lambda disk: disk.unlink(DATA / "hardstate"), BrokerGroupRecoveryError,
    "hardstate is missing"),
    ("an entry", _damage_entry, BrokerGroupRecoveryError,
    "is damaged at byte .*ledgermq dump --data /data/n1"),
    ("lost flush", _older_tail, BrokerGroupRecoveryError, "damaged at byte|ends at entry"),
    ("newer", _newer_identity, NewerFolderError, "format version 9"),
    ("a repair", lambda disk: disk.open(DATA / "repair", create=True), BrokerGroupRecoveryError,
    "under way.*Start n1 once"),
    ("a reset", lambda disk: disk.open(DATA / "reset/marker", create=True), BrokerGroupRecoveryError,
    "not finished"),
    ("alone", _alone, BrokerGroupRecoveryError, "never met another member"),
    ("asked to move", lambda disk: disk.open(DATA / MARKER, create=True), BrokerGroupRecoveryError,
    "remove that file"),
    ("mixed", _mixed, BrokerGroupRecoveryError, "another incarnation"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoil", "error", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_cannot_be_recovered_is_refused_with_the_reason_and_unchanged(
    spoil: Callable[[SimulatedDisk], object], error: type[Exception], words: str
) -> None:
    disk, _ = survivor_disk()
    spoil(disk)
    before = disk.contents()
    with pytest.raises(error, match=words) as refused:
        recover(disk)
    assert "nothing was changed" in str(refused.value)
    assert disk.contents() == before


def test_a_damaged_entry_is_found_although_the_last_stop_was_clean() -> None:
    """A start after a clean stop trusts the index files.

    A folder that is to become the whole group is read completely.
    """
    disk, _ = survivor_disk(clean=True)
    _damage_entry(disk)
    opened(disk).close(clean=True)
    with (
        pytest.raises(BrokerGroupRecoveryError, match="is damaged at byte"),
        stopped_folder(DATA, disk) as folder,
    ):
        inspect(folder)


def _recovered() -> SimulatedDisk:
    disk, _ = survivor_disk()
    recover(disk)
    return disk


@pytest.mark.parametrize(
    ("make", "node", "words"),
    [
        (lambda: survivor_disk()[0], N2, "was not recovered in this folder"),
        (_recovered, NodeId("n9"), r"there is no node n9 in broker group g0 \(its nodes are n1, n2, n3\)"),
        (_recovered, N1, "this folder is n1's already"),
    ],
    ids=["not recovered", "unknown node", "its own"],
)
def test_a_wrong_clone_is_refused(make: Callable[[], SimulatedDisk], node: NodeId, words: str) -> None:
    disk = make()
    before = disk.contents()
    with pytest.raises(BrokerGroupRecoveryError, match=words):
        clone(disk, node)
    assert disk.contents() == before


def test_a_copy_that_lacks_the_last_entry_is_refused() -> None:
    disk = _recovered()
    rig = LogRig(disk)
    rig.truncate(rig.log.last_index)
    rig.flush()
    rig.close()
    with pytest.raises(BrokerGroupRecoveryError, match=r"the copy is not whole.*Copy it again"):
        clone(disk, N2)

"""Quarantine: a folder is moved aside whole, and an empty one takes its place, whatever crashes occur."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from ledgermq.raft.core.reign import Reign, Replication
from ledgermq.raft.disk.files import FileSystem, Lock
from ledgermq.raft.errors import (
    DamagedFolderError,
    DataFolderError,
    ForeignFolderError,
    LockedFolderError,
    NewerFolderError,
)
from ledgermq.raft.folder import quarantine
from ledgermq.raft.folder.opening import is_learner, open_node_storage
from ledgermq.raft.folder.quarantine import MARKER, RECORD, finish_rejoin, is_under_way, rejoin
from ledgermq.raft.folder.storage import RaftStorage, create_data_folder, lock_folder
from ledgermq.raft.log.identity import REJOINED_MARK
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.power_cut import Keep

from ..log_rig import DATA, SEGMENT, LogRig, node_config, storage_config
from ..simulated_disk import After, PowerCut, SimulatedDisk, crashes, power_back

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
FIRST = Reign(master=N1)
SECOND = FIRST.next(N2, 77, LogIndex(9))
KEPT = DATA / "quarantine-1"


def master_disk(*, left_behind: bool) -> SimulatedDisk:
    """Folder of n1, the first master, with entries of term 4 and the vote of term 5."""
    disk = SimulatedDisk()
    create_data_folder(replace(storage_config(), reign=FIRST), disk)
    rig = LogRig(disk)
    rig.storage.learn_members({N2: 22, N3: 33})
    rig.storage.learn_group_id(77)
    rng = random.Random(1)
    for _ in range(12):
        rig.append_random(rng, term=4)
    rig.persist(HardState(Term(5), N1, LogIndex(9)))
    rig.flush()
    if left_behind:
        rig.storage.learn_successor(SECOND)
    rig.close(clean=False)
    return disk.crash(rng, Keep.ALL)  # all of it is on the platter


def left_behind() -> SimulatedDisk:
    return master_disk(left_behind=True)


def opened(disk: SimulatedDisk, *, flag: bool = False) -> RaftStorage:
    config = node_config("n1", "n2", "n3", replication=Replication.ASYNC_MASTER, master="n1", rejoin=flag)
    return open_node_storage(config, disk, settings=replace(storage_config(), reign=FIRST))


def ask(disk: SimulatedDisk) -> None:
    """Do what an operator does: touch do-rejoin."""
    disk.make_directory(DATA)
    disk.open(DATA / MARKER, create=True).close()
    disk.sync_directory(DATA)


def check_moved(storage: RaftStorage, disk: SimulatedDisk, old: dict[str, bytes], reign: Reign) -> None:
    identity, hard = storage.identity, storage.hard_state
    assert (identity.reign, identity.successor, identity.complete) == (reign, None, True)
    assert identity.members[N1] == REJOINED_MARK and is_learner(storage)
    assert (hard.term, hard.voted_for, hard.is_voter) == (5, "n1", False)
    assert storage.log.last_index == 0
    kept = disk.contents(KEPT)
    assert kept.keys() >= old.keys(), "all of the old folder is in one quarantine"
    for (
        name,
        raw,
    ) in old.items():  # a start with the flag reads the folder first: it records that, but not in the entries
        if name != "hardstate":
            assert kept[name][:SEGMENT] == raw[:SEGMENT], name
    assert not any(name.startswith("quarantine-2") for name in disk.contents(DATA))
    assert not is_under_way(DATA, disk)


KILLED: After = SimulatedDisk.killed
LOST, SOME, WRITTEN = map(power_back, (Keep.NONE, Keep.ANY, Keep.ALL))


def crashed(reached: Callable[[SimulatedDisk], bool], whole: SimulatedDisk | None = None) -> SimulatedDisk:
    """Return what a start of a superseded node leaves that is killed once it has got so far."""
    make = (whole or left_behind()).copy
    return next(disk for disk in crashes(make, opened, KILLED) if reached(disk))


def begun() -> SimulatedDisk:
    """A folder with a decided move."""
    return crashed(lambda disk: is_under_way(DATA, disk))


def interrupted() -> SimulatedDisk:
    """A folder whose identity, the last of its files, was moved."""
    return crashed(lambda disk: not disk.exists(DATA / "identity"))


def asked() -> SimulatedDisk:
    disk = master_disk(left_behind=False)
    ask(disk)
    return disk


@pytest.mark.parametrize(
    "after",
    [KILLED, LOST, SOME, WRITTEN],
    ids=["killed", "power cut", "power cut, some written", "power cut, all written"],
)
def test_a_folder_that_was_left_behind_is_moved_whole_whatever_step_is_the_last_before_a_crash(
    after: After,
) -> None:
    whole, steps = left_behind(), 0
    old = whole.contents(DATA)
    for disk in crashes(whole.copy, opened, after):
        steps += 1
        check_moved(opened(disk), disk, old, SECOND)
    assert steps > 20, "every operation was cut once"


@pytest.mark.parametrize("after", [KILLED, LOST, SOME], ids=["killed", "power cut", "some written"])
def test_a_second_crash_changes_nothing(after: After) -> None:
    whole = left_behind()
    old = whole.contents(DATA)
    for steps in product(range(1, 40, 4), repeat=2):
        disk = whole.copy()
        for step in steps:
            disk.cut_power_at(disk.steps + step)
            with suppress(PowerCut):
                opened(disk)
                break
            disk = after(disk)
        else:
            check_moved(opened(disk), disk, old, SECOND)


@pytest.mark.parametrize(
    "after", [KILLED, LOST, WRITTEN], ids=["killed", "power cut", "power cut, all written"]
)
def test_a_rejoin_that_was_begun_needs_no_flag_to_go_on(after: After) -> None:
    """Until the decision the folder is the old one, afterwards the new one.

    The flag is never needed again.
    """
    whole, moved = master_disk(left_behind=False), 0
    old = whole.contents(DATA)
    for disk in crashes(whole.copy, partial(opened, flag=True), after):
        storage = opened(disk)
        if storage.log.last_index:
            assert not moved, "a decision is never taken back"
            assert storage.identity.reign == FIRST and storage.hard_state.is_voter
        else:
            moved += 1
            check_moved(storage, disk, old, FIRST)
    assert moved > 15


@pytest.mark.parametrize("after", [KILLED, SOME], ids=["killed", "power cut, some written"])
def test_a_file_of_an_operator_asks_for_one_rejoin_whatever_step_is_the_last_before_a_crash(
    after: After,
) -> None:
    whole, steps, asked_again = asked(), 0, 0
    old = whole.contents(DATA)
    for disk in crashes(whole.copy, opened, after):
        steps += 1
        asked_again += disk.exists(DATA / MARKER) and not is_under_way(DATA, disk)
        storage = opened(disk)
        check_moved(storage, disk, old, FIRST)
        made = storage.incarnation
        storage.close(clean=True)
        again = opened(disk)
        assert again.incarnation == made, "it is used up"
        assert not disk.exists(DATA / MARKER) and disk.exists(KEPT / MARKER)
        again.close(clean=True)
    assert steps > 20 and asked_again, "every operation was cut once, also before anything was decided"


def test_a_file_of_an_operator_also_gives_up_the_folder_of_a_rejoin_and_an_empty_one() -> None:
    disk = master_disk(left_behind=False)
    opened(disk, flag=True).close(clean=True)
    ask(disk)
    opened(disk).close(clean=True)
    assert disk.exists(DATA / "quarantine-2" / MARKER) and not disk.exists(DATA / MARKER)
    empty = SimulatedDisk()
    ask(empty)
    storage = opened(empty)
    assert is_learner(storage) and empty.exists(KEPT / MARKER), "an empty disk under a known name"


def test_a_node_alone_says_which_file_asks_for_what_nobody_can_give() -> None:
    disk = asked()
    alone = node_config("n1", replication=Replication.ASYNC_MASTER, master="n1")
    with pytest.raises(DataFolderError, match=f"removed {DATA / MARKER}"):
        open_node_storage(alone, disk, settings=replace(storage_config(), reign=FIRST))


def test_the_new_folder_is_never_moved_after_the_old_one() -> None:
    disk = left_behind()
    opened(disk).close(clean=False)
    again = opened(disk)
    assert again.log.last_index == 0 and not any("quarantine-2" in name for name in disk.contents(DATA))
    again.close()
    assert rejoin(replace(storage_config(), reign=SECOND), disk) == DATA / "quarantine-2"


def test_a_folder_without_an_identity_is_still_that_of_its_node() -> None:
    disk = interrupted()
    before = disk.contents(DATA)
    with pytest.raises(ForeignFolderError, match="belongs to cluster local"):
        finish_rejoin(replace(storage_config(), cluster_id="other"), disk)
    with pytest.raises(ForeignFolderError, match="node n1 of broker group g0"):
        finish_rejoin(replace(storage_config(), node_id=N2), disk)
    assert disk.contents(DATA) == before


def test_a_record_that_cannot_be_read_is_refused_and_the_flag_begins_anew() -> None:
    disk = interrupted()
    disk.flip(DATA / RECORD, 40)
    with pytest.raises(DamagedFolderError, match="ledgermq broker --rejoin"):
        opened(disk)
    storage = opened(disk, flag=True)
    assert is_learner(storage) and storage.log.last_index == 0 and not is_under_way(DATA, disk)


def test_a_record_of_a_newer_build_is_refused() -> None:
    disk = interrupted()
    raw = bytes(disk.names[DATA / RECORD].current)
    assert raw.startswith(b"LMQ rejoin 2 ")
    disk.names[DATA / RECORD].current[:] = raw.replace(b"rejoin 2 ", b"rejoin 3 ", 1)
    with pytest.raises(NewerFolderError):
        opened(disk, flag=True)


def test_what_stands_in_the_way_in_the_quarantine_is_kept() -> None:
    whole = left_behind()
    old = whole.contents(DATA)
    disk = crashed(lambda disk: disk.exists(KEPT / "hardstate"), whole)
    file = disk.open(DATA / "hardstate", create=True)  # a person looked, and it was created again
    file.pwritev([b"another"], 0)
    storage = opened(disk)
    check_moved(storage, disk, old, SECOND)
    assert disk.contents(KEPT)["hardstate-2"] == b"another"


@pytest.mark.parametrize(
    ("kept", "new"),
    [(["quarantine-2"], "quarantine-3"), (["quarantine-3", "quarantine-of-monday"], "quarantine-4")],
)
def test_a_quarantine_that_is_there_takes_no_second_folder(kept: list[str], new: str) -> None:
    """People delete some of them, keep others, and rename them."""
    disk = left_behind()
    for name in kept:
        disk.make_directory(DATA / name)
        file = disk.open(DATA / name / "identity", create=True)
        file.pwritev([b"older"], 0)
        file.close()
    opened(disk).close(clean=False)
    assert [disk.contents(DATA / name) for name in kept] == [{"identity": b"older"}] * len(kept)
    assert "identity" in disk.contents(DATA / new)


@pytest.mark.parametrize("begin", [begun, left_behind, asked])
def test_a_start_that_waited_for_another_one_moves_nothing_of_what_that_made(
    begin: Callable[[], SimulatedDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that it saw before it had the lock is in the quarantine by now."""
    disk, made = begin(), list[int]()

    def lock(node: str, folder: Path, files: FileSystem) -> Lock:
        monkeypatch.undo()
        other = opened(disk)
        made.append(other.incarnation)
        other.close(clean=True)
        return lock_folder(node, folder, files)

    monkeypatch.setattr(quarantine, "lock_folder", lock)
    storage = opened(disk)
    assert [storage.incarnation] == made
    assert not any(name.startswith("quarantine-2") for name in disk.contents(DATA))


def test_a_move_that_another_start_began_is_finished_and_not_decided_anew() -> None:
    """The record has the term and vote, which the rest of the folder lacks."""
    disk = interrupted()
    assert rejoin(replace(storage_config(), reign=FIRST), disk) == KEPT
    storage = opened(disk)
    assert (storage.hard_state.term, storage.hard_state.voted_for, storage.identity.reign) == (
        5,
        "n1",
        SECOND,
    )


def test_nobody_else_has_the_folder_before_it_is_whole() -> None:
    disk, free = begun(), list[str]()

    def look(_number: int, operation: str, path: Path) -> None:
        disk.on_step = None
        if is_under_way(DATA, disk):
            try:
                lock_folder(N1, DATA, disk).release()
            except LockedFolderError:
                pass
            else:
                free.append(f"{operation} {path}")
        disk.on_step = look

    disk.on_step = look
    finish_rejoin(storage_config(), disk)
    disk.on_step = None
    assert not free

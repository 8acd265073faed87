"""Quarantine: a folder is moved aside whole, and an empty one takes its place, whatever crashes occur."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.raft.config import Member, RaftConfig
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

from ..log_rig import DATA, SEGMENT, LogRig, storage_config
from ..simulated_disk import PowerCut, SimulatedDisk

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
FIRST = Reign(master=N1)
SECOND = FIRST.next(N2, 77, LogIndex(9))
KEPT = DATA / "quarantine-1"
Act = Callable[[SimulatedDisk], RaftStorage]
After = Callable[[SimulatedDisk], SimulatedDisk]


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


def opened(disk: SimulatedDisk, *, flag: bool = False) -> RaftStorage:
    config = RaftConfig(
        cluster_id="local", group="g0", node_id=N1, members=tuple(Member(n, f"{n}:1") for n in (N1, N2, N3)),
        data_dir=DATA, segment_size=SEGMENT, replication=Replication.ASYNC_MASTER, master="n1", rejoin=flag,
    )  # fmt: skip
    return open_node_storage(config, disk, settings=replace(storage_config(), reign=FIRST))


def ask(disk: SimulatedDisk) -> None:
    """Do what an operator does: touch do-rejoin."""
    disk.make_directory(DATA)
    disk.open(DATA / MARKER, create=True).close()
    disk.sync_directory(DATA)


def contents(disk: SimulatedDisk, folder: Path = DATA) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): bytes(inode.current)
        for path, inode in disk.names.items()
        if folder in path.parents
    }


def crash_in(disk: SimulatedDisk, step: int, act: Act) -> bool:
    """Run up to operation `step` of the disk from now on. Returns whether it got that far."""
    last = disk.steps + step

    def die(number: int, _operation: str, _path: Path) -> None:
        if number == last:
            raise PowerCut

    disk.on_step = die
    try:
        act(disk).close(clean=False)
    except PowerCut:
        return True
    finally:
        disk.on_step = None
    return False


def check_moved(storage: RaftStorage, disk: SimulatedDisk, old: dict[str, bytes], reign: Reign) -> None:
    identity, hard = storage.identity, storage.hard_state
    assert (identity.reign, identity.successor, identity.complete) == (reign, None, True)
    assert identity.members[N1] == REJOINED_MARK and is_learner(storage)
    assert (hard.term, hard.voted_for, hard.is_voter) == (5, "n1", False)
    assert storage.log.last_index == 0
    kept = contents(disk, KEPT)
    assert kept.keys() >= old.keys(), "all of the old folder is in one quarantine"
    for (
        name,
        raw,
    ) in old.items():  # a start with the flag reads the folder first: it records that, but not in the entries
        if name != "hardstate":
            assert kept[name][:SEGMENT] == raw[:SEGMENT], name
    assert not any(name.startswith("quarantine-2") for name in contents(disk))
    assert not is_under_way(DATA, disk)


KILLED: After = SimulatedDisk.killed
LOST: After = lambda disk: disk.crash(random.Random(3), Keep.NONE)  # noqa: E731 (beside its twin)
SOME: After = lambda disk: disk.crash(random.Random(disk.steps), Keep.ANY)  # noqa: E731
WRITTEN: After = lambda disk: disk.crash(random.Random(3), Keep.ALL)  # noqa: E731


@pytest.mark.parametrize(
    "after",
    [KILLED, LOST, SOME, WRITTEN],
    ids=["killed", "power cut", "power cut, some written", "power cut, all written"],
)
def test_a_folder_that_was_left_behind_is_moved_whole_whatever_step_is_the_last_before_a_crash(
    after: After,
) -> None:
    step = 0
    while True:
        disk = master_disk(left_behind=True)
        old, step = contents(disk), step + 1
        if not crash_in(disk, step, opened):
            break
        disk = after(disk)
        storage = opened(disk)
        check_moved(storage, disk, old, SECOND)
    assert step > 20, "every operation was cut once"


@pytest.mark.parametrize("after", [KILLED, LOST, SOME], ids=["killed", "power cut", "some written"])
def test_a_second_crash_changes_nothing(after: After) -> None:
    for first in range(1, 40, 4):
        for second in range(1, 40, 4):
            disk = master_disk(left_behind=True)
            old = contents(disk)
            if crash_in(disk, first, opened):
                disk = after(disk)
                if crash_in(disk, second, opened):
                    disk = after(disk)
                    check_moved(opened(disk), disk, old, SECOND)


@pytest.mark.parametrize(
    "after", [KILLED, LOST, WRITTEN], ids=["killed", "power cut", "power cut, all written"]
)
def test_a_rejoin_that_was_begun_needs_no_flag_to_go_on(after: After) -> None:
    """Until the decision the folder is the old one, afterwards the new one.

    The flag is never needed again.
    """
    step, moved = 0, 0
    while True:
        disk = master_disk(left_behind=False)
        old, step = contents(disk), step + 1
        if not crash_in(disk, step, lambda disk: opened(disk, flag=True)):
            break
        disk = after(disk)
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
    step, asked_again = 0, 0
    while True:
        disk = master_disk(left_behind=False)
        ask(disk)
        old, step = contents(disk), step + 1
        if not crash_in(disk, step, opened):
            break
        disk = after(disk)
        asked_again += disk.exists(DATA / MARKER) and not is_under_way(DATA, disk)
        storage = opened(disk)
        check_moved(storage, disk, old, FIRST)
        made = storage.incarnation
        storage.close(clean=True)
        again = opened(disk)
        assert again.incarnation == made, "it is used up"
        assert not disk.exists(DATA / MARKER) and disk.exists(KEPT / MARKER)
        again.close(clean=True)
    assert step > 20 and asked_again, "every operation was cut once, also before anything was decided"


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


def test_of_two_starts_that_saw_the_file_of_an_operator_one_moves_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, made = master_disk(left_behind=False), list[int]()
    ask(disk)

    def lock(node: str, folder: Path, files: FileSystem) -> Lock:
        monkeypatch.undo()
        other = opened(disk)
        made.append(other.incarnation)
        other.close(clean=True)
        return lock_folder(node, folder, files)

    monkeypatch.setattr(quarantine, "lock_folder", lock)
    storage = opened(disk)
    assert [storage.incarnation] == made and not any("quarantine-2" in name for name in contents(disk))


def test_a_node_alone_says_which_file_asks_for_what_nobody_can_give() -> None:
    disk = master_disk(left_behind=False)
    ask(disk)
    alone = RaftConfig(
        cluster_id="local", group="g0", node_id=N1, members=(Member(N1, "n1:1"),), data_dir=DATA,
        segment_size=SEGMENT, replication=Replication.ASYNC_MASTER, master="n1",
    )  # fmt: skip
    with pytest.raises(DataFolderError, match=f"removed {DATA / MARKER}"):
        open_node_storage(alone, disk, settings=replace(storage_config(), reign=FIRST))


def test_the_new_folder_is_never_moved_after_the_old_one() -> None:
    disk = master_disk(left_behind=True)
    opened(disk).close(clean=False)
    again = opened(disk)
    assert again.log.last_index == 0 and not any("quarantine-2" in name for name in contents(disk))
    again.close()
    assert rejoin(replace(storage_config(), reign=SECOND), disk) == DATA / "quarantine-2"


def interrupted() -> SimulatedDisk:
    """A move with the identity last."""
    disk = master_disk(left_behind=True)
    step = 0
    while disk.exists(DATA / "identity"):
        disk, step = master_disk(left_behind=True), step + 1
        crash_in(disk, step, opened)
        disk = disk.killed()
    return disk


def test_a_folder_without_an_identity_is_still_that_of_its_node() -> None:
    disk = interrupted()
    before = contents(disk)
    with pytest.raises(ForeignFolderError, match="belongs to cluster local"):
        finish_rejoin(replace(storage_config(), cluster_id="other"), disk)
    with pytest.raises(ForeignFolderError, match="node n1 of group g0"):
        finish_rejoin(replace(storage_config(), node_id=N2), disk)
    assert contents(disk) == before


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
    step = 0
    while True:
        disk, step = master_disk(left_behind=True), step + 1
        old = contents(disk)
        crash_in(disk, step, opened)
        disk = disk.killed()
        if disk.exists(KEPT / "hardstate"):
            break
    file = disk.open(DATA / "hardstate", create=True)  # a person looked, and it was created again
    file.pwritev([b"another"], 0)
    storage = opened(disk)
    check_moved(storage, disk, old, SECOND)
    assert contents(disk, KEPT)["hardstate-2"] == b"another"


@pytest.mark.parametrize(
    ("kept", "new"),
    [(["quarantine-2"], "quarantine-3"), (["quarantine-3", "quarantine-of-monday"], "quarantine-4")],
)
def test_a_quarantine_that_is_there_takes_no_second_folder(kept: list[str], new: str) -> None:
    """People delete some of them, keep others, and rename them."""
    disk = master_disk(left_behind=True)
    for name in kept:
        disk.make_directory(DATA / name)
        file = disk.open(DATA / name / "identity", create=True)
        file.pwritev([b"older"], 0)
        file.close()
    opened(disk).close(clean=False)
    assert [contents(disk, DATA / name) for name in kept] == [{"identity": b"older"}] * len(kept)
    assert "identity" in contents(disk, DATA / new)


def begun() -> SimulatedDisk:
    """A folder with a decided move, left by a killed start."""
    step = 0
    while True:
        disk, step = master_disk(left_behind=True), step + 1
        crash_in(disk, step, opened)
        disk = disk.killed()
        if is_under_way(DATA, disk):
            return disk


@pytest.mark.parametrize(
    "begin", [begun, lambda: master_disk(left_behind=True)], ids=["begun", "left behind"]
)
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
    assert not any(name.startswith("quarantine-2") for name in contents(disk))


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

"""Lost queue files are rebuilt from the log as the state describes them, also when the log was trimmed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from crc32c import crc32c

from ledgermq.broker.checkpoint.store import CheckpointStore, begin_checkpoint
from ledgermq.broker.errors import DivergedError
from ledgermq.broker.replica import Replica
from ledgermq.broker.state.consume_queue import BLOCK_UNITS, UNIT_SIZE, ColdRead
from ledgermq.broker.state.rebuild import bridging_unit
from ledgermq.proto.errors import NewerFormatError
from ledgermq.raft.disk.checked_file import read_record
from ledgermq.raft.log.identity import Manifest, write_manifest
from ledgermq.raft.types import LogIndex
from tests.power_cut import Keep
from tests.raft.simulated_disk import PowerCut, SimulatedDisk

from ..checkpoint.test_checkpoint import DATA, store_on, units, write
from ..checkpoint.test_state_transfer import opened
from ..entry_log import Node, checkpoint

QUEUES = 4


class Trimmed:
    """A node of which retention took the first entries; queue 3 has nothing left."""

    def __init__(self, seed: int = 1, *, trim: bool = True, lose: bool = False) -> None:
        """`lose`: its queue files are deleted."""
        choose = random.Random(seed)
        self.node = node = Node()
        self.disk = SimulatedDisk()
        self.disk.make_directory(DATA)
        self.topic = node.topic(queues=QUEUES)
        node.fill(self.topic, 3, choose.randint(1, 900))
        for number in range(30):
            node.fill(
                self.topic, choose.randint(0, 2), choose.randint(1, 900), first_id=1000 * number, size=8
            )
        self.first_index = 1
        self.store = store_on(self.disk)
        self.store.load()
        node.state.queues.attach(self.store.files)
        if trim:
            self.cut(14)
        self.write()
        if lose:
            self.lose_queues(self.disk)

    def cut(self, index: int) -> None:
        """Let the log begin at an entry."""
        command = self.node.state.log_start_command(index, self.node.log.entry(index)[0].physical_offset, {})
        assert not isinstance(command, ColdRead)
        self.node.command(command)
        self.drop(index)

    def drop(self, index: int) -> None:
        self.first_index = index
        write_manifest(self.disk, DATA / "manifest", Manifest(first_index=LogIndex(index)))

    def write(self) -> None:
        """Write a checkpoint; the node's own units stay in memory, whatever happens to the files."""
        self.store.run(begin_checkpoint(self.node.state))

    def queue_files(self, disk: SimulatedDisk) -> list[Path]:
        folder = DATA / "consumequeue" / f"orders@{self.topic}"
        return [
            folder / queue / name
            for queue in disk.list_directory(folder)
            for name in disk.list_directory(folder / queue)
        ]

    def lose_queues(self, disk: SimulatedDisk) -> None:
        for path in self.queue_files(disk):
            disk.unlink(path)

    def replay(self, replica: Replica, upto: int | None = None) -> None:
        """Apply committed entries, as Raft gives them out: none before the log's first."""
        first = (replica.rebuild or replica.state).applied_index
        assert first >= self.first_index - 1
        last = len(self.node.log.raw) if upto is None else upto
        replica.apply([self.node.log.entry(index) for index in range(first + 1, last + 1)])

    def check_same(self, replica: Replica, store: CheckpointStore) -> None:
        """The state is the node's, and every block that is stored has its checksum."""
        assert replica.rebuild is None
        assert checkpoint(replica.state) == checkpoint(self.node.state)
        for queue in self.node.state.queues:
            found = units(replica.state, store, *queue.key)
            assert found == units(self.node.state, self.store, *queue.key)
        write(store, replica.state)
        for queue in replica.state.queues:
            for block in range(queue.begin // BLOCK_UNITS, -(-queue.written // BLOCK_UNITS)):
                count = min(queue.written - block * BLOCK_UNITS, BLOCK_UNITS)
                if queue.begin != queue.end or queue.begin % BLOCK_UNITS:
                    raw = store.files.load(ColdRead(queue.key, queue.folder, block, count))
                    assert queue.is_right(block, raw[: count * UNIT_SIZE]), (queue.key, block)


def content(disk: SimulatedDisk, path: Path) -> bytes:
    return bytes(disk.names[path].current)


@pytest.mark.parametrize("behind", [0, 1, 7, BLOCK_UNITS - 1])
def test_a_bridging_unit_gives_a_block_any_checksum(behind: int) -> None:
    choose = random.Random(behind)
    for _ in range(5):
        units_behind, wanted = choose.randbytes(behind * UNIT_SIZE), choose.getrandbits(32)
        front = bytes(choose.randrange(3) * UNIT_SIZE)
        with_zeros = crc32c(front + bytes(UNIT_SIZE) + units_behind)
        unit = bridging_unit(with_zeros ^ wanted, behind)
        assert len(unit) == UNIT_SIZE
        assert crc32c(front + unit + units_behind) == wanted
    assert bridging_unit(0, behind) == bytes(UNIT_SIZE)


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_queue_files_that_were_deleted_are_made_again_from_a_whole_or_a_trimmed_log(
    seed: int, trim: bool
) -> None:
    made = Trimmed(seed, trim=trim)
    begins = [queue.begin for queue in made.node.state.queues]
    assert not trim or any(begin % BLOCK_UNITS for begin in begins), "some blocks begin before their queue"
    before = {path: content(made.disk, path) for path in made.queue_files(made.disk)}
    made.lose_queues(made.disk)
    replica, store = opened(made.disk)
    assert replica.rebuild is not None and store.kept_index == 0, "nothing of the log may be deleted"
    assert store.counts_on_log_to == replica.state.applied_index
    made.replay(replica)
    made.check_same(replica, store)
    if not trim:
        assert {path: content(made.disk, path) for path in made.queue_files(made.disk)} == before
    assert store.kept_index > 0
    for _ in range(3):  # it goes on like any other, also after the next start
        for queue_id in range(QUEUES):
            made.node.fill(made.topic, queue_id, 700, size=8)
        made.replay(replica)
        made.check_same(replica, store)
        replica, store = opened(made.disk.crash(random.Random(seed), Keep.NONE))
        assert replica.rebuild is None


def test_one_missing_or_short_file_has_its_queue_made_again_and_no_other() -> None:
    for lose in ("missing", "short"):
        made = Trimmed()
        path = made.store.files.path(f"orders@{made.topic}", 1, 0)
        raw = content(made.disk, path)
        made.disk.unlink(path)
        if lose == "short":
            made.disk.open(path, create=True).pwritev([raw[:-UNIT_SIZE]], 0)
        other = made.store.files.path(f"orders@{made.topic}", 2, 0)
        before = content(made.disk, other)
        replica, store = opened(made.disk)
        assert replica.rebuild is not None
        kept = replica.state.queues.named(made.topic, 2)
        assert kept.end == made.node.state.queues.named(made.topic, 2).end, "it is not emptied"
        made.replay(replica)
        made.check_same(replica, store)
        assert content(made.disk, other) == before


def test_the_older_checkpoint_is_enough_though_retention_took_units_that_it_still_has() -> None:
    made = Trimmed()
    made.node.fill(made.topic, 0, 300, size=8)
    made.cut(24)
    made.write()
    newest = max(made.disk.list_directory(DATA / "checkpoint"))
    made.lose_queues(made.disk)
    for name in sorted(made.disk.list_directory(DATA / "checkpoint"))[1:]:
        if name.isdecimal():
            file = made.disk.open(DATA / "checkpoint" / name)
            file.pwritev([b"\1"], 60)
    replica, store = opened(made.disk)
    assert replica.rebuild is not None and replica.state.applied_index < len(made.node.log.raw), newest
    made.replay(replica)
    made.check_same(replica, store)


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_while_lost_queues_are_made_again_begins_that_again(keep: Keep) -> None:
    choose = random.Random(keep.value)
    made = Trimmed(lose=True)
    disk = made.disk
    for _ in range(6):
        replica, store = opened(disk)
        assert replica.rebuild is not None
        made.replay(replica, choose.randint(made.first_index, len(made.node.log.raw) - 1))
        runs = replica.state.queues.unwritten()
        store.files.write(runs)
        replica.state.queues.mark_written(runs)
        disk = disk.crash(choose, keep)
    replica, store = opened(disk)
    made.replay(replica)
    made.check_same(replica, store)


@pytest.mark.parametrize("keep", list(Keep))
def test_a_power_cut_at_any_step_of_a_rebuild_loses_nothing(keep: Keep) -> None:
    made = Trimmed(lose=True)
    for folder in {path.parent for path in made.disk.directories}:
        made.disk.sync_directory(folder)

    def rebuild(disk: SimulatedDisk) -> tuple[Replica, CheckpointStore]:
        replica, store = opened(disk)
        made.replay(replica)
        write(store, replica.state)
        return replica, store

    untouched = made.disk.crash(random.Random(1), Keep.NONE)
    rebuild(disk := untouched.crash(random.Random(1), Keep.NONE))
    assert disk.steps > 10
    for step in range(1, disk.steps + 1):
        disk = untouched.crash(random.Random(1), Keep.NONE)

        def cut(number: int, operation: str, path: Path, step: int = step) -> None:
            if number == step:
                raise PowerCut

        disk.on_step = cut
        with pytest.raises(PowerCut):
            rebuild(disk)
        made.check_same(*rebuild(disk.crash(random.Random(step), keep)))


def test_a_log_that_lacks_units_which_no_retention_took_is_not_believed() -> None:
    made = Trimmed(trim=False, lose=True)
    replica, _ = opened(made.disk)
    assert replica.rebuild is not None
    last = len(made.node.log.raw)
    replica.rebuild.applied_index = last - 2
    with pytest.raises(DivergedError, match=r"nothing was deleted|rebuilt to"):
        replica.apply([made.node.log.entry(index) for index in (last - 1, last)])


def test_a_log_that_makes_other_units_than_the_state_counts_on_is_not_believed() -> None:
    made = Trimmed(lose=True)
    replica, _ = opened(made.disk)
    assert replica.rebuild is not None
    goals = replica.rebuild._goals
    queue = max(made.node.state.queues, key=lambda queue: queue.end - queue.begin)
    first, complete, last = goals[queue.key].sums
    assert len(complete) >= 4, "a block that does not hold the begin"
    goals[queue.key].sums = first, complete, last ^ 1
    with pytest.raises(DivergedError, match="or other units"):
        made.replay(replica)


def test_a_former_build_does_not_take_a_rebuild_of_lost_files_for_that_of_a_reset() -> None:
    made = Trimmed(lose=True)
    opened(made.disk)
    with pytest.raises(NewerFormatError, match="rebuild"):
        read_record(made.disk, DATA / "checkpoint" / "rebuild", "rebuild", 1)

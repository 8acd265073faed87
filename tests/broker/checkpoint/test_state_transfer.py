"""Transfer of the state to a follower that is being reset: byte for byte, however often it crashes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.checkpoint.store import CheckpointStore
from ledgermq.broker.checkpoint.transfer import BrokerStateTransfer
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.errors import CheckpointError, DivergedError
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.replica import Replica
from ledgermq.broker.state.commands import DeleteTopic
from ledgermq.broker.state.consume_queue import BLOCK_UNITS, UNIT_SIZE, ColdRead
from ledgermq.proto import route_pb2
from ledgermq.raft.errors import StateTransferError
from ledgermq.raft.folder.reset_install import ResetPlan
from ledgermq.raft.log.identity import Manifest
from ledgermq.raft.types import LogIndex, Term
from tests.power_cut import Keep
from tests.raft.simulated_disk import PowerCut, SimulatedDisk

from ..entry_log import Node, checkpoint
from ..no_observer import NoObserver
from .test_checkpoint import DATA, store_on, units, write

STAGED = DATA / "reset" / "state"


class Leader:
    """A node that retention cut at entry `first_index`, and its newest checkpoint."""

    def __init__(self, seed: int = 1) -> None:
        choose = random.Random(seed)
        self.node = node = Node()
        self.disk = SimulatedDisk()
        self.disk.make_directory(DATA)
        self.store = store_on(self.disk)
        self.store.load()
        node.state.queues.attach(self.store.files)
        topic, doomed = node.topic(queues=3), node.topic("doomed", queues=1)
        for number in range(24):
            node.fill(topic, choose.randint(0, 2), choose.randint(1, 900), first_id=1000 * number)
            node.fill(doomed, 0, 3, first_id=100_000 + number)
        self.first_index = len(node.log.raw) - 12
        self.cut(self.first_index)
        node.command(DeleteTopic(doomed))
        node.fill(topic, 1, 50, first_id=500_000)
        self.topic = topic
        self.index = 0
        self.replica: Any = type("Replica", (), {"state": node.state, "rebuild": None})()
        self.is_running = True  # as Checkpointing
        checkpointing: Any = self
        self.transfer = BrokerStateTransfer(self.disk, self.store, self.replica, checkpointing)

    def cut(self, index: int) -> None:
        command = self.node.state.log_start_command(index, self.node.log.entry(index)[0].physical_offset, {})
        assert not isinstance(command, ColdRead)
        self.node.command(command)

    async def write_now(self) -> int:
        """Checkpointing's part."""
        write(self.store, self.node.state)
        self.index = self.node.state.applied_index
        return self.index

    def send(self) -> bytes:
        """Return the bytes of the whole transfer."""

        async def collect() -> bytes:
            state = await self.transfer.open(LogIndex(self.first_index))
            pieces = [piece async for piece in state.pieces()]
            state.close()
            assert state.index == self.index
            assert max(map(len, pieces)) <= 256 << 10
            assert sum(map(len, pieces)) == state.size
            return b"".join(pieces)

        return asyncio.run(collect())

    @property
    def plan(self) -> ResetPlan:
        base = Manifest(first_index=LogIndex(self.first_index))
        return ResetPlan(term=Term(1), base=base, state_index=LogIndex(self.index), state_size=0)


def follower_disk(raw: bytes) -> SimulatedDisk:
    """A disk with an old state of its own, and the staged bytes."""
    disk = SimulatedDisk()
    disk.make_directory(DATA)
    old, store = Node(), store_on(disk)
    old.fill(old.topic("old", queues=1), 0, 7)
    write(store, old.state)
    disk.make_directory(STAGED.parent)
    file = disk.open(STAGED, create=True)
    file.pwritev([raw], 0)
    file.fdatasync()
    for folder in (STAGED.parent, DATA):
        disk.sync_directory(folder)
    return disk


def install(disk: SimulatedDisk, leader: Leader) -> None:
    store = store_on(disk)
    no_checkpoints: Any = None
    BrokerStateTransfer(disk, store, leader.replica, no_checkpoints).install(STAGED, leader.plan)


def received(seed: int = 1) -> tuple[Leader, SimulatedDisk]:
    """Return a leader, and the disk of a follower that has installed its state."""
    leader = Leader(seed)
    disk = follower_disk(leader.send())
    install(disk, leader)
    return leader, disk


def opened(disk: SimulatedDisk) -> tuple[Replica, CheckpointStore]:
    """Start a replica on the disk, as a node does."""
    store = store_on(disk)
    replica = Replica(store, Leadership("n3"), Polls())
    pipeline: Any = type("Pipeline", (), {"on_applied": lambda self, effects: None, "run": None})()
    replica.attach(pipeline, lambda: 0, lambda index: None, NoObserver())
    assert replica.load() >= 0
    return replica, store


def take(replica: Replica, leader: Leader, upto: int) -> None:
    """Apply committed entries, as Raft gives them out."""
    first = replica.rebuild.applied_index if replica.rebuild is not None else replica.state.applied_index
    replica.apply([leader.node.log.entry(index) for index in range(first + 1, upto + 1)])


def check_same(replica: Replica, store: CheckpointStore, leader: Leader) -> None:
    assert replica.rebuild is None
    assert checkpoint(replica.state) == checkpoint(leader.node.state)
    for queue in leader.node.state.queues:
        assert units(replica.state, store, *queue.key) == units(leader.node.state, leader.store, *queue.key)


@pytest.mark.parametrize("seed", range(5))
def test_a_received_state_and_the_log_behind_the_base_make_the_leaders_state(seed: int) -> None:
    leader, disk = received(seed)
    assert any(queue.begin % BLOCK_UNITS for queue in leader.node.state.queues), "a block begins before"
    replica, store = opened(disk)
    assert replica.load() == leader.first_index - 1, "the log is wanted from its base on"
    assert replica.rebuild is not None
    assert replica.rebuild.target == leader.index
    take(replica, leader, leader.index)
    check_same(replica, store, leader)
    for _ in range(3):  # and it goes on like any other
        leader.node.fill(leader.topic, 2, 700)
    take(replica, leader, len(leader.node.log.raw))
    check_same(replica, store, leader)


def test_nothing_of_the_log_may_be_deleted_before_a_checkpoint_counts_on_the_rebuilt_queues() -> None:
    leader, disk = received()
    replica, store = opened(disk)
    assert store.kept_index == 0
    take(replica, leader, leader.index)
    assert store.kept_index == 0, "the queue files are not durable yet"
    write(store, replica.state)
    assert store.kept_index == leader.index
    again, store = opened(disk.crash(random.Random(1), Keep.NONE))
    assert again.load() == leader.index
    check_same(again, store, leader)


@pytest.mark.parametrize("keep", list(Keep))
def test_a_crash_at_any_step_of_the_installation_is_repeated_without_a_trace(keep: Keep) -> None:
    leader = Leader()
    raw = leader.send()
    disk = follower_disk(raw)
    before = disk.steps
    install(disk, leader)
    steps = range(before + 1, disk.steps + 1)
    assert len(steps) > 15
    for step in steps:
        disk = follower_disk(raw)

        def cut(number: int, operation: str, path: Path, step: int = step) -> None:
            if number == step:
                raise PowerCut

        disk.on_step = cut
        with pytest.raises(PowerCut):
            install(disk, leader)
        after = disk.crash(random.Random(step), keep)
        install(after, leader)
        replica, store = opened(after.crash(random.Random(step), keep))
        take(replica, leader, leader.index)
        check_same(replica, store, leader)


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_while_the_queues_are_rebuilt_begins_that_again(seed: int) -> None:
    choose = random.Random(seed)
    leader, disk = received(seed)
    for _ in range(4):
        replica, store = opened(disk)
        assert replica.rebuild is not None
        take(replica, leader, choose.randint(leader.first_index, leader.index - 1))
        runs = replica.state.queues.unwritten()
        store.files.write(runs)
        replica.state.queues.mark_written(runs)
        disk = disk.crash(choose, choose.choice(list(Keep)))
    replica, store = opened(disk)
    take(replica, leader, leader.index)
    check_same(replica, store, leader)


def test_reads_are_refused_until_the_state_is_whole() -> None:
    leader, disk = received()
    replica, _ = opened(disk)
    with pytest.raises(RefusedError, match="Ask another node") as refused:
        replica.require_whole_state()
    assert refused.value.refusal.code == route_pb2.CATCHING_UP
    assert refused.value.refusal.retryable
    take(replica, leader, leader.index)
    replica.require_whole_state()


def test_a_rebuilt_queue_that_is_not_the_received_one_stops_the_node() -> None:
    """A unit of a leading block changed on disk: no reader needs it, but the block's checksum covers it."""
    leader, disk = received()
    queue = next(each for each in leader.node.state.queues if each.begin % 2000)
    path = store_on(disk).files.path(queue.folder, queue.key[1], queue.begin)
    disk.flip(path, (queue.begin % 2000 + queue.begin // 2000 * 2000 - 1) * UNIT_SIZE)
    replica, _ = opened(disk)
    with pytest.raises(DivergedError, match="rejoin"):
        take(replica, leader, leader.index)


def test_a_received_state_that_is_gone_is_not_replaced_by_an_empty_one() -> None:
    leader, disk = received()
    disk.unlink(DATA / "checkpoint" / f"{leader.index:020d}")
    with pytest.raises(CheckpointError, match="rejoin"):
        opened(disk)


def test_a_node_that_makes_its_queues_again_sends_no_state() -> None:
    """Missing units are zeros until then: a follower that received them would stop, again and again."""
    leader, disk = received()
    replica, store = opened(disk)

    async def write_now() -> int:
        return replica.state.applied_index

    checkpointing: Any = SimpleNamespace(write_now=write_now, is_running=True)
    transfer = BrokerStateTransfer(disk, store, replica, checkpointing)
    with pytest.raises(StateTransferError, match="makes its queues again"):
        asyncio.run(transfer.open(LogIndex(1)))
    take(replica, leader, leader.index)
    assert replica.rebuild is None and store.rebuilding
    with pytest.raises(StateTransferError, match="no checkpoint was written yet"):
        asyncio.run(transfer.open(LogIndex(1)))


def test_a_state_that_still_needs_deleted_entries_is_not_sent() -> None:
    leader = Leader()
    leader.first_index = len(leader.node.log.raw) - 1
    with pytest.raises(StateTransferError, match="still counts on entry"):
        leader.send()


def test_a_checkpoint_that_cannot_be_written_is_not_replaced_by_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader()
    leader.send()
    leader.node.fill(leader.topic, 0, 1)

    async def write_nothing() -> int:
        return leader.index

    monkeypatch.setattr(leader, "write_now", write_nothing)
    with pytest.raises(StateTransferError, match="could not be written"):
        leader.send()


def test_a_transfer_outlives_the_checkpoint_that_it_sends(tmp_path: Path) -> None:
    """Two newer checkpoints delete its file while it is under way; the open file stays."""
    leader = Leader()

    async def collect() -> bytes:
        state = await leader.transfer.open(LogIndex(leader.first_index))
        pieces = []
        index = leader.index
        async for piece in state.pieces():
            pieces.append(piece)
            if len(pieces) == 1:
                for _ in range(3):
                    leader.node.fill(leader.topic, 0, 1)
                    await leader.write_now()
        state.close()
        leader.index = index
        return b"".join(pieces)

    raw = asyncio.run(collect())
    disk = follower_disk(raw)
    install(disk, leader)
    replica, store = opened(disk)
    take(replica, leader, len(leader.node.log.raw))
    check_same(replica, store, leader)

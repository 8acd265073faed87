"""Retention of one node: its decisions, proposals and deletions. The node is a fake; nothing waits."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.retention import keeper as retention
from ledgermq.broker.retention.keeper import Retention, next_clean
from ledgermq.broker.service.disk_steps import DiskStep
from ledgermq.broker.state.commands import Command, LogStart, SetTopicKeepUnread, position_rows
from ledgermq.broker.state.effects import Effects
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto import admin_pb2
from ledgermq.raft.disk.files import DiskUse
from ledgermq.raft.log.segment import SegmentInfo
from ledgermq.raft.types import LogIndex

from ..entry_log import Node

HOUR_MS = 3_600_000
SIZE = 100  # bytes of a segment; each holds ten entries


class FakeNode:
    """A leader whose log has one segment per given age (hours), on a disk of 1,000 bytes."""

    def __init__(self, *ages: float, others: int = 0, **config: Any) -> None:
        self.now = 1_000 * HOUR_MS
        self.all = [
            SegmentInfo(
                i * SIZE,
                LogIndex(10 * i + 1),
                LogIndex(10 * i + 10),
                self.now - int(age * HOUR_MS),
                i * SIZE + SIZE,
            )
            for i, age in enumerate(ages)
        ]
        self.others = others  # bytes of other files
        self.first = 0
        self.deleting = 0
        self.floor = 1 << 40
        self.checkpoint_works = True
        self.full = False
        self.peers: list[Any] = []
        self.proposed: list[LogStart] = []
        self.state = BrokerState()
        self.produce_refusal = self.refusal = ""
        self.config = BrokerConfig(data_dir=Path("/data"), **config)
        # What a node has; all of it is this object.
        self.raft = self.log = self.storage = self.replica = self.pipeline = self.leadership = self
        self.ready, self.voters, self.disk_full = True, 3, False
        self.applied_index = self.all[-1].last_index if self.all else 0
        self.changes = 0
        part: Any = self
        self.work = Retention(
            self.config, part, part, part, part, part, Metrics(),
            disk_use=lambda: DiskUse(1000, 1000 - self.others - SIZE * len(self.segments())),
            on_change=self._changed,
        )  # fmt: skip
        self.retention = self.work.view

    def _changed(self) -> None:
        self.changes += 1

    async def write_now(self) -> int:
        """As Checkpointing."""
        return self.applied_index if self.checkpoint_works else 0

    def statistics(self) -> FakeNode:
        self.disk_full = self.full
        return self

    def status(self) -> FakeNode:
        return self

    def segments(self) -> list[SegmentInfo]:
        return self.all[self.first :]

    @property
    def first_offset(self) -> int:
        return self.segments()[0].start_offset

    @property
    def end_offset(self) -> int:
        return self.all[-1].end_offset

    @property
    def first_index(self) -> int:
        return self.segments()[0].first_index

    def next_timestamp(self) -> int:
        return self.now

    def run(self, command: Command) -> Awaitable[None]:
        """Commit and apply a start of the log."""
        assert isinstance(command, LogStart)
        self.proposed.append(command)
        self.state.log_start_index = max(self.state.log_start_index, command.index)
        self.state.log_start_offset = max(self.state.log_start_offset, command.physical_offset)
        self.work.on_effects(Effects(1, 1, self.now, log_start=command))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def delete_segments_before(self, index: int) -> int:
        count = sum(segment.last_index < index for segment in self.segments())
        self.first += count
        return count

    def unlink_after_a_second(self) -> int:
        """Unlink what may go a second later; return the number of segments unlinked so far."""
        self.work._pace._last -= 1
        self.work._unlink()
        return self.first

    async def decide(self, *, due: bool = False) -> list[int]:
        """Look and decide once; return the first indexes that were proposed."""
        before = len(self.proposed)
        self.work.look()
        await self.work._decide(due=due)
        if self.work._again is not None:
            self.work._again.cancel()
        return [command.index for command in self.proposed[before:]]


def test_the_daily_expiry_runs_at_its_time_of_day() -> None:
    assert next_clean(datetime(2026, 1, 1, 3, 0), "04:00") == datetime(2026, 1, 1, 4, 0)
    assert next_clean(datetime(2026, 1, 1, 4, 0), "04:00") == datetime(2026, 1, 2, 4, 0)


async def test_a_daily_expiry_is_made_up_for_within_an_hour_by_the_leader_of_then() -> None:
    node = FakeNode(100, 80, 0)
    at = node.work._clean_at
    assert not node.work._follow_clock(at - timedelta(seconds=1))
    assert node.work._follow_clock(at)
    assert node.work._follow_clock(at + timedelta(minutes=59)), "not done yet"
    assert not node.work._follow_clock(at + timedelta(hours=1)), "too late: tomorrow"
    assert node.work._follow_clock(at + timedelta(days=1))
    assert await node.decide(due=True) == [21]
    assert not node.work._follow_clock(at + timedelta(days=1, seconds=1)), "done"


async def test_expired_segments_wait_for_their_time_of_day_while_there_is_room() -> None:
    node = FakeNode(100, 80, 10, 0)
    assert await node.decide() == []
    assert await node.decide(due=True) == [21]


@pytest.mark.parametrize("of", ["log time", "wall clock"])
async def test_a_jump_of_one_clock_expires_nothing_that_is_young_by_the_other(
    of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(100, 80, 10, 0, delete_unexpired=False)
    young = node.now / 1000
    years = 10 * 365 * 24 * 3600
    monkeypatch.setattr("time.time", lambda: young + (years if of == "wall clock" else 0))
    node.now += years * 1000 if of == "log time" else 0
    assert await node.decide(due=True) == [21], "what is old by both clocks"


async def test_expired_segments_go_at_once_when_the_fullest_node_is_above_75_percent() -> None:
    node = FakeNode(100, 80, 10, 0, others=380)  # 78 %
    assert await node.decide() == [21]
    assert node.retention.step is DiskStep.DELETE_EXPIRED
    assert node.produce_refusal == "" and node.changes == 0

    class Peer:
        node_id, connected, disk_used_ratio = "n2", True, 0.8

    node = FakeNode(100, 80, 10, 0)
    node.peers = [Peer()]
    assert await node.decide() == [21]
    Peer.connected = False
    node = FakeNode(100, 80, 10, 0)
    node.peers = [Peer()]
    assert await node.decide() == [], "what it said is old"


async def test_above_85_percent_the_fewest_oldest_go_when_nothing_has_expired() -> None:
    node = FakeNode(5, 4, 3, 2, 0, others=380)  # 88 %: one segment ends it
    assert await node.decide() == [11]
    assert await node.decide() == [], "one decision at a time: its segments are not unlinked yet"
    node.work._unlink()
    assert await node.decide() == [], "78 %: enough"
    node = FakeNode(5, 4, 3, 2, 0, others=480, delete_unexpired=False)
    assert await node.decide() == [], "rather refuse messages"
    assert "98% used" in node.produce_refusal and "98% used" in node.refusal
    assert node.changes == 1


async def test_expired_segments_go_before_unexpired_ones_above_85_percent() -> None:
    node = FakeNode(100, 99, 3, 2, 0, others=480)  # 98 %
    assert await node.decide() == [21]
    node.work._unlink()
    assert await node.decide() == [], "78 %: enough"
    node = FakeNode(100, 3, 2, 1, 0, others=480)
    assert await node.decide() == [11]
    node.work._unlink()
    assert await node.decide() == [21], "88 %: not enough"


async def test_one_follower_that_others_filled_costs_the_group_no_message() -> None:
    class Peer:
        connected = True

        def __init__(self, node_id: str, disk_used_ratio: float) -> None:
            self.node_id, self.disk_used_ratio = node_id, disk_used_ratio

    node = FakeNode(5, 4, 0)
    node.peers = [Peer("n2", 0.99), Peer("n3", 0.3)]
    assert await node.decide() == []
    node.peers = [Peer("n2", 0.99), Peer("n3", 0.9)]
    assert await node.decide() == [11], "with two of three full nothing can be committed"


async def test_nothing_is_proposed_before_its_checkpoint_is_written() -> None:
    node = FakeNode(100, 80, 0)
    node.checkpoint_works = False
    with pytest.raises(RefusedError, match="could not be written"):
        await node.decide(due=True)
    assert not node.proposed
    with pytest.raises(RefusedError, match="could not be written"):
        await node.work.clean(admin_pb2.CleanRequest())
    dry = await node.work.clean(admin_pb2.CleanRequest(dry_run=True))
    assert list(dry.segments) == [f"{0:020d}", f"{SIZE:020d}"] and not node.proposed
    assert dry.bytes == 2 * SIZE and dry.log_start_index == 21


async def test_segments_are_unlinked_below_the_start_and_the_checkpoints_at_the_configured_rate() -> None:
    node = FakeNode(*[100] * 9, 0, delete_segments_per_second=2)
    node.floor = 75
    assert await node.decide(due=True) == [91]
    node.work._unlink()
    assert node.first == 2
    node.work._unlink()
    assert node.first == 2, "the second is not over"
    assert node.unlink_after_a_second() == 4
    node.deleting = 1
    assert node.unlink_after_a_second() == 4, "the log has not unlinked the last ones yet"
    node.deleting = 0
    for _ in range(5):
        node.unlink_after_a_second()
    assert node.first == 7, "entry 71 and on are not in both checkpoints"
    node.floor = 1 << 40
    assert node.unlink_after_a_second() == 9


async def test_nothing_is_unlinked_before_the_checkpoints_know_that_the_log_begins_later() -> None:
    """A node that starts from an older one could not reset a follower: its state needs deleted entries.

    If the others need a reset to commit anything, the broker group would be stuck for ever.
    """
    node = FakeNode(*[100] * 9, 0, delete_segments_per_second=100)
    start = LogStart(51, 500, position_rows([]))
    node.floor = 95  # the checkpoints cover the segments, but not the entry that says that they go
    node.work.on_effects(Effects(95, 1, node.now, log_start=start))
    node.work._unlink()
    assert node.first == 0
    node.floor = 96
    node.work._unlink()
    assert node.first == 5


async def test_after_a_start_nothing_is_unlinked_before_newer_checkpoints_are_there() -> None:
    """The state may be that of the newer checkpoint: the older one need not know where the log begins."""
    node = FakeNode(*[100] * 9, 0, delete_segments_per_second=100)
    node.state.log_start_index, node.state.applied_index, node.floor = 51, 95, 95
    node.work.start()
    node.work._unlink()
    assert node.first == 0
    node.floor = 96
    node.work._unlink()
    assert node.first == 5
    await node.work.stop()


async def test_while_segments_wait_for_checkpoints_the_start_is_said_again_now_and_then() -> None:
    """Without entries there are no checkpoints, and a new leader does not know the plans of the last one."""
    node = FakeNode(100, 80, 0)
    node.floor = 1
    assert await node.decide(due=True) == [21]
    assert await node.decide() == []
    node.work._proposed_at -= 10
    assert await node.decide() == [21]
    assert node.proposed[-1].physical_offset == node.proposed[0].physical_offset
    node.floor = 1 << 40
    node.work._proposed_at -= 10
    assert await node.decide() == [], "they can go now"


async def test_a_disk_that_says_nothing_for_a_moment_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the task ended, the disk would fill up and no message would be refused."""
    monkeypatch.setattr(retention, "CHECK_INTERVAL", 0.0)
    node = FakeNode(1, 1, others=750)
    looked = asyncio.Event()
    uses: Iterator[OSError | DiskUse]
    uses = iter([OSError(errno.EIO, "Input/output error"), DiskUse(1000, 50)])

    def disk_use() -> DiskUse:
        use = next(uses)
        if isinstance(use, OSError):
            raise use
        looked.set()
        return use

    node.work._disk_use = disk_use
    watch = asyncio.create_task(node.work._watch_disk())
    async with asyncio.timeout(30):
        await looked.wait()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert node.produce_refusal


async def test_a_clean_by_hand_tells_why_the_rest_stays() -> None:
    node = FakeNode(100, 10, 0)
    nothing = await node.work.clean(admin_pb2.CleanRequest(older_than_ms=200 * HOUR_MS))
    assert not nothing.segments
    assert (
        nothing.note
        == "the oldest segment that stays ends 100.0 hours ago; what is older than 200 hours goes"
    )
    done = await node.work.clean(admin_pb2.CleanRequest(even_unexpired=True))
    assert len(done.segments) == 2 and done.note == "the newest segment always stays"
    assert [command.index for command in node.proposed] == [21]
    with pytest.raises(RefusedError, match="negative"):
        await node.work.clean(admin_pb2.CleanRequest(older_than_ms=-1))
    await node.work.stop()


def _keeping(*ages: float, **config: Any) -> tuple[FakeNode, Node, int, int]:
    """A leader with two messages in a topic that keeps unread ones, and the segments (from 0) of these."""
    log = Node()
    topic = log.topic("orders", queues=1)
    log.group("billing")
    log.command(SetTopicKeepUnread(topic, True))
    log.fill(topic, 0, 1)
    log.fill(topic, 0, 1)
    units: Any = log.state.queues.lookup(topic, 0, 0, 2)
    first, second = (int(each) // SIZE for each in units["physical_offset"])
    node = FakeNode(*ages, **config)
    node.state = log.state
    return node, log, first, second


async def test_what_a_topic_keeps_goes_neither_by_age_nor_on_a_full_disk_nor_by_hand() -> None:
    node, log, first, second = _keeping(*[100.0] * 20, others=-1050)  # 95 %
    assert 0 < first < second < 18
    assert await node.decide(due=True) == [10 * first + 1], "nothing before it is kept"
    node.work._unlink()
    node.others = 950 - SIZE * len(node.segments())
    clean = admin_pb2.CleanRequest(even_unexpired=True)
    for due in (True, False):
        assert await node.decide(due=due) == [], "no consumer group has consumed it"
    assert not (await node.work.clean(clean)).segments
    node.work.look()
    assert "no consumer group consumes" in node.produce_refusal
    assert "topic update orders --no-keep-unread" in node.produce_refusal
    assert node.retention.protection == node.work._watch.hold != ""

    log.commit_offsets(1, (1, 0, 1))
    assert await node.decide() == [10 * second + 1], "up to the segment of what it has not acknowledged"
    node.work._unlink()
    node.others = 950 - SIZE * len(node.segments())
    for due in (True, False):
        assert await node.decide(due=due) == []
    node.work.look()
    assert "held by consumer group billing in topic orders" in node.produce_refusal

    log.command(SetTopicKeepUnread(1, False))
    assert await node.decide(due=True) == [191], "it expires, read or not"
    node.work.look()
    assert node.produce_refusal.endswith("Free space: ledgermq admin clean, or more disk")
    await node.work.stop()


async def test_a_topic_that_is_to_keep_what_is_unread_while_the_checkpoint_is_written_keeps_it() -> None:
    node, log, _, _ = _keeping(*[100.0] * 20, others=-1900)
    log.command(SetTopicKeepUnread(1, False))

    async def checkpoint() -> int:
        log.command(SetTopicKeepUnread(1, True))
        return node.applied_index

    node.work._checkpoints = cast(Any, SimpleNamespace(write_now=checkpoint))
    with pytest.raises(RefusedError, match=r"deleted nothing.*no-keep-unread") as refused:
        await node.decide(due=True)
    assert refused.value.refusal.retryable and not node.proposed

"""Hiding of expired messages: the offsets that the leader proposes. The test sets the log time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.reading.log_reader import QueueReader
from ledgermq.broker.retention.topic_retention import TopicRetention
from ledgermq.broker.service.disk_steps import DiskStep, RetentionView
from ledgermq.broker.state import commands as c

from ..entry_log import START_MS, Node

HOUR_MS = 3_600_000


class Leader:
    """A node that leads: what is proposed is applied at once. One section per message."""

    def __init__(self, *, protect: bool = False) -> None:
        self.node = Node()
        self.looked_up = 0
        self.proposed: list[c.TrimQueues] = []
        self._sections: dict[int, SimpleNamespace] = {}
        self.retention = RetentionView()
        reader: Any = SimpleNamespace(section_of=self._section_of)
        self.reader = reader
        replica: Any = SimpleNamespace(state=self.node.state, units=self._units)
        raft: Any = SimpleNamespace(next_timestamp=lambda: self.node.log.now)
        pipeline: Any = SimpleNamespace(run=self._run)
        self.work = TopicRetention(
            BrokerConfig(protect_unconsumed=protect), raft, replica, pipeline, Leadership("n1"),
            QueueReader(replica, reader), self.retention,
        )  # fmt: skip

    async def _units(self, topic_id: int, queue_id: int, offset: int, count: int) -> Any:
        return self.node.state.queues.lookup(topic_id, queue_id, offset, count)

    async def _section_of(self, physical_offset: int) -> Any:
        self.looked_up += 1
        return self._sections[physical_offset]

    def _run(self, command: c.Command) -> Awaitable[None]:
        assert isinstance(command, c.TrimQueues)
        self.proposed.append(command)
        self.node.command(command)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def store(self, topic: int, queue: int, hour: float) -> None:
        """Store one message at an hour of log time."""
        self.node.log.now = START_MS + int(hour * HOUR_MS)
        self.node.fill(topic, queue, 1)
        offset = self.node.state.queue_end(topic, queue) - 1
        unit: Any = self.node.state.queues.lookup(topic, queue, offset, 1)
        self._sections[int(unit["physical_offset"][0])] = SimpleNamespace(
            store_timestamp=self.node.log.now, first_queue_offset=offset, end_queue_offset=offset + 1
        )

    def one_topic(self, *hours: float, keep_hours: int = 1) -> tuple[int, int]:
        """Return a topic of one queue, which holds one message of each hour, and a consumer group."""
        topic, consumer_group = self.node.topic(queues=1), self.node.group()
        self.node.command(c.SetTopicRetention(topic, keep_hours * HOUR_MS))
        for hour in hours:
            self.store(topic, 0, hour)
        return topic, consumer_group

    async def trim(self, hour: float) -> list[tuple[int, int, int]]:
        """Look at an hour of log time; return the rows that were proposed."""
        self.node.log.now = START_MS + int(hour * HOUR_MS)
        before = len(self.proposed)
        hidden = await self.work.trim()
        rows = [tuple(row) for command in self.proposed[before:] for row in command.rows.tolist()]
        assert bool(hidden) == bool(rows)
        return rows


async def test_messages_older_than_their_topic_keeps_them_are_hidden_and_others_stay() -> None:
    leader = Leader()
    short, long = leader.node.topic("short"), leader.node.topic("long", queues=1)
    leader.node.command(c.SetTopicRetention(short, 2 * HOUR_MS))
    for hour in range(6):
        leader.store(short, 0, hour)
        leader.store(long, 0, hour)
    leader.store(short, 1, 5)
    assert await leader.trim(5) == [(short, 0, 3)], "stored at hour 3: exactly two hours old, still shown"
    assert await leader.trim(5) == []
    assert leader.node.state.queue_begin(long, 0) == 0
    assert await leader.trim(6.5) == [(short, 0, 5)]
    assert await leader.trim(9) == [(short, 0, 6), (short, 1, 1)], "all of it"
    assert await leader.trim(10) == []


async def test_a_jump_of_log_time_hides_nothing_that_is_young_by_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = Leader()
    topic, _ = leader.one_topic(0, 1, 2, 3, keep_hours=2)
    monkeypatch.setattr("time.time", lambda: (START_MS + 4 * HOUR_MS) / 1000)
    assert await leader.trim(24 * 365 * 10) == [(topic, 0, 2)], "what is old by both clocks"


async def test_a_queue_whose_oldest_message_is_young_enough_is_not_looked_up_again() -> None:
    leader = Leader()
    topic, _ = leader.one_topic(0, 1, keep_hours=2)
    await leader.trim(1)
    looked_up = leader.looked_up
    await leader.trim(1.5)
    assert leader.looked_up == looked_up
    assert await leader.trim(2.5) == [(topic, 0, 1)]


async def test_a_longer_retention_does_not_show_again_what_was_hidden() -> None:
    leader = Leader()
    topic, _ = leader.one_topic(0, 1)
    assert await leader.trim(2) == [(topic, 0, 1)]
    leader.node.command(c.SetTopicRetention(topic, 9 * HOUR_MS))
    assert await leader.trim(3) == []
    assert leader.node.state.queue_begin(topic, 0) == 1


async def test_what_a_group_has_to_read_is_shown_until_the_disk_is_nearly_full() -> None:
    leader = Leader(protect=True)
    topic, group = leader.one_topic(0, 1, 2, 3)
    leader.node.commit_offsets(group, (topic, 0, 2))
    assert await leader.trim(9) == [(topic, 0, 2)], "what it has read is hidden"
    assert await leader.trim(9) == []
    leader.retention.step = DiskStep.DELETE_OLDEST
    assert await leader.trim(9) == [(topic, 0, 4)]
    assert leader.node.state.lost_count(group, topic, 0) == 2


async def test_what_a_topic_keeps_is_not_hidden_however_full_the_disk_is() -> None:
    leader = Leader()
    topic, group = leader.one_topic(0, 1, 2, 3)
    leader.node.command(c.SetTopicKeepUnread(topic, True))
    leader.retention.step = DiskStep.REFUSE_MESSAGES
    assert await leader.trim(9) == [], "no consumer group consumes it"
    leader.node.commit_offsets(group, (topic, 0, 2))
    assert await leader.trim(9) == [(topic, 0, 2)], "what it has read is hidden"
    leader.node.command(c.SetTopicKeepUnread(topic, False))
    leader.retention.step = DiskStep.NORMAL
    assert await leader.trim(9) == [(topic, 0, 4)]
    assert leader.node.state.lost_count(group, topic, 0) == 2


async def test_what_is_held_is_shown_until_its_holder_advances_or_a_limit_is_reached() -> None:
    leader = Leader()
    topic, _ = leader.one_topic(0, 1, 2, 3)
    hold = c.SetHold(topic, "lake", c.hold_rows([(0, 1)]))
    leader.node.command(hold)
    assert await leader.trim(9) == [(topic, 0, 1)]
    leader.retention.fullest = DiskStep.DELETE_OLDEST
    assert await leader.trim(9) == [(topic, 0, 4)], "above 85 %"
    assert leader.node.state.holds.of_topic(topic)["lake"][0].lost_at(4) == 3

    leader = Leader()
    topic, _ = leader.one_topic(0, 1, 2, 3)
    leader.node.command(hold)
    assert await leader.trim(3 + 168) == [(topic, 0, 1)]
    assert await leader.trim(3 + 168.1) == [(topic, 0, 4)], "its holder is silent"


async def test_a_topic_that_is_to_keep_what_is_unread_while_old_messages_are_searched_keeps_them() -> None:
    leader = Leader()
    topic, group = leader.one_topic(0, 1, 9)
    leader.node.commit_offsets(group, (topic, 0, 1))
    section_of = leader.reader.section_of

    async def and_meanwhile(physical_offset: int) -> Any:
        leader.node.command(c.SetTopicKeepUnread(topic, True))
        return await section_of(physical_offset)

    leader.reader.section_of = and_meanwhile
    assert await leader.trim(9.5) == [(topic, 0, 1)]

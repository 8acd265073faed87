"""The replicated state machine: what entries do, and that all nodes get the same."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from ledgermq.broker.errors import DivergedError, UnknownCommandError
from ledgermq.broker.state import commands as c
from ledgermq.broker.state.effects import Effects, GrantResult, RowsResult, TopicResult
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto.entry import EntryKind
from ledgermq.proto.record import SectionKind, encode_command, encode_section, seal_section

from ..entry_log import (
    EntryLog,
    Node,
    checkpoint,
    command_section,
    filled,
    records,
    restored,
    result_of,
    section,
)


def rows_of(effects: Effects) -> list[bool]:
    return [bool(each) for each in result_of(effects, RowsResult).accepted]


def test_a_topic_that_is_created_again_gets_another_id() -> None:
    node = Node()
    first = node.topic()
    node.command(c.DeleteTopic(first))
    assert node.topic() == first + 1


def test_creating_a_topic_twice_changes_nothing_and_tells_its_id() -> None:
    node = Node()
    first = node.topic(queues=2)
    effects = node.command(c.CreateTopic("orders", 9))
    result = result_of(effects, TopicResult)
    assert result.topic is not None
    assert (result.topic.topic_id, result.topic.queue_count, result.changed) == (first, 2, False)
    assert not effects.topics_changed


def test_records_extend_their_queue_and_their_units_point_at_them() -> None:
    node = Node()
    topic = node.topic()
    node.fill(topic, 1, 5, size=[10, 200, 33], tags=[7, 0, -9])
    units = node.state.queues.lookup(topic, 1, 0, 100)
    assert isinstance(units, np.ndarray)
    assert node.state.queue_end(topic, 1) == 5
    assert units["tag_hash"].tolist() == [7, 0, -9, 7, 0]
    whole = b"".join(node.log.raw)
    for unit in units:
        at, size = int(unit["physical_offset"]), int(unit["size"])
        assert int.from_bytes(whole[at : at + 4], "little") == size


def test_one_log_holds_the_messages_of_all_topics_and_queues() -> None:
    """A3.1, A3.6, A3.11: in the order of their arrival; each queue knows the places of its own messages."""
    node = Node()
    topics = [node.topic(name, queues=2) for name in ("orders", "paid")]
    places = []
    for turn in range(12):
        key = topics[turn % 2], turn // 2 % 2
        assert node.state.queue_end(*key) == turn // 4, "nothing is in the queue before its entry is applied"
        node.fill(*key, 1)
        units = node.state.queues.lookup(*key, turn // 4, 1)
        assert isinstance(units, np.ndarray)
        places.append(int(units["physical_offset"][0]))
    assert places == sorted(set(places))
    sizes = {second - first for first, second in pairwise(places)}
    assert len(sizes) == 1, "one behind the other: nothing else is between them"


def test_a_section_that_does_not_begin_at_the_end_of_its_queue_stops_the_node() -> None:
    node = Node()
    topic = node.topic()
    with pytest.raises(DivergedError, match="ends at 0, the section begins at 4"):
        node.apply(section(topic, 0, records(1), base=4))


def test_a_section_of_a_topic_that_never_was_stops_the_node() -> None:
    with pytest.raises(DivergedError, match="no queue 0 of topic id 5"):
        Node().apply(section(5, 0, records(1), base=0))


def test_a_section_that_arrives_behind_the_deletion_of_its_topic_is_dropped_everywhere() -> None:
    node = Node()
    topic = node.topic()
    node.command(c.DeleteTopic(topic))
    assert node.apply(section(topic, 0, records(1), base=0)).sections[0].gone


def test_an_entry_out_of_order_stops_the_node() -> None:
    node = Node()
    node.apply(kind=EntryKind.NOOP)
    node.log.add([], EntryKind.NOOP)
    header, payload = node.log.add([], EntryKind.NOOP)
    with pytest.raises(DivergedError, match="next entry to apply is 2"):
        node.state.apply(header, payload)


def test_log_time_that_goes_back_stops_the_node() -> None:
    node = Node()
    node.apply(kind=EntryKind.NOOP)
    node.log.now -= 1
    with pytest.raises(DivergedError, match="log time"):
        node.apply(kind=EntryKind.NOOP)


@pytest.mark.parametrize(("number", "version"), [(999, 1), (1, 4)])
def test_an_unknown_command_or_version_stops_the_node(number: int, version: int) -> None:
    raw = encode_section(SectionKind.COMMANDS, [encode_command(number, version, b"")], 1)
    with pytest.raises(UnknownCommandError, match="newer LedgerMQ"):
        Node().apply(raw)


def test_committed_offsets_never_go_back_without_reset() -> None:
    node, topic, group = filled(10, queues=2)
    for offset, reset, expected in [(5, False, 5), (3, False, 5), (99, False, 10), (3, True, 3)]:
        assert rows_of(node.commit_offsets(group, (topic, 0, offset), reset=reset)) == [True]
        assert node.state.committed_offset(group, topic, 0) == expected


def test_offsets_of_unknown_groups_and_queues_are_refused() -> None:
    node, topic, group = filled()
    assert rows_of(node.commit_offsets(group + 1, (topic, 0, 0))) == [False]
    assert rows_of(node.commit_offsets(group, (topic, 7, 0), (topic, 0, 0))) == [False, True]


def test_deleting_a_group_forgets_its_positions() -> None:
    node, topic, group = filled(queues=2)
    node.commit_offsets(group, (topic, 0, 0))
    node.command(c.DeleteConsumerGroup(group))
    assert node.state.committed_offset(group, topic, 0) is None


def test_retention_hides_messages_below_and_never_goes_back() -> None:
    node, topic, group = filled(10)
    node.commit_offsets(group, (topic, 0, 2))
    node.command(c.LogStart(2, 100, c.position_rows([(topic, 0, 6)])))
    node.command(c.LogStart(1, 50, c.position_rows([(topic, 0, 4)])))
    assert node.state.queue_begin(topic, 0) == 6
    assert (node.state.log_start_index, node.state.log_start_offset) == (2, 100)
    assert node.state.committed_offset(group, topic, 0) == 6
    assert len(np.asarray(node.state.queues.lookup(topic, 0, 0, 10))) == 4


def test_the_leader_finds_the_begin_offsets_for_a_start_of_the_log() -> None:
    node = Node()
    topic = node.topic(queues=2)
    node.fill(topic, 0, 3)
    start = node.log.end
    node.fill(topic, 0, 3)
    node.fill(topic, 1, 1)
    command = node.state.log_start_command(node.state.applied_index - 1, start, {})
    assert isinstance(command, c.LogStart)
    assert command.rows.tolist() == [(topic, 0, 3)]


def lost(effects: Effects) -> list[tuple[int, int, int]]:
    """(queue id, count, begin) of what groups lost."""
    return [(loss.queue_id, loss.count, loss.begin) for loss in effects.losses]


def test_trimmed_queues_begin_later_and_the_log_does_not() -> None:
    node, topic, group = filled(10, queues=2)
    node.commit_offsets(group, (topic, 0, 2))
    effects = node.trim((topic, 0, 6), (topic, 1, 3), (99, 0, 1))
    assert (node.state.queue_begin(topic, 0), node.state.queue_begin(topic, 1)) == (6, 0), "1 is empty"
    assert node.state.log_start_index == 1 and effects.log_start is None
    assert lost(effects) == [(0, 4, 6)]
    assert lost(node.trim((topic, 0, 4))) == []
    assert node.state.queue_begin(topic, 0) == 6, "never back"
    node.trim((topic, 0, 1 << 40))
    assert node.state.queue_begin(topic, 0) == 10, "not behind the end: the next message is shown"


def test_a_group_is_told_once_what_retention_took_and_commits_end_it() -> None:
    node, topic, group = filled(20)
    node.commit_offsets(group, (topic, 0, 1))
    node.trim((topic, 0, 3))
    node.trim((topic, 0, 5))
    assert node.state.lost_count(group, topic, 0) == 4
    nothing = c.GrantLeases(group, topic, 1000, (c.QueueGrant(0, 5, 5, np.array([], np.int64)),))
    node.command(nothing)
    assert node.state.lost_count(group, topic, 0) == 4, "no message was granted, so the loss was not reported"
    granted = c.GrantLeases(group, topic, 1000, (c.QueueGrant(0, 5, 7, np.array([5, 6])),))
    result = result_of(node.command(granted), GrantResult)
    assert [(queue.lost, queue.begin) for queue in result.queues] == [(4, 5)]
    assert node.state.lost_count(group, topic, 0) == 0
    lease = result.lease_id
    assert lost(node.trim((topic, 0, 6))) == [(0, 1, 6)], "leased, not done"
    node.command(c.Ack(group, topic, c.lease_rows([(0, 6, lease)])))
    assert node.state.lost_count(group, topic, 0) == 1, "an earlier delivery did not report the loss"
    node.commit_offsets(group, (topic, 0, 9))
    assert node.state.lost_count(group, topic, 0) == 0


def test_losses_and_retention_of_topics_survive_a_checkpoint_and_cost_nothing_without_them() -> None:
    node, topic, group = filled(10)
    node.commit_offsets(group, (topic, 0, 2))
    assert checkpoint(node.state)[4:8] == bytes([1, 0, 0, 0]), "older nodes read it"
    result = result_of(node.command(c.SetTopicRetention(topic, 3_600_000)), TopicResult)
    assert result.changed
    node.trim((topic, 0, 6))
    assert checkpoint(node.state)[4:8] == bytes([2, 0, 0, 0]), "older nodes would lose it: they refuse"
    loaded = restored(checkpoint(node.state))
    assert loaded.lost_count(group, topic, 0) == 4
    assert loaded.topics.named("orders").retention_ms == 3_600_000
    assert loaded.queue_begin(topic, 0) == 6
    again = node.command(c.SetTopicRetention(topic, 3_600_000), c.SetTopicRetention(99, 1))
    assert [each.changed for each in again.results if isinstance(each, TopicResult)] == [False, False]


class History:
    """A random history: commands and records of all kinds, sensible or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = EntryLog()
        self.ends: dict[tuple[int, int], int] = {}  # the dumb model: queue ends
        self.topics: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.next_topic = 1
        self.sequences: dict[tuple[int, int, int], int] = {}

    def entry(self) -> None:
        self.log.now += self.random.choice([0, 1, 5, 400])
        if self.random.random() < 0.03:
            self.log.add([], EntryKind.NOOP)
            return
        made = [self.section() for _ in range(self.random.randint(1, 3))]
        self.log.add([part for part in made if part is not None] or [command_section(c.FeatureLevel(1))])

    def section(self) -> bytearray | None:
        if self.random.random() < 0.5 and self.ends:
            return self.records()
        return command_section(*(self.command() for _ in range(self.random.randint(1, 3))))

    def records(self) -> bytearray:
        key = self.random.choice(sorted(self.ends))
        count = self.random.randint(1, 6)
        made = records(
            count,
            size=[10] if self.random.random() < 0.5 else [5, 90],
            tags=[1, 2, 3],
            first_id=self.random.randrange(1 << 60),
        )
        producer = self.random.randint(0, 2)
        sequence = self.sequences.get((producer, *key), 0)
        self.sequences[producer, *key] = sequence + count
        out = section(*key, made, producer_id=producer, base_sequence=sequence if producer else 0)
        seal_section(out, base_queue_offset=self.ends[key], entry_distance=64)
        self.ends[key] += count
        return out

    def command(self) -> c.Command:
        pick, low = self.random.randint(0, 13), self.random.randint
        topic, queue, group, offset = low(1, 5), low(0, 2), low(1, 3), low(0, 40)
        lease = low(1, len(self.log.raw) + 2)
        if pick == 0:
            return self._create()
        if pick == 1 and self.random.random() < 0.2:
            return self._delete(topic)
        if pick == 2:
            return c.CreateConsumerGroup(f"g{low(1, 3)}", c.LATEST, fifo=self.random.random() < 0.3)
        if pick == 3 and self.random.random() < 0.1:
            return c.DeleteConsumerGroup(group)
        if pick in (4, 5):
            return c.CommitOffsets(
                group, c.position_rows([(topic, queue, offset)]), self.random.random() < 0.2
            )
        if pick == 6:
            return c.SetPositions(group, c.position_rows([(topic, q, 0) for q in range(3)]))
        if pick in (7, 8, 9):
            offsets = np.array(sorted(self.random.sample(range(offset, offset + 9), 3)))
            start = self.random.choice([offset, 0, offset + 3])
            grants = (c.QueueGrant(queue, start, offset + 9, offsets),)
            return c.GrantLeases(group, topic, low(0, 500), grants, low(0, 1) * low(1, 3))
        if pick == 10:
            rows = [(low(0, 2), low(0, 40), lease) for _ in range(4)]
            return c.Ack(group, topic, c.lease_rows(rows), force=self.random.random() < 0.5)
        if pick == 11:
            return c.ChangeInvisible(group, topic, c.change_rows([(queue, offset, lease, low(0, 900))]))
        if pick == 12:
            return c.ReleaseLeases(group, topic, c.lease_rows([(queue, offset, lease)]))
        return self._rare(topic, queue)

    def _rare(self, topic: int, queue: int) -> c.Command:
        last, low = self.random.random(), self.random.randint
        if last < 0.3:
            return c.SessionLost(low(1, 3), 50)
        if last < 0.5:
            return c.EvictDedup(self.log.now - 4_000, self.log.now - 9_000)
        if last < 0.65:
            return c.SetTopicRetention(topic, low(0, 2) * 1000)
        if last < 0.7:
            return c.SetTopicKeepUnread(topic, queue > 0)
        if last < 0.8:
            return c.TrimQueues(c.position_rows([(topic, q, low(0, 12)) for q in range(3)]))
        return c.LogStart(len(self.log.raw), self.log.end, c.position_rows([(topic, queue, low(0, 9))]))

    def _create(self) -> c.CreateTopic:
        name = f"t{self.random.randint(1, 4)}"
        if name not in self.names:
            self.names[name], self.topics[self.next_topic] = self.next_topic, 3
            self.ends.update({(self.next_topic, queue): 0 for queue in range(3)})
            self.next_topic += 1
        return c.CreateTopic(name, 3)

    def _delete(self, topic: int) -> c.DeleteTopic:
        self.names = {name: known for name, known in self.names.items() if known != topic}
        self.ends = {key: end for key, end in self.ends.items() if key[0] != topic}
        return c.DeleteTopic(topic)


@pytest.mark.parametrize("seed", range(12))
def test_two_nodes_with_one_history_have_equal_checkpoints_even_when_one_restarts_from_its_own(
    seed: int,
) -> None:
    history = History(seed)
    steady, restarted = BrokerState(), BrokerState()
    begins: dict[tuple[int, int], int] = {}
    for index in range(1, 301):
        history.entry()
        steady.apply(*history.log.entry(index))
        restarted.apply(*history.log.entry(index))
        if history.random.random() < 0.05:
            raw = checkpoint(restarted)
            assert raw == checkpoint(steady), f"seed {seed} index {index}"
            restarted = without_tails(restarted, restored(raw))
        for queue in steady.queues:
            assert queue.begin >= begins.get(queue.key, 0), f"seed {seed} index {index}: a begin went back"
            begins[queue.key] = queue.begin
            assert restarted.queues.named(*queue.key).begin == queue.begin <= queue.end
    assert checkpoint(restarted) == checkpoint(steady)
    ends = {queue.key: queue.end for queue in steady.queues}
    assert ends == history.ends
    for key, found in steady.consumption.copy().items():
        assert found.committed <= found.position <= max(ends[key[1:]], found.position)
        assert np.all(np.diff(found.leases["offset"]) > 0)


def without_tails(old: BrokerState, new: BrokerState) -> BrokerState:
    """Check that a restored state knows the queues; its units are in files (see test_consume_queue.py)."""
    assert {queue.key: queue.end for queue in new.queues} == {queue.key: queue.end for queue in old.queues}
    return new


def test_that_a_topic_keeps_what_is_unread_survives_a_checkpoint_and_costs_nothing_without_it() -> None:
    node = Node()
    topic, other = node.topic(), node.topic("other")
    assert checkpoint(node.state)[4:8] == bytes([1, 0, 0, 0]), "older nodes read it"
    result = result_of(node.command(c.SetTopicKeepUnread(topic, True)), TopicResult)
    assert result.changed and result.topic is not None
    assert checkpoint(node.state)[4:8] == bytes([6, 0, 0, 0]), "older nodes would delete: they refuse it"
    loaded = restored(checkpoint(node.state))
    assert {each.topic_id: each.keep_unread for each in loaded.topics} == {topic: True, other: False}
    version = result.topic.version
    again = node.command(
        c.SetTopicKeepUnread(topic, True), c.SetTopicKeepUnread(99, True), c.SetTopicRetention(topic, 5)
    )
    assert [each.changed for each in again.results if isinstance(each, TopicResult)] == [False, False, True]
    assert (
        node.state.topics.named("orders").keep_unread and node.state.topics.named("orders").version > version
    )
    node.command(c.SetTopicKeepUnread(topic, False), c.CreateTopic("born-so", 1, keep_unread=True))
    assert [each.keep_unread for each in node.state.topics] == [False, False, True]

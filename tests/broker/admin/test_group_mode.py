"""Drain, undrain and removal of a broker group: refusals of the leader, checkpoints, answers to clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.admin.broker_group_mode import BrokerGroupModes
from ledgermq.broker.admin.broker_group_view import topic_info
from ledgermq.broker.checkpoint.layout import decode_snapshot, encode_snapshot, restore_state, take_snapshot
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.leader.leader_view import Turn, Verdict
from ledgermq.broker.leader.pipeline import Applied, SentMessage
from ledgermq.broker.official.send import _entry
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.service import features
from ledgermq.broker.service.broker_group_identity import BrokerGroupIdentity
from ledgermq.broker.service.features import Features
from ledgermq.broker.state.backlog import progress
from ledgermq.broker.state.commands import (
    LATEST,
    BrokerGroupMode,
    Command,
    CommitOffsets,
    FeatureLevel,
    JoinConsumerGroup,
    SetBrokerGroupMode,
    position_rows,
)
from ledgermq.broker.state.effects import ModeResult, TopicProgress
from ledgermq.broker.state.machine import BrokerState
from ledgermq.broker.state.topics import TRACE_TOPIC
from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2

from ..entry_log import Node, records, section

DRAIN, BACK, REMOVE = (
    SetBrokerGroupMode(mode)
    for mode in (BrokerGroupMode.DRAINING, BrokerGroupMode.ACTIVE, BrokerGroupMode.REMOVED)
)
REMOVE_IF_CONSUMED = SetBrokerGroupMode(BrokerGroupMode.REMOVED, if_consumed=True)


def bytes_of(state: BrokerState) -> bytes:
    return b"".join(encode_snapshot(take_snapshot(state)))


def offer(turn: Turn, topic: int, sequence: int, *, count: int = 2, producer: int = 9) -> Verdict:
    made = section(topic, 0, records(count), producer_id=producer, base_sequence=sequence)
    return turn.add_records(made).verdict


# --- what the leader takes ----------------------------------------------------------------------------------
def test_from_the_proposal_of_a_drain_on_new_sections_are_refused_and_stored_ones_recognised() -> None:
    node = Node()
    topic = node.topic()
    first = node.view.open_turn()
    assert offer(first, topic, 0) is Verdict.ACCEPTED
    first.add_command(DRAIN)
    assert offer(first, topic, 2) is Verdict.DRAINING, "the drain stands in the same entry"
    entry = node.propose(first)
    second = node.view.open_turn()
    assert offer(second, topic, 0) is Verdict.PENDING
    assert offer(second, topic, 2) is Verdict.DRAINING
    node.commit_proposed(entry)
    assert node.state.mode is BrokerGroupMode.DRAINING
    assert offer(second, topic, 0) is Verdict.DUPLICATE
    assert offer(second, topic, 2) is Verdict.DRAINING
    assert offer(second, topic, 4) is Verdict.DRAINING, (
        "what comes behind a refused section is refused like it"
    )
    assert offer(second, topic, 0, producer=0) is Verdict.DRAINING, "as the official clients send"
    assert not second.size


def test_a_drain_that_was_not_proposed_after_all_refuses_nothing() -> None:
    node = Node()
    topic = node.topic()
    turn = node.view.open_turn()
    turn.add_command(DRAIN)
    assert not node.view.takes_messages
    turn.abandon()
    assert offer(node.view.open_turn(), topic, 0) is Verdict.ACCEPTED


def test_messages_are_taken_again_when_that_is_applied_and_not_before() -> None:
    node = Node()
    topic = node.topic()
    node.command(DRAIN)
    turn = node.view.open_turn()
    turn.add_command(BACK)
    entry = node.propose(turn)
    assert offer(node.view.open_turn(), topic, 0) is Verdict.DRAINING
    node.commit_proposed(entry)
    assert offer(node.view.open_turn(), topic, 0) is Verdict.ACCEPTED


def test_a_new_leader_refuses_from_the_replicated_state() -> None:
    node = Node()
    topic = node.topic()
    node.command(DRAIN)
    successor = Node(restore_state(decode_snapshot(bytes_of(node.state), "x")))
    assert offer(successor.view.open_turn(), topic, 0) is Verdict.DRAINING


def test_a_leader_that_proposes_drain_after_drain_takes_messages_only_when_all_are_over() -> None:
    node = Node()
    topic = node.topic()
    first, second = node.view.open_turn(), node.view.open_turn()
    first.add_command(DRAIN)
    second.add_command(BACK)
    entries = [node.propose(first), node.propose(second)]
    third = node.view.open_turn()
    third.add_command(DRAIN)
    for entry in entries:
        node.commit_proposed(entry)
    assert node.state.mode is BrokerGroupMode.ACTIVE
    assert offer(node.view.open_turn(), topic, 0) is Verdict.DRAINING
    third.abandon()
    assert offer(node.view.open_turn(), topic, 0) is Verdict.ACCEPTED


# --- the state ----------------------------------------------------------------------------------------------
def test_a_mode_has_the_log_time_of_its_change_and_repeating_it_changes_nothing() -> None:
    node = Node()
    node.log.now += 50
    effects = node.command(DRAIN)
    assert effects.topics_changed, "the route is pushed"
    since = node.log.now
    assert effects.results == [ModeResult(BrokerGroupMode.DRAINING, since, True)]
    node.log.now += 50
    again = node.command(DRAIN)
    assert again.results == [ModeResult(BrokerGroupMode.DRAINING, since, False)]
    assert not again.topics_changed
    assert node.command(BACK).results == [ModeResult(BrokerGroupMode.ACTIVE, 0, True)]


def test_a_mode_survives_a_checkpoint_and_without_one_older_nodes_read_it() -> None:
    node = Node()
    node.topic()
    before = bytes_of(node.state)
    assert before[4] == 1
    assert decode_snapshot(before, "x").mode == (BrokerGroupMode.ACTIVE, 0)
    for command in (DRAIN, REMOVE):
        node.command(command)
        raw = bytes_of(node.state)
        restored = restore_state(decode_snapshot(raw, "x"))
        assert raw[4] == 4
        assert (restored.mode, restored.mode_since) == (command.mode, node.state.mode_since)
        assert bytes_of(restored) == raw
    node.command(BACK)
    assert bytes_of(node.state)[4] == 1


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_sent_drained_and_taken_back_no_message_comes_behind_a_drain(seed: int) -> None:
    """Random turns, proposed before earlier ones are applied, some abandoned; then the log is replayed."""
    choose, node = random.Random(seed), Node()
    topic, group = node.topic(queues=2), node.group()
    sequences: dict[int, int] = {}
    waiting: list[Any] = []
    for _ in range(200):
        turn, placed = node.view.open_turn(), []
        for _ in range(choose.randint(1, 4)):
            roll, producer = choose.random(), choose.randint(1, 3)
            if roll < 0.15:
                turn.add_command(choose.choice([DRAIN, BACK, REMOVE, REMOVE_IF_CONSUMED]))
            elif roll < 0.3:
                turn.add_command(CommitOffsets(group, position_rows([(topic, 0, choose.randint(0, 9))])))
            elif (
                offer(turn, topic, sequences.get(producer, 0), count=1, producer=producer) is Verdict.ACCEPTED
            ):
                sequences[producer] = sequences.get(producer, 0) + 1
                placed.append(producer)
        if not turn.size or choose.random() < 0.2:
            turn.abandon()
            for producer in placed:
                sequences[producer] -= 1
        else:
            waiting.append(node.propose(turn))
        while waiting and choose.random() < 0.5:
            node.commit_proposed(waiting.pop(0))
    for entry in waiting:
        node.commit_proposed(entry)
    replayed, drained_before = BrokerState(), False
    for index in range(1, len(node.log.raw) + 1):
        effects = replayed.apply(*node.log.entry(index))
        assert not (drained_before and effects.sections), f"entry {index} holds messages behind a drain"
        drained_before = replayed.mode is not BrokerGroupMode.ACTIVE
        for result in effects.results:
            if isinstance(result, ModeResult) and result.left:
                assert not result.changed
    assert bytes_of(replayed) == bytes_of(node.state)
    assert node.state.queue_end(topic, 0) == sum(sequences.values())


# --- a removal that depends on the state at that moment -----------------------------------------------------
def test_a_group_that_was_taken_back_before_the_removal_is_applied_stays() -> None:
    node = Node()
    assert node.command(REMOVE_IF_CONSUMED).results == [ModeResult(BrokerGroupMode.ACTIVE, 0, False)]
    node.command(DRAIN)
    effects = node.command(BACK, REMOVE_IF_CONSUMED)
    assert effects.results[1] == ModeResult(BrokerGroupMode.ACTIVE, 0, False)
    topic = node.topic()
    assert offer(node.view.open_turn(), topic, 0) is Verdict.ACCEPTED


def test_a_message_that_came_before_the_removal_is_applied_keeps_the_group_and_is_named() -> None:
    node = Node()
    orders, billing = node.topic("orders"), node.group("billing")
    node.command(DRAIN)
    since = node.state.mode_since
    node.log.now += 5
    node.fill(orders, 1, 3)
    left = (TopicProgress("", "orders", 1, 3),)
    assert node.command(REMOVE_IF_CONSUMED).results == [
        ModeResult(BrokerGroupMode.DRAINING, since, False, left)
    ]
    node.command(CommitOffsets(billing, position_rows([(orders, 1, 3)])))
    assert node.command(REMOVE_IF_CONSUMED).results == [
        ModeResult(BrokerGroupMode.REMOVED, node.log.now, True)
    ]
    assert node.command(REMOVE_IF_CONSUMED).results == [
        ModeResult(BrokerGroupMode.REMOVED, node.log.now, False)
    ]


def test_consumers_of_other_broker_groups_count_with_everything_that_they_never_came_for() -> None:
    node = Node()
    orders, billing = node.topic("orders"), node.group("billing", start=LATEST)
    node.group("late", start=LATEST)
    node.fill(orders, 0, 3)
    node.command(CommitOffsets(billing, position_rows([(orders, 0, 3)])), DRAIN)
    elsewhere = (("audit", "orders"), ("billing", "orders"), ("late", "orders"), ("audit", "gone"))
    (result,) = node.command(SetBrokerGroupMode(BrokerGroupMode.REMOVED, True, elsewhere)).results
    assert isinstance(result, ModeResult)
    assert result.left == (TopicProgress("audit", "orders", 1, 3), TopicProgress("late", "orders", 1, 3))
    assert node.state.mode is BrokerGroupMode.DRAINING
    assert node.command(REMOVE_IF_CONSUMED).results[0] == ModeResult(
        BrokerGroupMode.REMOVED, node.log.now, True
    )


def test_a_member_that_subscribes_consumes_a_topic_before_it_has_a_queue_of_it() -> None:
    node = Node()
    orders, billing = node.topic("orders"), node.group("billing")
    node.fill(orders, 0, 3)
    node.command(JoinConsumerGroup(billing, "worker", ("orders", "not-there")))
    assert progress(node.state) == [TopicProgress("billing", "orders", 1, 3)]


# --- what clients are told ----------------------------------------------------------------------------------
def test_topics_of_a_drained_group_can_only_be_read() -> None:
    node = Node()
    node.topic()
    (topic,) = node.state.topics
    assert topic_info(topic).permission == route_pb2.READ_WRITE
    assert topic_info(topic, writable=False).permission == route_pb2.READ


def test_official_clients_are_told_as_rocketmq_says_it_and_what_to_do() -> None:
    entry = _entry("id", SentMessage(0, -1, Verdict.DRAINING), "g0")
    assert entry.status.code == v2.FORBIDDEN
    assert "cluster undrain g0" in entry.status.message


# --- the call -----------------------------------------------------------------------------------------------
class Leader:
    """The only node of broker group g0: commands are applied at once, after what `first` does."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.command(FeatureLevel(features.SUPPORTED))
        self.first: Callable[[], object] = lambda: None
        self.peers: list[Any] = []
        config = BrokerConfig(cluster="local", group="g0", node_id="n1")
        raft: Any = SimpleNamespace(status=lambda: SimpleNamespace(peers=self.peers))
        replica: Any = SimpleNamespace(state=self.node.state)
        pipeline: Any = SimpleNamespace(run=self._run)
        known_features = Features(config, raft, replica, pipeline, Leadership("n1"))
        identity = BrokerGroupIdentity(config, raft)
        self.modes = BrokerGroupModes(config, replica, pipeline, identity, known_features)

    async def _run(self, command: Command) -> Applied:
        self.first()
        return await self.node.run(command)

    def ask(
        self, mode: int, *, group: str = "g0", force: bool = False, consumers: Sequence[tuple[str, str]] = ()
    ) -> admin_pb2.SetBrokerGroupModeResponse:
        pairs = [admin_pb2.TopicConsumer(group=name, topic=topic) for name, topic in consumers]
        request = admin_pb2.SetBrokerGroupModeRequest(group=group, force=force, consumers=pairs)
        request.mode = cast("route_pb2.BrokerGroupMode", mode)  # also numbers that have no name
        return asyncio.run(self.modes.set(request))


def test_a_group_is_drained_taken_back_and_removed_by_name() -> None:
    leader = Leader()
    answer = leader.ask(route_pb2.MODE_DRAINING)
    assert (answer.mode, answer.changed) == (route_pb2.MODE_DRAINING, True)
    assert answer.since_ms == leader.node.log.now
    assert not leader.ask(route_pb2.MODE_DRAINING).changed
    assert leader.ask(route_pb2.MODE_REMOVED).mode == route_pb2.MODE_REMOVED
    assert leader.ask(route_pb2.MODE_ACTIVE).since_ms == 0
    with pytest.raises(RefusedError, match='belongs to broker group "g0", not to "g1"'):
        leader.ask(route_pb2.MODE_DRAINING, group="g1")
    with pytest.raises(RefusedError, match="no mode 9"):
        leader.ask(9)


def test_a_group_is_not_removed_before_it_is_drained_and_consumed_unless_by_force() -> None:
    leader = Leader()
    node = leader.node
    orders, lonely, billing = node.topic("orders"), node.topic("lonely"), node.group("billing")
    node.fill(orders, 0, 5)
    node.fill(lonely, 0, 2)
    node.command(CommitOffsets(billing, position_rows([(orders, 0, 3)])))
    with pytest.raises(RefusedError, match="cluster drain g0 --wait"):
        leader.ask(route_pb2.MODE_REMOVED)
    node.command(DRAIN)
    with pytest.raises(RefusedError) as refused:
        leader.ask(route_pb2.MODE_REMOVED)
    assert (
        '2 of topic "lonely" by any consumer group, 2 of topic "orders" by consumer group "billing"'
        in str(refused.value)
    )
    assert node.state.mode is BrokerGroupMode.DRAINING
    assert leader.ask(route_pb2.MODE_REMOVED, force=True).changed


def test_a_removal_that_is_overtaken_by_an_undrain_is_refused() -> None:
    leader = Leader()
    leader.node.command(DRAIN)
    leader.first = lambda: leader.node.command(BACK)
    with pytest.raises(RefusedError, match=r"takes messages\. Nothing was changed\. Drain it first"):
        leader.ask(route_pb2.MODE_REMOVED)
    assert leader.node.state.mode is BrokerGroupMode.ACTIVE


def test_a_removal_that_is_overtaken_by_messages_is_refused_and_names_them() -> None:
    leader = Leader()
    node, orders = leader.node, leader.node.topic("orders")

    def message_between() -> None:
        node.command(BACK)
        node.fill(orders, 0, 2)
        node.command(DRAIN)

    node.command(DRAIN)
    leader.first = message_between
    with pytest.raises(
        RefusedError, match=r'not consumed: 2 of topic "orders" by any consumer group\. Nothing was changed'
    ):
        leader.ask(route_pb2.MODE_REMOVED)
    assert node.state.mode is BrokerGroupMode.DRAINING
    leader.first = lambda: None
    assert leader.ask(route_pb2.MODE_REMOVED, force=True).changed


def test_consumer_groups_that_never_came_here_are_named_and_hold_up_a_removal() -> None:
    leader = Leader()
    node, orders, billing = leader.node, leader.node.topic("orders"), leader.node.group("billing")
    node.fill(orders, 0, 2)
    node.command(CommitOffsets(billing, position_rows([(orders, 0, 2)])), DRAIN)
    elsewhere = [("audit", "orders"), ("audit", "another")]
    with pytest.raises(RefusedError, match='2 of topic "orders" by consumer group "audit"'):
        leader.ask(route_pb2.MODE_REMOVED, consumers=elsewhere)
    with pytest.raises(RefusedError, match='consumer group "au dit" has characters'):
        leader.ask(route_pb2.MODE_REMOVED, consumers=[("au dit", "orders")])
    request = admin_pb2.GetProgressRequest(
        consumers=[admin_pb2.TopicConsumer(group=name, topic=topic) for name, topic in elsewhere]
    )
    rows = [(row.group, row.behind) for row in leader.modes.progress(request).topics]
    assert rows == [("audit", 2), ("billing", 0)]
    assert leader.ask(route_pb2.MODE_REMOVED).changed


@pytest.mark.parametrize(("cluster", "group"), [("other", ""), ("", "g1"), ("other", "g0"), ("local", "g1")])
def test_a_node_does_not_answer_for_who_had_its_address_before(cluster: str, group: str) -> None:
    leader = Leader()
    request = admin_pb2.GetProgressRequest(cluster=cluster, broker_group=group)
    with pytest.raises(
        RefusedError, match='this is node n1 of broker group "g0" of cluster "local"'
    ) as caught:
        leader.modes.progress(request)
    refusal = caught.value.refusal
    assert (refusal.code, refusal.retryable) == (route_pb2.STALE_ROUTE, True), "another node may be the one"


def test_who_is_meant_answers_and_so_does_who_is_not_named() -> None:
    leader = Leader()
    for cluster, group in (("", ""), ("local", ""), ("", "g0"), ("local", "g0")):
        request = admin_pb2.GetProgressRequest(cluster=cluster, broker_group=group)
        assert leader.modes.progress(request).mode == route_pb2.MODE_ACTIVE


def test_a_group_of_another_cluster_is_not_drained() -> None:
    leader = Leader()
    for cluster in ("other", "local"):
        request = admin_pb2.SetBrokerGroupModeRequest(
            cluster=cluster, group="g0", mode=route_pb2.MODE_DRAINING
        )
        if cluster == "local":
            assert asyncio.run(leader.modes.set(request)).changed
            continue
        with pytest.raises(
            RefusedError, match=r'not of broker group "g0" of cluster "other".*Nothing was changed'
        ):
            asyncio.run(leader.modes.set(request))
        assert leader.node.state.mode is BrokerGroupMode.ACTIVE


def test_no_mode_is_written_that_an_older_node_of_the_group_would_stop_at() -> None:
    leader = Leader()
    leader.peers = [SimpleNamespace(node_id="n2", feature_level=features.BROKER_GROUP_MODES - 1)]
    entries = len(leader.node.log.raw)
    for mode in (route_pb2.MODE_DRAINING, route_pb2.MODE_REMOVED, route_pb2.MODE_ACTIVE):
        with pytest.raises(RefusedError, match="does not know how to drain or remove a broker group"):
            leader.ask(mode, force=True)
    assert len(leader.node.log.raw) == entries


def test_a_removed_group_is_taken_back_and_not_drained() -> None:
    leader = Leader()
    leader.node.command(REMOVE)
    with pytest.raises(RefusedError, match=r"was removed.*cluster undrain g0 --node HOST:8082"):
        leader.ask(route_pb2.MODE_DRAINING)
    assert not leader.ask(route_pb2.MODE_REMOVED).changed, "a repeat is a success"
    assert leader.ask(route_pb2.MODE_ACTIVE).changed


def test_traces_that_nobody_reads_hold_up_no_removal() -> None:
    leader = Leader()
    leader.node.fill(leader.node.topic(TRACE_TOPIC), 0, 2)
    leader.node.command(DRAIN)
    assert leader.ask(route_pb2.MODE_REMOVED).changed


def test_progress_is_told_with_the_mode_and_the_members() -> None:
    leader = Leader()
    node = leader.node
    orders, billing = node.topic("orders"), node.group("billing")
    node.fill(orders, 0, 5)
    node.command(CommitOffsets(billing, position_rows([(orders, 0, 3)])), DRAIN)
    answer = leader.modes.progress(admin_pb2.GetProgressRequest())
    assert answer.mode == route_pb2.MODE_DRAINING
    (row,) = answer.topics
    assert (row.group, row.topic, row.queues, row.behind) == ("billing", "orders", 1, 2)

"""The workloads of `ledgermq bench`, short, against a fake cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ledgermq.client.bench.unary_callers import targets
from ledgermq.client.bench.workloads import BrokerGroupsSelector, Settings, Workloads
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.errors import LedgerMQError, RefusedError, UsageError
from ledgermq.client.message import MessageQueue
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import route_pb2 as pb

from ..fake_messaging import MessagingCluster, status
from ..fakes import FakeCluster, FakeGroup

SHORT = Settings(size=32, seconds=0.02, warm_up_s=0.01, in_flight=8)


def short(cluster: FakeCluster, **changes: Any) -> Workloads:
    return Workloads(cluster.address, "orders", dataclasses.replace(SHORT, **changes))


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
async def test_producing_counts_what_is_stored(name: str) -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        figures = await short(cluster).run(name)
        assert 0 < figures.messages <= group.stored()
        assert sum(count for _, count in figures.histogram) == sum(figures.series) == figures.messages
        assert 0 < figures.p50_ms <= figures.p90_ms <= figures.p99_ms <= figures.p999_ms <= figures.max_ms


@pytest.mark.parametrize("producers", [1, 3])
async def test_batches_count_every_message_and_one_latency_each(producers: int) -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        figures = await short(cluster, batch=4, producers=producers).run("W3")
        assert 0 < figures.messages <= group.stored()
        assert figures.messages_per_call == 4
        assert 4 * sum(count for _, count in figures.histogram) == figures.messages
        assert group.stored() % 4 == 0


async def test_producers_share_what_is_in_flight() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        await short(cluster, producers=8).run("W3")
        assert len({producer for producer, _, _ in group.sessions}) == 8


async def test_one_message_in_flight_is_one_message_of_one_producer() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        figures = await short(cluster, producers=8, batch=8).run("W1")
        assert figures.messages_per_call == 1
        assert len({producer for producer, _, _ in group.sessions}) == 1


async def test_a_backlog_is_made_when_there_is_none_and_read_back_whole() -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        figures = await short(cluster).run("W4")
        assert figures.messages == sum(figures.series) == group.stored()
        assert sum(group.committed.values()) == group.stored()


async def test_the_backlog_is_what_the_workloads_before_stored() -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        runner = short(cluster)
        await runner.run("W5")
        await runner.run("W1")
        stored = group.stored()
        assert (await runner.run("W4")).messages == group.stored() == stored


async def test_every_message_sent_at_a_rate_is_received_once() -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        figures = await short(cluster, rate=1000).run("W5")
        assert figures.messages == 20
        assert group.stored() == 21


async def test_unary_callers_send_one_message_per_call_with_an_id_of_its_own() -> None:
    async with MessagingCluster(FakeGroup(topics={"orders": 2})) as cluster:
        figures = await short(cluster).run("W6")
        sent = cluster.messaging[0].sent
        assert 0 < figures.messages <= len(sent)
        assert {len(message.body) for message in sent} == {32}
        assert len({message.system_properties.message_id for message in sent}) == len(sent)


async def test_unary_callers_call_the_leader_or_the_followers_as_told() -> None:
    async with MessagingCluster(FakeGroup(topics={"orders": 2}), nodes=3) as cluster:
        await short(cluster).run("W6")
        assert [bool(port.sent) for port in cluster.messaging] == [True, False, False]
        cluster.messaging[0].sent.clear()
        await short(cluster, target="follower").run("W6")
        assert [bool(port.sent) for port in cluster.messaging] == [False, True, True]


async def test_unary_callers_say_what_a_node_refuses() -> None:
    async with MessagingCluster(FakeGroup(topics={"orders": 2})) as cluster:
        cluster.messaging[0].send_refusals.append(status(v2.TOPIC_NOT_FOUND, "no such topic"))
        with pytest.raises(RefusedError, match="no such topic") as raised:
            await short(cluster).run("W6")
        assert raised.value.code == "TOPIC_NOT_FOUND"
        await cluster.messaging[0].stop()
        with pytest.raises(LedgerMQError, match="does not answer"):
            await short(cluster).run("W6")


def test_there_must_be_somebody_to_call() -> None:
    node = Node("n1", "127.0.0.1:1", "127.0.0.1:2", True)
    with pytest.raises(
        LedgerMQError, match=r"broker group g0 has no leader that can be called. It has no leader now"
    ):
        targets([BrokerGroup("local", "g0", 1, "", (node,), True)], "leader")
    with pytest.raises(LedgerMQError, match="broker group g0 has no follower that can be called"):
        targets([BrokerGroup("local", "g0", 1, "n1", (node,), True)], "follower")


async def test_only_so_many_groups_get_messages() -> None:
    first, second = FakeGroup("g0", {"orders": 2}), FakeGroup("g1", {"orders": 2})
    async with FakeCluster(first, second) as cluster:
        await short(cluster, groups=1).run("W3")
        assert first.stored() and not second.stored()
        await short(cluster).run("W3")
        assert second.stored()
        with pytest.raises(UsageError, match=r"the cluster has 2.*--groups 2"):
            await short(cluster, groups=3).run("W3")


def test_the_choice_among_groups_goes_round_their_queues_and_falls_back_to_all() -> None:
    queues = [MessageQueue("orders", group, number) for group in ("g0", "g1") for number in range(2)]
    selector = BrokerGroupsSelector(["g1"])
    seen = []
    for _ in range(4):
        seen.append(selector.choose(queues, ""))
        selector.on_flush()
    assert seen == [2, 3, 2, 3]
    assert selector.choose(queues[:2], "") in (0, 1)  # its groups take nothing now


@pytest.mark.parametrize("name", ["W1", "W5"])
async def test_a_refused_message_ends_the_workload(name: str) -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        cluster.node().refusals.extend([pb.Refusal(code=pb.INVALID_ARGUMENT, message="no")] * 50)
        with pytest.raises(RefusedError, match="no"):
            await short(cluster).run(name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 9}, "a batch of 9 messages does not fit into 8 in flight.*--in-flight 9"),
        ({"producers": 9}, "9 producers cannot share 8 messages in flight.*--in-flight 9"),
        ({"target": "boss"}, 'there is no target "boss". Choose leader or follower'),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Workloads("127.0.0.1:1", "orders", dataclasses.replace(SHORT, **changes))

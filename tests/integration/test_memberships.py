"""Queue-exclusive consumer groups on three real nodes: hand-over, crash, leave, failover, fenced commits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, route_pb2

from .cluster import Cluster
from .group_member import ConsumerGroupMember

TOPIC = "exclusive"
GROUP = "workers"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nodes=3) as running:
        create_topic(running, TOPIC, 4)
        yield running


def create_topic(cluster: Cluster, name: str, queues: int) -> None:
    change(cluster, "CreateTopic", admin_pb2.CreateTopicRequest(topic=name, queue_count=queues))


def member(cluster: Cluster, name: str, *topics: str, **options: int | str) -> ConsumerGroupMember:
    addresses = [cluster.address(node) for node in cluster.nodes]
    made = ConsumerGroupMember(addresses, GROUP, name, list(topics or (TOPIC,)), **options)
    made.start()
    return made


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("one"), nodes=1) as running:
        yield running


def change(cluster: Cluster, method: str, request: object) -> None:
    """Call AdminService, which must not refuse."""
    with grpc.insecure_channel(cluster.address(cluster.wait_leader())) as channel:
        answer = getattr(admin_pb2_grpc.AdminServiceStub(channel), method)(request, timeout=10)
    assert not answer.HasField("refusal"), answer.refusal.message


async def describe(cluster: Cluster, node: str) -> admin_pb2.DescribeGroupResponse:
    async with grpc.aio.insecure_channel(cluster.address(node)) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        answer: admin_pb2.DescribeGroupResponse = await stub.DescribeGroup(
            admin_pb2.DescribeGroupRequest(name=GROUP), timeout=10
        )
    return answer


async def test_queues_are_handed_over_as_members_come_go_and_crash(cluster: Cluster) -> None:
    a = member(cluster, "a")
    await a.until(0, 1, 2, 3, members=1)
    kept = a.owned[TOPIC, 0]
    b = member(cluster, "b", session_timeout_ms=500)
    await b.until(2, 3, members=2)
    await a.until(0, 1, members=2)
    assert a.owned[TOPIC, 0] == kept, "what stays is not touched"
    assert (await a.commit((TOPIC, 2), 0, kept)).code == route_pb2.FENCED
    assert not (await b.commit((TOPIC, 2), 0)).code
    await b.crash()
    await a.until(0, 1, 2, 3, members=1)
    c = member(cluster, "c")
    await c.until(2, 3)
    await c.leave()
    await a.until(0, 1, 2, 3, members=1)
    d = member(cluster, "d", release_ms=300)
    await d.until(2, 3)
    d.hands_over = False
    await a.leave()
    await d.until(0, 1, 2, 3)
    e = member(cluster, "e")
    await e.until(2, 3)  # not handed over: taken at the deadline
    await asyncio.gather(d.crash(), e.crash())


async def test_members_keep_their_queues_when_the_leader_is_lost(cluster: Cluster) -> None:
    leader = await asyncio.to_thread(cluster.wait_leader)
    members = []
    for name, counts in (("a", (4,)), ("b", (2, 2)), ("c", (2, 1, 1))):
        members.append(member(cluster, name))
        for each, count in zip(members, counts, strict=True):
            await each.until_count(count)
    for each in members:
        assert {(found.code, found.leader_id) for found in each.refusals} <= {(route_pb2.NOT_LEADER, leader)}
    total = {queue: epoch for each in members for queue, epoch in each.owned.items()}
    assert sorted(total) == [(TOPIC, queue) for queue in range(4)]
    streams = [each.streams for each in members]
    await asyncio.to_thread(cluster.kill, leader)
    await asyncio.to_thread(cluster.wait_leader, leader)
    for each, before in zip(members, streams, strict=True):
        await each.until_answered_on_stream(before + 1)
    assert {queue: epoch for each in members for queue, epoch in each.owned.items()} == total
    (queue, epoch), *_ = members[0].owned.items()
    assert not (await members[0].commit(queue, 0)).code
    assert (await members[0].commit(queue, 0, epoch + 1)).code == route_pb2.FENCED
    for node in cluster.nodes:
        if node != leader:
            answer = await describe(cluster, node)
            assert [(each.member_id, each.queues) for each in answer.members] == [
                ("a", 2),
                ("b", 1),
                ("c", 1),
            ]
            assert {(each.topic, each.queue_id): each.epoch for each in answer.queues} == total
            assert {each.owner for each in answer.queues} == {"a", "b", "c"}
    await asyncio.gather(*(each.crash() for each in members))


async def test_a_topic_that_appears_and_one_that_goes_reach_the_members(cluster: Cluster) -> None:
    a = member(cluster, "a", "later")
    await a.wait(lambda: any('"later" does not exist' in text for text in a.warnings), "a warning")
    await asyncio.to_thread(create_topic, cluster, "later", 3)
    await a.until(0, 1, 2)
    b = member(cluster, "b", "later", TOPIC)
    await b.wait(lambda: {topic for topic, _ in b.owned} == {"later", TOPIC}, "queues of both topics")
    await a.wait(
        lambda: any('"b" to exclusive, later, "a" to later' in text for text in a.warnings), "a warning"
    )
    await asyncio.to_thread(change, cluster, "DeleteTopic", admin_pb2.DeleteTopicRequest(topic="later"))
    await a.until()
    await b.until(0, 1, 2, 3)
    await asyncio.to_thread(change, cluster, "DeleteGroup", admin_pb2.DeleteGroupRequest(name=GROUP))
    await b.until_refused(route_pb2.GROUP_NOT_FOUND)
    await asyncio.gather(a.crash(), b.crash())


async def test_who_takes_an_id_that_is_in_use_takes_the_membership(cluster: Cluster) -> None:
    first = member(cluster, "same")
    await first.until(0, 1, 2, 3)
    owned = dict(first.owned)
    second = member(cluster, "same")
    await second.until(0, 1, 2, 3)
    await first.until_refused(route_pb2.FENCED)
    assert second.owned == owned
    await asyncio.gather(first.crash(), second.crash())


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (log_pb2.MembershipRequest(group="g", topics=["t"]), "needs an id"),
        (log_pb2.MembershipRequest(group="g", member_id="a"), "no topic"),
        (
            log_pb2.MembershipRequest(group="g", member_id="a", topics=["t"], allocation="x"),
            "sticky, average",
        ),
        (
            log_pb2.MembershipRequest(group="g", member_id="a", topics=["t"], release_ms=99_999),
            "at most 30000",
        ),
        (log_pb2.MembershipRequest(group="?", member_id="a", topics=["t"]), "characters besides"),
        (
            log_pb2.MembershipRequest(group="g", member_id="a", topics=["t"], session_timeout_ms=1),
            "500 to 60000",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    one_node: Cluster, first: log_pb2.MembershipRequest, text: str
) -> None:
    with grpc.insecure_channel(one_node.address("n1")) as channel:
        answers = list(log_pb2_grpc.LogServiceStub(channel).Membership(iter([first]), timeout=10))
    (answer,) = answers
    assert (answer.refusal.code, answer.refusal.retryable) == (route_pb2.INVALID_ARGUMENT, False)
    assert text in answer.refusal.message

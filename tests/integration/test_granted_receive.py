"""The official protocol at followers of three real nodes: the leader leases, the follower reads its log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import grpc
import pytest

from ledgermq.client import Admin, Producer
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

from .cluster import Cluster, wait_until
from .history import run_client

BODY = bytes(range(256)) * 12
METADATA = (("x-mq-client-id", "raw"),)
LONG_MS = 60_000  # a lease that no test outlives


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("granted"), nodes=3, settings={"min-invisible-ms": "50"}) as running:
        yield running


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> None:
    cluster.start_all()
    cluster.wait_leader()


def followers(cluster: Cluster) -> list[str]:
    leader = cluster.wait_leader()
    return cluster.others(leader)


def prepare(cluster: Cluster, topic: str, count: int, *, fifo: bool = False) -> list[bytes]:
    """Create a topic and a consumer group of its name, and send; return the bodies in sending order."""
    sent = [b"%06d" % number + BODY for number in range(count)]

    async def run() -> None:
        async with Admin(cluster.nameserver) as admin:
            await admin.create_topic(topic, 1, message_type="fifo" if fifo else "normal")
            await admin.create_group(topic, fifo=fifo)
        async with Producer(cluster.nameserver) as producer:
            group = "one" if fifo else ""
            await asyncio.gather(*(producer.send(topic, body, message_group=group) for body in sent))

    run_client(run())
    return sent


class RawConsumer:
    """Talks the official protocol to one node; its consumer group has the name of its topic."""

    def __init__(self, cluster: Cluster, node: str, topic: str) -> None:
        self._channel = grpc.insecure_channel(cluster.address(node, "messaging"))
        self._stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(self._channel)
        self._topic = topic

    def __enter__(self) -> RawConsumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()

    def receive(
        self, invisible_ms: int = LONG_MS, poll_ms: int = 5_000, attempt: str = "", count: int = 32
    ) -> list[v2.Message]:
        request = v2.ReceiveMessageRequest(batch_size=count)
        if attempt:
            request.attempt_id = attempt
        request.message_queue.topic.name = request.group.name = self._topic
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromMilliseconds(poll_ms)
        frames = list(self._stub.ReceiveMessage(request, metadata=METADATA, timeout=15))
        assert frames[0].status.code in (v2.OK, v2.MESSAGE_NOT_FOUND), frames[0].status
        return [frame.message for frame in frames if frame.WhichOneof("content") == "message"]

    def acknowledge(self, messages: Sequence[v2.Message]) -> list[int]:
        request = v2.AckMessageRequest()
        request.topic.name = request.group.name = self._topic
        for message in messages:
            properties = message.system_properties
            request.entries.add(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        answer = self._stub.AckMessage(request, metadata=METADATA, timeout=15)
        return [entry.status.code for entry in answer.entries]


def metric(cluster: Cluster, node: str, name: str) -> float:
    """Return a counter of a node, 0 when it was never touched."""
    _, text = cluster.http(node, "/metrics")
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} "))


OWN = 'ledgermq_granted_messages_total{read_from="own_log"}'
FROM_LEADER = 'ledgermq_granted_messages_total{read_from="leader"}'
OUT = 'rocketmq_messages_out_total{service="messaging"}'


def received_bytes(cluster: Cluster, node: str) -> float:
    return sum(
        metric(cluster, node, f'ledgermq_receive_bytes_from_leader_total{{kind="{kind}"}}')
        for kind in ("grant", "messages")
    )


def test_bodies_come_from_the_followers_log_and_the_leader_sends_grants_only(cluster: Cluster) -> None:
    sent = prepare(cluster, "own-log", 200)
    leader, (follower, _) = cluster.wait_leader(), followers(cluster)
    at_leader, before = metric(cluster, leader, OUT), received_bytes(cluster, follower)
    own, from_leader = metric(cluster, follower, OWN), metric(cluster, follower, FROM_LEADER)
    received: list[bytes] = []
    with RawConsumer(cluster, follower, "own-log") as consumer:
        while len(received) < len(sent):
            messages = consumer.receive()
            received += [message.body for message in messages]
            assert set(consumer.acknowledge(messages)) == {v2.OK}
    assert received == sent
    assert metric(cluster, leader, OUT) == at_leader, "the leader handed out nothing"
    assert metric(cluster, follower, OWN) - own == len(sent)
    assert metric(cluster, follower, FROM_LEADER) == from_leader
    assert received_bytes(cluster, follower) - before < 60 * len(sent), "of 3 KiB each"


def test_leases_and_attempts_are_the_same_at_every_node(cluster: Cluster) -> None:
    """Each node in turn gets the message after the last lease has expired; only the last handle counts."""
    (body,) = prepare(cluster, "attempts", 1)
    handles = []
    for attempt, node in enumerate(cluster.nodes, 1):
        with RawConsumer(cluster, node, "attempts") as consumer:
            (message,) = consumer.receive(LONG_MS if attempt == 3 else 300, poll_ms=10_000)
        properties = message.system_properties
        assert (message.body, properties.delivery_attempt, properties.queue_offset) == (body, attempt, 0)
        handles.append(message)
    with RawConsumer(cluster, followers(cluster)[0], "attempts") as consumer:
        assert consumer.acknowledge(handles) == [
            v2.INVALID_RECEIPT_HANDLE,
            v2.INVALID_RECEIPT_HANDLE,
            v2.OK,
        ]
        assert consumer.receive(poll_ms=0) == []


def test_a_fifo_group_keeps_its_order_over_all_nodes(cluster: Cluster) -> None:
    sent = prepare(cluster, "in-order", 60, fifo=True)
    received: list[bytes] = []
    first, second = followers(cluster)
    with (
        RawConsumer(cluster, first, "in-order") as one,
        RawConsumer(cluster, second, "in-order") as other,
        RawConsumer(cluster, cluster.wait_leader(), "in-order") as at_leader,
    ):
        consumers = [one, at_leader, other]
        while len(received) < len(sent):
            consumer = consumers[len(received) // 10 % 3]
            attempt = f"attempt-{len(received)}"
            messages = consumer.receive(attempt=attempt, count=10)
            for each in consumers:
                assert each.receive(poll_ms=0, attempt="of another client") == [], "the queue is locked"
            again = other.receive(attempt=attempt, count=10)
            assert [each.system_properties.receipt_handle for each in again] == [
                each.system_properties.receipt_handle for each in messages
            ], "a repeated attempt gets its batch again, at whichever node"
            received += [message.body for message in messages]
            assert set(one.acknowledge(messages)) == {v2.OK}
    assert received == sent


def test_a_consumer_that_waits_at_a_follower_gets_a_new_message_at_once(cluster: Cluster) -> None:
    prepare(cluster, "waiting", 0)
    with RawConsumer(cluster, followers(cluster)[0], "waiting") as consumer:
        found: list[v2.Message] = []
        thread = threading.Thread(target=lambda: found.extend(consumer.receive(poll_ms=10_000)))
        thread.start()

        async def send() -> None:
            async with Producer(cluster.nameserver) as producer:
                await producer.send("waiting", b"now")

        run_client(send())
        thread.join()
    assert [message.body for message in found] == [b"now"]


def test_a_follower_that_comes_back_serves_before_it_has_caught_up(cluster: Cluster) -> None:
    """What it has not applied yet it gets from the leader; order and number are the same."""
    follower = followers(cluster)[0]
    cluster.kill(follower)
    sent = prepare(cluster, "back", 300)
    cluster.start(follower)
    received: list[bytes] = []
    with RawConsumer(cluster, follower, "back") as consumer:

        def receive_all() -> bool:
            try:
                while len(received) < len(sent):
                    messages = consumer.receive()
                    received.extend(message.body for message in messages)
                    consumer.acknowledge(messages)
            except grpc.RpcError:
                return False  # it does not listen yet
            return True

        wait_until(receive_all, "everything was received")
    assert received == sent


def test_the_death_of_a_leader_between_grants_loses_nothing(cluster: Cluster) -> None:
    sent = prepare(cluster, "fail-over", 200)
    leader, (follower, _) = cluster.wait_leader(), followers(cluster)
    received: set[bytes] = set()
    with RawConsumer(cluster, follower, "fail-over") as consumer:
        killed = False
        while received != set(sent):
            messages = consumer.receive(invisible_ms=1_000, count=8)
            received.update(message.body for message in messages)
            if len(received) > 80 and not killed:
                cluster.kill(leader)
                killed = True
            consumer.acknowledge(messages)
    assert killed

"""Answers are lost in every way: cut connections, stopped and killed leaders. Each message is stored once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import grpc
import pytest

from ledgermq.client.produce.message_ids import process_ids
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc
from tests.ports import free_ports

from .checks import check_every_node, wait_for_more
from .cluster import Cluster, Process, wait_until
from .cutting_proxy import CuttingProxy
from .history import Load, read_topic

IN_FLIGHT = 256
METADATA = (("x-mq-client-id", "retries"), ("x-mq-language", "PYTHON"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("deduplication"),
        nodes=3,
        settings={"segment-size": "8MiB", "max-message-bytes": "1MiB"},
    ) as running:
        yield running


# --- LedgerMQ's own producer ------------------------------------------------------------------------------


class ProxiedCluster(Cluster):
    """Clients of its LogService come through a proxy per node: nodes advertise the proxies' addresses."""

    def __init__(self, folder: Path) -> None:
        self.proxy_ports: dict[str, int] = {}
        super().__init__(folder, 3)

    def _broker(self, name: str, ports: dict[str, int], peers: str, options: dict[str, str]) -> Process:
        process = super()._broker(name, ports, peers, options)
        (self.proxy_ports[name],) = free_ports(1)
        place = process.arguments.index("--listener") + 1
        process.arguments[place] += f",log_advertise=127.0.0.1:{self.proxy_ports[name]}"
        return process


def test_a_producer_whose_connections_are_cut_stores_each_message_once(tmp_path: Path) -> None:
    with ProxiedCluster(tmp_path) as cluster, ExitStack() as stack:
        proxies = [
            stack.enter_context(CuttingProxy(port, cluster.nodes[name].ports["log"], seed))
            for seed, (name, port) in enumerate(cluster.proxy_ports.items())
        ]
        with Load(cluster.nameserver, "cut", in_flight=IN_FLIGHT).running() as load:
            wait_for_more(load)
            for proxy in proxies:
                proxy.start_cutting()
            wait_until(lambda: sum(proxy.cuts for proxy in proxies) >= 20, "20 connections are cut")
            leader = cluster.kill_leader()
            cluster.wait_leader(other_than=leader)
            cuts = sum(proxy.cuts for proxy in proxies)
            wait_until(lambda: sum(proxy.cuts for proxy in proxies) >= cuts + 20, "20 more are cut")
            for proxy in proxies:
                proxy.stop_cutting()
            cluster.restart(leader)
        assert not load.history.unknown, "a send failed that should have been repeated"
        check_every_node(cluster, "cut", load.history)


def test_a_leader_that_stops_and_wakes_with_requests_in_hand_stores_each_message_once(
    cluster: Cluster,
) -> None:
    with Load(cluster.nameserver, "stopped", in_flight=IN_FLIGHT).running() as load:
        for _ in range(4):
            wait_for_more(load)
            leader = cluster.wait_leader()
            cluster.pause(leader)
            cluster.wait_leader(other_than=leader)
            wait_for_more(load)
            cluster.resume(leader)
            cluster.wait_ready(leader)
    assert not load.history.unknown
    check_every_node(cluster, "stopped", load.history)


def test_a_leader_that_is_killed_with_256_messages_in_flight_leaves_each_stored_once(
    cluster: Cluster,
) -> None:
    with Load(cluster.nameserver, "killed", in_flight=IN_FLIGHT).running() as load:
        for _ in range(6):
            wait_for_more(load)
            leader = cluster.kill_leader()
            cluster.wait_leader(other_than=leader)
            cluster.restart(leader)
    assert not load.history.unknown
    check_every_node(cluster, "killed", load.history)


# --- the official protocol: the same message id again -----------------------------------------------------


def request_of(topic: str, *bodies: bytes) -> v2.SendMessageRequest:
    """Return a request whose repetition is a retry: message ids stay."""
    request = v2.SendMessageRequest()
    for body in bodies:
        message = request.messages.add(topic=v2.Resource(name=topic), body=body)
        message.system_properties.message_id = process_ids().next(0)[1]
        message.system_properties.message_type = v2.NORMAL
        message.system_properties.born_timestamp.FromMilliseconds(0)
    return request


def send_to(address: str, request: v2.SendMessageRequest) -> list[int]:
    """Send; return the offset of each message. Raises: AssertionError when it is refused."""
    with grpc.insecure_channel(address) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        answer = stub.SendMessage(request, timeout=15, metadata=METADATA)
    assert answer.status.code == v2.OK, answer.status.message
    assert [entry.message_id for entry in answer.entries] == [
        message.system_properties.message_id for message in request.messages
    ]
    return [entry.offset for entry in answer.entries]


def stored_bodies(cluster: Cluster, topic: str) -> list[bytes]:
    return sorted(read_topic(cluster.address(cluster.wait_leader()), topic).values())


def messaging_addresses(cluster: Cluster) -> list[str]:
    return [cluster.address(name, "messaging") for name in cluster.nodes]


def test_the_same_message_sent_to_every_node_is_stored_once(cluster: Cluster) -> None:
    requests = [
        request_of("official-once", b"one"),
        request_of("official-once", b"two", b"three", b"four"),
    ]
    for request in requests:
        offsets = [send_to(address, request) for address in messaging_addresses(cluster)]
        assert offsets == [offsets[0]] * 3
    assert stored_bodies(cluster, "official-once") == [b"four", b"one", b"three", b"two"]


def test_the_same_message_sent_to_all_nodes_at_the_same_time_is_stored_once(cluster: Cluster) -> None:
    topic, addresses = "official-race", messaging_addresses(cluster)
    send_to(addresses[0], request_of(topic, b"the topic exists"))
    with ThreadPoolExecutor(6) as pool:
        for number in range(20):
            request = request_of(topic, f"race-{number:02}".encode())
            offsets = list(pool.map(lambda at, sent=request: send_to(at, sent), addresses * 2))
            assert offsets == [offsets[0]] * 6
    expected = [f"race-{number:02}".encode() for number in range(20)]
    assert stored_bodies(cluster, topic) == [*expected, b"the topic exists"]


def test_a_message_sent_again_after_a_failover_is_stored_once(cluster: Cluster) -> None:
    topic = "official-failover"
    requests = [request_of(topic, f"before-{number}".encode()) for number in range(10)]
    leader = cluster.wait_leader()
    first = [send_to(cluster.address(leader, "messaging"), request) for request in requests]
    cluster.kill(leader)
    others = [cluster.address(name, "messaging") for name in cluster.nodes if name != leader]
    for address in others:  # they wait through the election
        assert [send_to(address, request) for request in requests] == first
    cluster.restart(leader)
    assert [send_to(cluster.address(leader, "messaging"), request) for request in requests] == first
    assert stored_bodies(cluster, topic) == [f"before-{number}".encode() for number in range(10)]


def test_messages_under_way_to_a_leader_that_is_killed_are_stored_once_after_a_retry(
    cluster: Cluster,
) -> None:
    """Whether the first copy was committed before the leader died is unknown: then clients send again."""
    topic, count = "official-killed", 256
    requests = [request_of(topic, f"open-{number:03}".encode()) for number in range(count)]
    leader = cluster.wait_leader()
    at_leader = cluster.address(leader, "messaging")
    send_to(at_leader, request_of(topic, b"the topic exists"))
    acknowledged = Event()

    def send_or_lose(request: v2.SendMessageRequest) -> bool:
        try:
            send_to(at_leader, request)
        except grpc.RpcError:
            return False
        acknowledged.set()
        return True

    with ThreadPoolExecutor(32) as pool:
        open_sends = [pool.submit(send_or_lose, request) for request in requests]
        assert acknowledged.wait(30)
        cluster.kill(leader)
        assert not all(each.result() for each in open_sends), "the leader was killed too late"
    others = [cluster.address(name, "messaging") for name in cluster.nodes if name != leader]
    for request in requests:
        assert send_to(others[0], request) == send_to(others[1], request)
    cluster.restart(leader)
    expected = [f"open-{number:03}".encode() for number in range(count)]
    assert stored_bodies(cluster, topic) == [*expected, b"the topic exists"]

"""Brokers and nameservers with two listeners: a client gets only addresses of its own network.

The two networks are 127.0.0.1 and localhost: every address that a client is given shows which one it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import grpc
import pytest

from ledgermq.client import Admin, Producer, SimpleConsumer
from ledgermq.proto import log_pb2, log_pb2_grpc, nameserver_pb2_grpc, rocketmq_v2_pb2_grpc, route_pb2
from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import rocketmq_v2_pb2 as v2
from tests.broker.entry_log import records, section
from tests.ports import free_ports

from .cluster import Cluster, Process, wait_until
from .history import describe_topic, run_client

TOPIC = "two-networks"
HOSTS: Final = {"internal": "127.0.0.1", "external": "localhost"}


class TwoNetworks(Cluster):
    """Each process listens once per network and advertises the host name of that network."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.ports: dict[tuple[str, str, str], int] = {}  # (process, network, kind)
        super().__init__(folder, nodes)

    def _nameserver(self, number: int, port: int) -> Process:
        process = super()._nameserver(number, port)
        process.arguments = ["-m", "ledgermq.nameserver"]
        for network, port_of in zip(HOSTS, (port, *free_ports(1)), strict=True):
            self.ports[process.name, network, "route"] = port_of
            process.arguments += ["--listener", f"{network}=127.0.0.1:{port_of}"]
        return process

    def _broker(self, name: str, ports: dict[str, int], peers: str, options: dict[str, str]) -> Process:
        process = super()._broker(name, ports, peers, options)
        more = free_ports(2)
        listeners = []
        for network, (messaging, log) in zip(
            HOSTS, ((ports["messaging"], ports["log"]), (more[0], more[1])), strict=True
        ):
            self.ports[name, network, "messaging"], self.ports[name, network, "log"] = messaging, log
            host = HOSTS[network]
            listeners.append(
                f"name={network},messaging_bind=127.0.0.1:{messaging},messaging_advertise={host}:{messaging},"
                f"log_bind=127.0.0.1:{log},log_advertise={host}:{log}"
            )
        process.arguments[process.arguments.index("--listener") + 1] = ";".join(listeners)
        return process

    def at(self, process: str, network: str, kind: str) -> str:
        """Return the address that a client of a network is told."""
        return f"{HOSTS[network]}:{self.ports[process, network, kind]}"

    def all_at(self, network: str, kind: str) -> set[str]:
        return {self.at(name, network, kind) for name in self.nodes}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNetworks]:
    with TwoNetworks(tmp_path_factory.mktemp("networks")) as running:

        async def create_topic() -> None:
            async with Admin(running.at("ns1", "internal", "route")) as admin:
                await admin.create_topic(TOPIC, 4)

        run_client(create_topic())
        yield running


def told(groups: Iterable[route_pb2.GroupRoute]) -> tuple[set[str], set[str]]:
    """Return all messaging and all log addresses of a route."""
    listeners = [each for group in groups for node in group.nodes for each in node.listeners]
    return {each.messaging_address for each in listeners}, {each.log_address for each in listeners}


@pytest.mark.parametrize("network", HOSTS)
def test_a_nameserver_tells_the_addresses_of_the_network_that_it_is_asked_from(
    cluster: TwoNetworks, network: str
) -> None:
    expected = cluster.all_at(network, "messaging"), cluster.all_at(network, "log")
    with grpc.insecure_channel(cluster.at("ns1", network, "route")) as channel:
        stub = nameserver_pb2_grpc.NameServerServiceStub(channel)

        def route() -> bool:
            answer = stub.GetRoute(ns.GetRouteRequest(topic=TOPIC), timeout=5)
            return not answer.refusal.code and told(answer.groups) == expected

        wait_until(route, "the route carries the addresses of this network only")
        assert told(stub.ListGroups(ns.ListGroupsRequest(), timeout=5).groups) == expected
        watched = stub.WatchRoutes(ns.WatchRoutesRequest(topics=[TOPIC]), timeout=5)
        assert told(next(watched).groups) == expected
        watched.cancel()


def queried_addresses(address: str) -> set[str]:
    """Return all messaging addresses that a node gives an official client, in routes and in assignments."""
    topic, metadata = v2.Resource(name=TOPIC), (("x-mq-client-id", "networks"), ("x-mq-language", "PYTHON"))
    with grpc.insecure_channel(address) as channel:
        stub = rocketmq_v2_pb2_grpc.MessagingServiceStub(channel)
        route = stub.QueryRoute(v2.QueryRouteRequest(topic=topic), timeout=5, metadata=metadata)
        asked = v2.QueryAssignmentRequest(topic=topic, group=v2.Resource(name="anybody"))
        assigned = stub.QueryAssignment(asked, timeout=5, metadata=metadata)
    assert route.status.code == v2.OK, route.status.message
    queues = [*route.message_queues, *(each.message_queue for each in assigned.assignments)]
    return {f"{to.host}:{to.port}" for queue in queues for to in queue.broker.endpoints.addresses}


@pytest.mark.parametrize("network", HOSTS)
def test_every_node_answers_query_route_with_the_addresses_of_the_callers_network(
    cluster: TwoNetworks, network: str
) -> None:
    expected = cluster.all_at(network, "messaging")
    for name in cluster.nodes:

        def told_all(address: str = cluster.at(name, network, "messaging")) -> bool:
            found = queried_addresses(address)
            assert found <= expected, f"{address} names addresses of another network: {found - expected}"
            return found == expected

        wait_until(told_all, f"{name} knows the others' addresses")


@pytest.mark.parametrize("network", HOSTS)
def test_a_follower_names_the_leaders_address_in_the_callers_network(
    cluster: TwoNetworks, network: str
) -> None:
    leader = cluster.wait_leader()
    follower = cluster.others(leader)[0]
    with grpc.insecure_channel(cluster.at(follower, network, "log")) as channel:
        stub = log_pb2_grpc.LogServiceStub(channel)
        one = bytes(
            section(describe_topic(cluster.at(leader, network, "log"), TOPIC).topic_id, 0, records(1))
        )
        request = log_pb2.ProduceRequest(request_id=1, sections=one, section_count=1)
        answers = stub.Produce(iter([request]), timeout=5)
        refusal = next(answers).refusal
        answers.cancel()
    assert refusal.code == route_pb2.NOT_LEADER, refusal.message
    assert refusal.leader_address == cluster.at(leader, network, "log")


async def send_and_receive(nameserver: str, network: str, phase: str) -> None:
    async with Admin(nameserver) as admin, Producer(nameserver) as producer:
        group = f"{network}-readers"
        await admin.create_group(group, start="latest", if_not_exists=True)
        async with SimpleConsumer(nameserver, group=group) as consumer:
            await consumer.subscribe(TOPIC)
            await consumer.receive(timeout_ms=0)  # now the consumer group has a position
            sent = {f"{network} {phase} {number}".encode() for number in range(20)}
            for body in sent:
                await producer.send(TOPIC, body)
            received: set[bytes] = set()
            while not sent <= received:
                for message in await consumer.receive():
                    await consumer.ack(message)
                    received.add(message.body)


def test_clients_of_both_networks_send_and_receive_through_a_failover(cluster: TwoNetworks) -> None:
    for network in HOSTS:
        run_client(send_and_receive(cluster.at("ns1", network, "route"), network, "before"))
    leader = cluster.kill_leader()
    cluster.wait_leader(other_than=leader)
    for network in HOSTS:
        run_client(send_and_receive(cluster.at("ns1", network, "route"), network, "after"))
    cluster.restart(leader)

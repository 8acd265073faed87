"""Nameservers hold soft state: clients and brokers go on without some or all, and fill an empty one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.client import Admin, Producer, SimpleConsumer
from ledgermq.client.errors import NameserversDownError
from ledgermq.proto import nameserver_pb2 as ns
from ledgermq.proto import nameserver_pb2_grpc

from .checks import check_every_node, wait_for_more
from .cluster import Cluster, Process, wait_until
from .history import Load, run_client


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(
        tmp_path, nodes=3, nameservers=2, settings={"segment-size": "8MiB", "max-message-bytes": "1MiB"}
    ) as running:
        yield running


def kill(nameserver: Process) -> None:
    os.kill(nameserver.pid, signal.SIGKILL)
    assert nameserver.popen is not None
    nameserver.popen.wait()


def known_nodes(address: str) -> set[str]:
    """Return the nodes that a nameserver calls alive; none when it does not answer."""
    with grpc.insecure_channel(address) as channel:
        stub = nameserver_pb2_grpc.NameServerServiceStub(channel)
        try:
            answer = stub.ListGroups(ns.ListGroupsRequest(), timeout=1)
        except grpc.RpcError:
            return set()
    return {node.node_id for group in answer.groups for node in group.nodes if node.alive}


def known_leader(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        answer = nameserver_pb2_grpc.NameServerServiceStub(channel).ListGroups(
            ns.ListGroupsRequest(), timeout=1
        )
    return str(answer.groups[0].leader_id) if answer.groups else ""


def wait_until_filled(cluster: Cluster, address: str) -> None:
    """Wait until a nameserver knows all nodes and the leader."""
    wait_until(lambda: known_nodes(address) == set(cluster.nodes), "all nodes register again")
    wait_until(lambda: known_leader(address) == cluster.wait_leader(), "the leader is known")


async def send_one(nameservers: str, topic: str, body: bytes) -> None:
    async with Producer(nameservers) as producer:
        await producer.send(topic, body)


async def begin_to_consume(nameservers: str, topic: str) -> SimpleConsumer:
    """Return a consumer that has received something."""
    async with Admin(nameservers) as admin:
        await admin.create_group("established")
    consumer = SimpleConsumer(nameservers, group="established")
    await consumer.subscribe(topic)
    await receive_all(consumer, 50)
    return consumer


async def receive_all(consumer: SimpleConsumer, count: int) -> set[bytes]:
    """Receive and acknowledge until `count` different messages were there."""
    bodies: set[bytes] = set()
    while len(bodies) < count:
        for message in await consumer.receive():
            await consumer.ack(message)
            bodies.add(message.body)
    return bodies


@pytest.mark.parametrize("outage", [signal.SIGKILL, signal.SIGSTOP])
def test_clients_and_failover_go_on_when_one_of_two_nameservers_is_killed_or_hangs(
    cluster: Cluster, outage: signal.Signals
) -> None:
    first = cluster.nameservers[0]
    both = ",".join(cluster.nameserver_addresses)
    with Load(both, "one-down").running() as load:
        wait_for_more(load)
        os.kill(first.pid, outage)
        wait_for_more(load)
        leader = cluster.kill_leader()
        after = cluster.wait_leader(other_than=leader)
        wait_for_more(load)
        run_client(send_one(both, "one-down-new", b"from a new client"))
        wait_until(lambda: known_leader(cluster.nameserver_addresses[1]) == after, "the new leader is known")
        cluster.restart(leader)
    check_every_node(cluster, "one-down", load.history)


def test_established_clients_and_a_restarted_broker_work_without_any_nameserver(cluster: Cluster) -> None:
    topic, both = "all-down", ",".join(cluster.nameserver_addresses)
    with Load(both, topic).running() as load:
        wait_for_more(load)
        consumer = run_client(begin_to_consume(both, topic))
        for nameserver in cluster.nameservers:
            kill(nameserver)
        wait_for_more(load)
        leader = cluster.kill_leader()
        cluster.wait_leader(other_than=leader)
        wait_for_more(load)
        cluster.restart(leader)
        wait_for_more(load)
        run_client(receive_all(consumer, 500))
        with pytest.raises(NameserversDownError):
            run_client(send_one(both, topic, b"a new client cannot know where to go"))
        for nameserver in cluster.nameservers:
            nameserver.start()
        for address in cluster.nameserver_addresses:
            wait_until_filled(cluster, address)
        wait_for_more(load)
    run_client(consumer.close())
    check_every_node(cluster, topic, load.history)


def test_brokers_fill_a_nameserver_that_starts_empty(cluster: Cluster) -> None:
    first, second = cluster.nameservers
    address = cluster.nameserver
    run_client(send_one(address, "known", b"before"))
    kill(first)
    kill(second)
    first.start()
    wait_until_filled(cluster, address)
    run_client(send_one(address, "known", b"after"))

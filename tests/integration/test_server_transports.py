"""Broker groups of both server transports: gRPC in the event loop, and grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.proto import admin_pb2, admin_pb2_grpc
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc as v2_grpc
from tests.tls import CERTIFICATE, KEY

from .checks import check_every_node, wait_for_more
from .cluster import Cluster
from .history import Load
from .test_messaging_official_client import (  # noqa: F401 (a fixture)
    MESSAGES,
    client_python,
    create_topic,
    run_client,
)

SETTINGS = {
    "client-tls": "both",
    "tls-certificate": str(CERTIFICATE),
    "tls-private-key": str(KEY),
}
CLIENT = (("x-mq-client-id", "c1"),)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker group of the default transport, event_loop."""
    with Cluster(tmp_path_factory.mktemp("loop"), nodes=3, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module", params=["event_loop", "grpcio"])
def either_cluster(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    if request.param == "event_loop":
        yield cluster
        return
    settings = SETTINGS | {"server-transport": request.param}
    with Cluster(tmp_path_factory.mktemp("grpcio"), nodes=3, settings=settings) as running:
        yield running


def test_what_was_acknowledged_survives_kills_and_planned_stops_of_the_leader(
    either_cluster: Cluster,
) -> None:
    with Load(either_cluster.nameserver, "loop").running() as load:
        wait_for_more(load)
        leader = either_cluster.kill_leader()
        either_cluster.wait_leader(other_than=leader)
        wait_for_more(load)
        either_cluster.restart(leader)
        leader = either_cluster.wait_leader()
        assert either_cluster.terminate(leader) == 0, either_cluster.nodes[leader].log()
        either_cluster.wait_leader(other_than=leader)
        wait_for_more(load)
        either_cluster.restart(leader)
    check_every_node(either_cluster, "loop", load.history)
    for name in either_cluster.nodes:
        assert "Traceback" not in either_cluster.nodes[name].log(200), name


def test_only_the_transport_grpcio_starts_threads_of_grpc(either_cluster: Cluster) -> None:
    """Nodes call each other and nameservers in their event loops, whatever serves clients."""
    create_topic(either_cluster, "threads")
    ids = [process.pid for process in (*either_cluster.nodes.values(), *either_cluster.nameservers)]
    names = {each.read_text().strip() for pid in ids for each in Path(f"/proc/{pid}/task").glob("*/comm")}
    of_grpc = names & {"event_engine", "grpc_global_tim", "lifeguard"}
    assert bool(of_grpc) == (either_cluster.transport == "grpcio"), names


def test_the_official_client_goes_on_through_a_failover(
    client_python: Path,  # noqa: F811
    either_cluster: Cluster,
) -> None:
    create_topic(either_cluster, "loop-official")
    leader = either_cluster.wait_leader()
    follower = either_cluster.others(leader)[0]
    text = run_client(client_python, "simple", either_cluster, "loop-official", kill=leader, access=follower)
    either_cluster.restart(leader)
    assert f"RESULT sent={MESSAGES} received={MESSAGES}" in text


def test_tls_and_plaintext_are_spoken_on_one_port_at_leader_and_follower(either_cluster: Cluster) -> None:
    """Of grpcio's client; a follower forwards to the leader's Raft port."""
    create_topic(either_cluster, "loop-tls")
    topic = v2.Resource(name="loop-tls")
    properties = v2.SystemProperties(message_id="m", body_encoding=v2.IDENTITY)
    trusted = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())

    async def send(address: str, tls: bool) -> None:
        name = [("grpc.ssl_target_name_override", "localhost")]
        make = grpc.aio.secure_channel(address, trusted, name) if tls else grpc.aio.insecure_channel(address)
        async with make as channel:
            message = v2.Message(topic=topic, system_properties=properties, body=b"x")
            request = v2.SendMessageRequest(messages=[message])
            answer = await v2_grpc.MessagingServiceStub(channel).SendMessage(
                request, metadata=CLIENT, timeout=20
            )
            assert answer.status.code == v2.OK, answer

    for name in either_cluster.nodes:
        either_cluster.wait_ready(name)
        for tls in (True, False):
            asyncio.run(send(either_cluster.address(name, "messaging"), tls))


def test_the_ports_count_their_connections_and_a_stranger_is_told_what_this_port_speaks(
    cluster: Cluster,
) -> None:
    name = cluster.wait_leader()
    with grpc.insecure_channel(cluster.address(name)) as channel:
        admin_pb2_grpc.AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=20)
        lines = cluster.http(name, "/metrics")[1].splitlines()
    log = [line for line in lines if line.startswith('ledgermq_connections{listener="default",port="log"}')]
    assert log and float(log[0].split()[-1]) >= 1, lines
    status, text = _speaks_http(cluster.address(name))
    assert status == 505 and "gRPC" in text


def _speaks_http(address: str) -> tuple[int, str]:
    async def ask() -> bytes:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    head, _, body = asyncio.run(ask()).decode().partition("\r\n\r\n")
    return int(head.split()[1]), body

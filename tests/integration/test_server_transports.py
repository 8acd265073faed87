"""Broker groups of both server transports: gRPC in the event loop, and grpcio."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ledgermq.proto import admin_pb2, admin_pb2_grpc
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc as v2_grpc
from ledgermq.rpc import http2_frames as h2
from tests.rpc.raw_peer import ECHO
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
GREETING = h2.PREFACE + h2.settings_frame(())
PING = h2.frame(h2.PING, 0, 0, bytes(8))


def reset_streams(count: int) -> bytes:
    """Return calls that are taken back at once."""
    streams = range(1, 2 * count, 2)
    begin = [
        h2.header_frames(each, ECHO, False, 1 << 14) + h2.reset_frame(each, h2.CANCEL) for each in streams
    ]
    return b"".join(begin)


#: What ends its own connection, and nothing else.
BAD = (
    bytes(100_000),
    random.Random(1).randbytes(1 << 20),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random.Random(2).randbytes(600),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    h2.PREFACE + bytes(100),
    GREETING + PING * 50_000,
    GREETING + reset_streams(5_000),
    GREETING + h2.frame(h2.HEADERS, 0, 1, ECHO) + h2.frame(h2.CONTINUATION, 0, 1) * 10_000,
    GREETING + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff" * 100),
    GREETING + h2.header_frames(1, ECHO, False, 1 << 14) + h2.frame(h2.DATA, 0, 1, b"\x00\x07\xff\xff\xff"),
)
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


def test_bad_input_at_every_port_disturbs_no_producer_and_makes_no_election(cluster: Cluster) -> None:
    terms = cluster.terms()
    with Load(cluster.nameserver, "loop-bad").running() as load:
        wait_for_more(load)
        before = {name: memory_kib(process.pid) for name, process in cluster.nodes.items()}
        for name in cluster.nodes:
            for port in ("messaging", "log", "raft"):
                for bad in BAD:
                    throw(cluster.address(name, port), bad)
        wait_for_more(load)
        after = {name: memory_kib(process.pid) for name, process in cluster.nodes.items()}
    assert cluster.terms() == terms
    for name, process in cluster.nodes.items():
        assert after[name] - before[name] < 64 << 10, (name, before, after)
        log = process.log(400)
        assert "Traceback" not in log, log
        assert log.count("no HTTP/2") <= 3, "one line a port for each kind of reason"
    check_every_node(cluster, "loop-bad", load.history)


def throw(address: str, bad: bytes) -> None:
    """Send bytes to a port, and wait until it has ended the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            connection.sendall(bad)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            raise AssertionError(f"{address} keeps a connection open that began with {bad[:80]!r}") from None
        except OSError:  # it was reset
            pass


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


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

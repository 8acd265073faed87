"""Attacks on every port of a broker group, beside a steady producer and a steady consumer."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledgermq.client import Producer, PullConsumer
from ledgermq.proto import log_pb2
from tests.rpc.attacks import ATTACKS, Port, trusting, under_attack
from tests.rpc.floods import Methods
from tests.rpc.raw_peer import request
from tests.tls import CERTIFICATE, KEY

from .checks import wait_for_more
from .cluster import Cluster
from .history import Load, describe_topic, run_client
from .test_messaging_official_client import create_topic

SETTINGS = {
    # Attackers, clients and nodes share the cores of one machine. A node that gets none of them for half a
    # second is no effect of an attack; an event loop that stands for two seconds is.
    "election-timeout-ms": "2000-4000",
    "client-tls": "tls",
    "tls-certificate": str(CERTIFICATE),
    "tls-private-key": str(KEY),
}
TOPIC = "steady"
#: Memory in KiB that a node may take more while an attack goes on.
MORE = 64 << 10
LOG = Methods(request(b"/ledgermq.v1.LogService/Fetch"), request(b"/ledgermq.v1.LogService/Produce"))
MESSAGING = Methods(
    request(b"/apache.rocketmq.v2.MessagingService/SendMessage"),
    request(b"/apache.rocketmq.v2.MessagingService/Telemetry"),
)
RAFT = Methods(request(b"/ledgermq.v1.PeerService/Report"), request(b"/ledgermq.v1.PeerService/Forward"))
NAMESERVER = Methods(
    request(b"/ledgermq.v1.NameServerService/GetRoute"),
    request(b"/ledgermq.v1.NameServerService/Heartbeat"),
)
NO_CALLS = Methods(b"", b"")
#: What logs say at least once, wherever it was tried.
SENTENCES = (
    "this port speaks gRPC over HTTP/2, not HTTP/1.1: use a gRPC client",
    "which the TLS client does not offer: use a gRPC client, or switch ALPN h2 on in it",
    "tls hello refused port=log/default peer=127.0.0.1: this port is plaintext. Switch TLS off in the client",
    "plaintext refused port=messaging/default peer=127.0.0.1: this port takes TLS only (client_tls = tls).",
    "stream between nodes refused port=log/default peer=127.0.0.1: a node connects to a port for clients.",
    "tls hello refused port=http peer=127.0.0.1: this port speaks HTTP without TLS.",
    "foreign bytes refused port=http peer=127.0.0.1: this port speaks HTTP/1.1 and serves probes",
    "this is how a flood looks: stop that client",
    "large requests wait for memory",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEDGERMQ_NAMESERVER_SERVER_TRANSPORT", "event_loop")
        with Cluster(tmp_path_factory.mktemp("attacks"), nodes=3, settings=SETTINGS) as running:
            yield running


class Reader:
    """A steady consumer; an error of it fails the test."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self.count = 0
        self.polling: asyncio.Task[None]

    async def more(self, count: int) -> None:
        """Wait until so many more messages came."""
        target = self.count + count
        while self.count < target:  # a counter
            if self.polling.done():
                await self.polling
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with PullConsumer(self._nameserver, group="steady", start="earliest") as consumer:
            await consumer.subscribe(TOPIC)
            self.polling = asyncio.create_task(self._poll(consumer))
            try:
                yield
            finally:
                self.polling.cancel()
                await asyncio.gather(self.polling, return_exceptions=True)

    async def _poll(self, consumer: PullConsumer) -> None:
        while True:
            self.count += len(await consumer.poll(timeout_ms=200))
            await consumer.commit()


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def ports_of(cluster: Cluster) -> list[Port]:
    topic = describe_topic(cluster.address(cluster.wait_leader()), TOPIC)
    positions = [
        log_pb2.FetchPosition(topic_id=topic.topic_id, queue_id=queue_id, offset=0)
        for queue_id in range(topic.queue_count)
    ]
    fetch = log_pb2.FetchRequest(positions=positions, max_bytes=4 << 20).SerializeToString()
    ports = [Port("nameserver", cluster.nameserver, NAMESERVER)]
    for name in cluster.nodes:
        ports += [
            Port(f"{name} log", cluster.address(name), LOG, big=fetch, crowd=200),
            Port(
                f"{name} messaging",
                cluster.address(name, "messaging"),
                MESSAGING,
                trusting(["h2"]),
                b"\x08\x01",
            ),
            Port(f"{name} raft", cluster.address(name, "raft"), RAFT, big=b"\x08\x01"),
            Port(f"{name} http", cluster.address(name, "http"), NO_CALLS, is_http=True),
        ]
    return ports


def test_no_attack_disturbs_producers_consumers_or_the_term(cluster: Cluster) -> None:
    began = time.monotonic()
    create_topic(cluster, TOPIC)
    run_client(_send_large(cluster.nameserver))
    ports = ports_of(cluster)
    with Load(cluster.nameserver, TOPIC, timeout_ms=60_000).running() as load:
        wait_for_more(load)
        terms = cluster.terms()
        run_client(_attack_all(cluster, ports, load), timeout=600)
        assert cluster.terms() == terms
    assert not [why for why in load.history.unknown.values() if why != "in flight"]
    minutes = 1 + int((time.monotonic() - began) / 60)
    for process in [*cluster.nodes.values(), *cluster.nameservers]:
        log = process.log(10_000)
        assert "Traceback" not in log and " ERROR " not in log, log[-5000:]
        kinds = Counter(
            re.sub(r"\d+", "", line.partition(" WARNING ")[2])
            for line in log.splitlines()
            if " WARNING " in line
        )
        often = {line: times for line, times in kinds.items() if times > minutes}
        assert not often, often
    logs = "".join(process.log(10_000) for process in cluster.nodes.values())
    for sentence in SENTENCES:
        assert sentence in logs, sentence


async def _send_large(nameserver: str) -> None:
    async with Producer(nameserver, timeout_ms=60_000) as producer:
        for _ in range(8):
            await producer.send(TOPIC, bytes(1 << 20))


async def _attack_all(cluster: Cluster, ports: list[Port], load: Load) -> None:
    reader = Reader(cluster.nameserver)
    async with reader.running():
        await reader.more(1)
        for kind in ATTACKS:
            before = {name: memory_kib(process.pid) for name, process in cluster.nodes.items()}
            async with under_attack(kind, ports):
                sent = load.count
                await reader.more(50)
                while load.count < sent + 50:  # noqa: ASYNC110  # a counter
                    await asyncio.sleep(0.01)
                more = {
                    name: memory_kib(process.pid) - before[name] for name, process in cluster.nodes.items()
                }
            assert max(more.values()) < MORE, (kind, more)

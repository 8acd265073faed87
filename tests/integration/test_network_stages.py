"""One stage that stalls stops no other: the test holds what waits, and everything else goes on meanwhile.

The tests measure no seconds. Each shows that new connections, sends and reads from memory *were done* while
disk reads, flushes, handshakes or thousands of connections were still held, and that no election took place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from ledgermq.client import Admin, Message, Producer
from ledgermq.proto import log_pb2, log_pb2_grpc
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc as v2_grpc
from tests.gated_disk import FLUSHES, OPENS, READS, Gate
from tests.tls import CERTIFICATE, KEY, tls_hello

from .checks import check_every_node, wait_even, wait_for_more
from .cluster import Cluster, wait_until
from .connections import PREFACE, Crowd
from .history import History, Load, describe_topic, run_client
from .test_slow_disk import MESSAGES, PART, send_backlog
from .test_slow_disk import TOPIC as COLD

HOT = "hot"
FRESH = [("grpc.use_local_subchannel_pool", 1)]
CLIENT = (("x-mq-client-id", "c1"),)
#: More than a node has threads for reads of its log.
COLD_READERS = 8
#: A message of 1,600 that stands in the second of three segments, and in no cache of the log.
OLD = 600


class GatedCluster(Cluster):
    module = "tests.integration.gated_disk_node"


class FewFilesCluster(Cluster):
    module = "tests.integration.few_files_node"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedCluster]:
    """Three nodes with 50 MiB of messages in three segments, twice what they keep of their log in memory."""
    settings = {"client-tls": "both", "tls-certificate": str(CERTIFICATE), "tls-private-key": str(KEY)}
    # With these, only the tests read old messages.

    settings |= {"segment-size": "17MiB", "scrub-bytes-per-second": "0"}
    with GatedCluster(tmp_path_factory.mktemp("stages"), nodes=3, settings=settings) as running:
        run_client(fill(running))
        yield running


async def fill(cluster: Cluster) -> None:
    """Send the backlog in parts, so that no follower makes the leader read old segments for it."""
    async with Admin(cluster.nameserver) as admin:
        await admin.create_topic(COLD, 1)
    for first in range(0, MESSAGES, PART):
        await send_backlog(cluster.nameserver, History(), range(first, first + PART))
        await asyncio.to_thread(wait_even, cluster)


def fetch_some(address: str, topic_id: int, queue_id: int, offset: int) -> log_pb2.FetchedSection | None:
    """Fetch the section at one place, on a connection of its own; None when the node has none there yet."""
    position = log_pb2.FetchPosition(topic_id=topic_id, queue_id=queue_id, offset=offset)
    options = [*FRESH, ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        answer = log_pb2_grpc.LogServiceStub(channel).Fetch(
            log_pb2.FetchRequest(positions=[position], max_bytes=1), timeout=60
        )
    assert not answer.refusal.code, answer.refusal.message
    return answer.queues[0].sections[0] if answer.queues and answer.queues[0].sections else None


def fetch(address: str, topic_id: int, queue_id: int, offset: int) -> log_pb2.FetchedSection:
    """Fetch the section at a place that the node has."""
    found = fetch_some(address, topic_id, queue_id, offset)
    assert found is not None
    return found


async def send(nameserver: str, body: bytes) -> tuple[int, int]:
    async with Producer(nameserver, timeout_ms=60_000) as producer:
        receipt = await producer.send(HOT, body)
        return receipt.queue_id, receipt.queue_offset


def everything_else_goes_on(cluster: Cluster, leader: str, body: bytes) -> None:
    """Connect to all client ports anew, send, read what was sent from the leader's memory."""
    place = run_client(send(cluster.nameserver, body))
    topic = describe_topic(cluster.address(leader), HOT)
    assert body in fetch(cluster.address(leader), topic.topic_id, *place).section
    is_served(cluster, leader)


def is_served(cluster: Cluster, leader: str) -> None:
    """Connect to the other ports; the leader leads."""
    with grpc.insecure_channel(cluster.address(leader, "messaging"), FRESH) as channel:
        route = v2.QueryRouteRequest(topic=v2.Resource(name=HOT))
        answer = v2_grpc.MessagingServiceStub(channel).QueryRoute(route, metadata=CLIENT, timeout=60)
        assert answer.status.code == v2.OK
    assert cluster.http(leader, "/livez")[0] == 200
    status = cluster.status(leader)
    assert status is not None
    assert status.role == "leader"


@pytest.mark.parametrize(("what", "threads_held"), [(OPENS, 1), (READS, 4)])
def test_cold_reads_that_wait_for_the_disk_hold_up_no_other_reads(
    gated: GatedCluster, what: str, threads_held: int
) -> None:
    """All want the same segment, so one thread opens it. Each reads in its own thread while there are any."""
    leader, terms = gated.wait_leader(), gated.terms()
    address = gated.address(leader)
    topic = describe_topic(address, COLD)
    gate = Gate(gated.folder / leader, what)
    with ThreadPoolExecutor(COLD_READERS) as threads:
        with gate.closed():
            cold = [threads.submit(fetch, address, topic.topic_id, 0, OLD) for _ in range(COLD_READERS)]
            wait_until(lambda: gate.waiting == threads_held, "threads of the read pool wait for the disk")
            for number in range(3):
                everything_else_goes_on(gated, leader, b"while reads wait %d" % number)
            assert not any(each.done() for each in cold), "they are held all the time"
        assert all(b"backlog-" in each.result().section for each in cold)
    assert gated.terms() == terms, "an election was held"


def test_a_leader_whose_flush_waits_for_the_disk_holds_up_no_send_and_hands_the_lead_over(
    gated: GatedCluster,
) -> None:
    """The followers are the majority. What is new they show: a node shows only what is durable there."""
    leader, terms = gated.wait_leader(), gated.terms()
    nameserver, follower = gated.nameserver, next(n for n in gated.nodes if n != leader)
    before = run_client(send(nameserver, b"before"))
    topic = describe_topic(gated.address(leader), HOT)
    gate = Gate(gated.folder / leader, FLUSHES)
    with gate.closed():
        for number in range(3):
            body = b"while a flush waits %d" % number
            new = run_client(send(nameserver, body))
            found = wait_until(
                partial(fetch_some, gated.address(follower), topic.topic_id, *new), "the follower shows it"
            )
            assert body in found.section
            assert b"before" in fetch(gated.address(leader), topic.topic_id, *before).section
        next_leader = gated.wait_leader(other_than=leader)
        everything_else_goes_on(gated, next_leader, b"and under the next leader")
        assert gate.waiting == 1, "the one thread that flushes has been waiting since the first of them"
        assert "disk stands still" in gated.nodes[leader].log()
    everything_else_goes_on(gated, gated.wait_leader(), b"afterwards")
    old, new_term = max(terms.values()), max(gated.terms().values())
    assert new_term == old + 1, "a hand-over, no election"


def test_handshakes_that_are_half_done_hold_up_no_other_client(gated: GatedCluster) -> None:
    leader, terms = gated.wait_leader(), gated.terms()
    address = gated.address(leader, "messaging")
    hello = tls_hello()
    with Crowd(address) as crowd:
        for number in range(120):
            crowd.call(hello if number % 2 else hello[: len(hello) // 2])
        everything_else_goes_on(gated, leader, b"while handshakes wait")
        trusted = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
        with grpc.secure_channel(address, trusted, FRESH) as channel:
            beat = v2_grpc.MessagingServiceStub(channel).Heartbeat(
                v2.HeartbeatRequest(), metadata=CLIENT, timeout=60
            )
            assert beat.status.code == v2.OK
    assert gated.terms() == terms, "an election was held"


def test_a_filter_finds_what_it_wants_behind_all_that_it_does_not_in_one_receive(gated: GatedCluster) -> None:
    """It scans 8,192 messages per turn of the leader; a receive used to end there and wait for new ones."""
    leader = gated.wait_leader()
    topic, nameserver = "filtered", gated.nameserver

    async def send_all() -> None:
        async with Producer(nameserver, timeout_ms=60_000) as producer:
            for first in range(0, 40_000, 5_000):
                await producer.send_batch(
                    Message(topic, b"%d" % number, tag="common") for number in range(first, first + 5_000)
                )
            await producer.send(topic, b"wanted", tag="rare")

    run_client(send_all())
    with grpc.insecure_channel(gated.address(leader, "messaging"), FRESH) as channel:
        stub = v2_grpc.MessagingServiceStub(channel)
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="picky"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), id=-1),
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="rare"),
            batch_size=1,
        )
        request.invisible_duration.FromSeconds(30)
        request.long_polling_timeout.FromSeconds(20)
        frames = list(stub.ReceiveMessage(request, metadata=CLIENT, timeout=60))
    assert [frame.message.body for frame in frames if frame.HasField("message")] == [b"wanted"]


@contextmanager
def crowded(cluster: Cluster, node: str, callers: int) -> Iterator[None]:
    """Hold connections to every port of a node: some silent, some that speak HTTP/2 and then are."""
    with ExitStack() as stack:
        for kind in ("messaging", "log", "raft", "http"):
            crowd = stack.enter_context(Crowd(cluster.address(node, kind)))
            for number in range(callers):
                crowd.call(PREFACE if number % 2 else b"")
        yield


def test_a_storm_of_connections_without_descriptors_for_them_costs_no_election_and_no_message(
    tmp_path: Path,
) -> None:
    """A node with a limit of 256 files gets 1,200 calls, and keeps what it needs: its peers reconnect."""
    with FewFilesCluster(tmp_path, nodes=3) as cluster:
        leader, terms = cluster.wait_leader(), cluster.terms()
        follower = cluster.others(leader)[0]
        with Load(cluster.nameserver, HOT, in_flight=8).running() as load:
            wait_for_more(load, 8)
            with crowded(cluster, leader, 300):
                wait_for_more(load, 100)
                cluster.kill(follower)
                wait_for_more(load, 100)
                cluster.restart(follower)  # its streams find their places
                wait_for_more(load, 100)
                assert "connections refused" in cluster.nodes[leader].log()
            wait_for_more(load, 8)
        assert cluster.terms() == terms, "an election was held"
        assert not load.history.unknown, "a send was not acknowledged"
        check_every_node(cluster, HOT, load.history)


def metric(cluster: Cluster, node: str, line: str) -> float:
    """Return a value of /metrics by name and labels."""
    status, text = cluster.http(node, "/metrics")
    assert status == 200
    found = [each for each in text.splitlines() if each.startswith(line + " ")]
    assert len(found) == 1, line
    return float(found[0].rpartition(" ")[2])


def labels(port: str, listener: str = "default", **more: str) -> str:
    known = {"listener": listener, "port": port, **more}
    return "{" + ",".join(f'{key}="{value}"' for key, value in known.items()) + "}"


def is_full(cluster: Cluster, port: str, limit: int) -> bool:
    found = metric(cluster, "n1", "ledgermq_connections" + labels(port))
    assert found <= limit
    return found == limit


def test_a_full_port_says_so_and_takes_again_what_comes_when_there_is_room(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=1, settings={"max-connections": "20"}) as cluster:
        everything_else_goes_on(cluster, cluster.wait_leader(), b"before")
        refused = "ledgermq_connections_refused_total" + labels("messaging", reason="limit")
        assert metric(cluster, "n1", refused) == 0
        with ExitStack() as stack:
            for kind in ("messaging", "log"):
                crowd = stack.enter_context(Crowd(cluster.address("n1", kind)))
                for _ in range(60):
                    crowd.call(PREFACE)
            for kind in ("messaging", "log"):
                wait_until(partial(is_full, cluster, kind, 20), f"{kind} is full")
                assert metric(cluster, "n1", "ledgermq_connections_limit" + labels(kind)) == 20
            assert metric(cluster, "n1", refused) >= 30
            log = cluster.nodes["n1"].log
            wait_until(lambda: "connections refused port=log/default" in log(), "the log names the log port")
            assert "connections refused port=messaging/default" in log()
        everything_else_goes_on(cluster, "n1", b"after")


def test_clients_that_say_nothing_keep_no_client_out(tmp_path: Path) -> None:
    """A slow loris: the port is full of them, and they stay as long as they may."""
    with Cluster(tmp_path, nodes=1, settings={"max-connections": "200"}) as cluster:
        leader = cluster.wait_leader()
        with Crowd(cluster.address(leader, "messaging")) as crowd:
            for _ in range(200):
                crowd.call(b"")
            stop = threading.Event()

            def come_again() -> None:
                while not stop.is_set():
                    crowd.come_again()

            with ThreadPoolExecutor(1) as threads:
                coming: Future[None] = threads.submit(come_again)
                try:
                    everything_else_goes_on(cluster, leader, b"among the silent")
                    assert not coming.done()
                finally:
                    stop.set()
                coming.result()

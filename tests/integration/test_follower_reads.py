"""Three real nodes: a follower serves a backlog, and dies; without a leader, reads of what is left go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ledgermq.client import Admin, Message, MessageQueue, Producer, PullConsumer
from ledgermq.client.errors import NoQuorumError

from .cluster import Cluster, wait_until
from .history import on_client_loop, run_client

TOPIC, MESSAGES, CONSUMED = "backlog", 100_000, 20_000
BODY = bytes(180)
#: About 50,000 of these messages.
IN_MEMORY = 16 << 20
QUEUE = MessageQueue(TOPIC, "g0", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, and the seeds' example: 100,000 messages written, 20,000 consumed, 50,000 fit."""
    settings = {"access-message-in-memory-max-bytes": str(IN_MEMORY)}
    with Cluster(tmp_path_factory.mktemp("follow"), nodes=3, settings=settings) as running:
        run_client(write_backlog(running.nameserver))
        status = running.status(running.wait_leader())
        assert status is not None
        assert 0.4 < IN_MEMORY / status.log_bytes < 0.6, "about half of them are to fit"
        yield running


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> None:
    """Every test begins with all nodes up, and followers that have everything."""
    cluster.start_all()
    leader = cluster.wait_leader()

    def up_to_date() -> bool:
        status = cluster.status(leader)
        return status is not None and not any(node.behind_bytes or node.state for node in status.nodes)

    wait_until(up_to_date, "the followers have everything")


async def write_backlog(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, 1)
    async with (
        Producer(nameserver, timeout_ms=60_000) as producer,
        PullConsumer(nameserver, group="seeds") as consumer,
    ):
        for first in range(0, MESSAGES, 5_000):
            await producer.send_batch(Message(TOPIC, b"%06d" % i + BODY) for i in range(first, first + 5_000))
            if first + 5_000 == CONSUMED:
                await consumer.subscribe(TOPIC)
                await read(consumer, range(CONSUMED))
                await consumer.commit()
                consumer.unassign([QUEUE])


async def read(consumer: PullConsumer, numbers: range) -> None:
    """Read exactly these messages, in this order."""
    expected = iter(numbers)
    left = len(numbers)
    while left:
        messages = await consumer.poll(min(left, 512), 20_000)
        assert messages, f"nothing came any more, {left} are left"
        for message in messages:
            assert int(message.body[:6]) == next(expected)
        left -= len(messages)


def reading_from(consumer: PullConsumer) -> str:
    return consumer.sources["g0"].node_id


def moves(cluster: Cluster, node: str, to: str) -> float:
    """Return how many fetch answers of a node named another one."""
    _, text = cluster.http(node, "/metrics")
    name = f'ledgermq_reads_moved_total{{to="{to}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


@on_client_loop
async def test_the_rest_of_a_backlog_comes_from_a_follower_and_the_end_from_the_leader(
    cluster: Cluster,
) -> None:
    nameserver, leader = cluster.nameserver, cluster.wait_leader()
    async with PullConsumer(nameserver, group="seeds", max_buffer_bytes=1 << 20) as consumer:
        await consumer.subscribe(TOPIC)
        assert consumer.position(QUEUE) == CONSUMED
        await read(consumer, range(CONSUMED, 60_000))
        follower = reading_from(consumer)
        assert follower != leader
        await read(consumer, range(60_000, MESSAGES))
        assert reading_from(consumer) == leader
        await consumer.commit()
        assert await consumer.lag(TOPIC) == {QUEUE: 0}
    assert moves(cluster, leader, "follower") == moves(cluster, follower, "leader") == 1


@on_client_loop
async def test_a_follower_that_dies_while_it_is_read_costs_nothing_but_the_move(cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    async with PullConsumer(cluster.nameserver, max_buffer_bytes=1 << 20) as consumer:
        await consumer.subscribe(TOPIC)
        await read(consumer, range(10_000))
        follower = reading_from(consumer)
        assert follower != leader
        await asyncio.to_thread(cluster.kill, follower)
        await read(consumer, range(10_000, MESSAGES))
        assert reading_from(consumer) not in ("", follower)


@on_client_loop
async def test_a_leader_that_dies_while_a_follower_is_read_holds_up_nothing(cluster: Cluster) -> None:
    async with PullConsumer(cluster.nameserver, max_buffer_bytes=1 << 20) as consumer:
        await consumer.subscribe(TOPIC)
        await read(consumer, range(10_000))
        leader = await asyncio.to_thread(cluster.wait_leader)
        await asyncio.to_thread(cluster.kill, leader)
        await read(consumer, range(10_000, MESSAGES))
        assert reading_from(consumer) != leader


@on_client_loop
async def test_without_a_leader_committed_messages_are_served_and_commits_wait(cluster: Cluster) -> None:
    first, second, last = cluster.nodes
    for node in (first, second):
        await asyncio.to_thread(cluster.kill, node)
    async with PullConsumer(cluster.nameserver, group="alone") as consumer:
        await consumer.subscribe(TOPIC)
        await read(consumer, range(30_000))
        source = consumer.sources["g0"]
        assert (source.node_id, source.stale) == (last, True)
        with pytest.raises(NoQuorumError, match="no leader is known"):
            await consumer.commit(timeout_ms=500)
        waiting = asyncio.create_task(consumer.commit(timeout_ms=30_000))
        await asyncio.to_thread(cluster.restart, first)
        await waiting
        assert await consumer.committed(TOPIC) == {QUEUE: 30_000}

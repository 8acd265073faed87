"""Push consumers on real nodes: members and brokers come, go and die.

No message is missed, and offsets never go back.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import Admin, Message, MessageView, Producer, PushConsumer, PushOptions

from .cluster import Cluster, wait_until

QUEUES = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("push"), nodes=3) as running:
        running.wait_leader()
        yield running


@pytest.fixture(autouse=True)
def all_nodes(cluster: Cluster) -> None:
    cluster.start_all()
    cluster.wait_leader()


class Log:
    """Messages that the listeners of a consumer group have finished, and which listener did."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()
        self.by: dict[str, Counter[int]] = {}  # consumer → queue id → messages
        self.changed = asyncio.Event()

    def listener(self, name: str, pause_s: float = 0.0) -> Any:
        mine = self.by.setdefault(name, Counter())

        async def listen(messages: list[MessageView]) -> None:
            await asyncio.sleep(pause_s)
            self.seen.update(message.body for message in messages)
            mine[messages[0].queue_id] += len(messages)
            self.changed.set()

        return listen

    async def until(self, bodies: set[bytes]) -> None:
        while not bodies <= self.seen.keys():
            self.changed.clear()
            await self.changed.wait()


class Sender:
    """Sends numbered messages to a topic of its own."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self.sent: set[bytes] = set()
        self._cluster = cluster

    async def create(self) -> None:
        async with Admin(self._cluster.nameserver_addresses) as admin:
            await admin.create_topic(self.topic, QUEUES)

    async def send(self, count: int) -> None:
        bodies = [b"%d" % number for number in range(len(self.sent), len(self.sent) + count)]
        async with Producer(self._cluster.nameserver_addresses, timeout_ms=30_000) as producer:
            for body in bodies:  # one by one: they spread over the queues
                await producer.send(Message(self.topic, body))
        self.sent.update(bodies)


def consumer_of(cluster: Cluster, group: str, listener: Any, **options: Any) -> PushConsumer:
    settings = PushOptions(session_timeout_ms=1000)
    return PushConsumer(
        cluster.nameserver_addresses, group=group, listener=listener, options=settings, **options
    )


def start_member(cluster: Cluster, group: str, topic: str, *batch: str) -> subprocess.Popen[bytes]:
    """Start a consumer that can be killed; it prints a line for each message that it is done with."""
    arguments = [cluster.nameserver, group, topic, *batch]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.push_member", *arguments],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )


async def until_owning(*wanted: tuple[PushConsumer, int]) -> None:
    """Wait until each consumer has so many queues."""
    await until(
        lambda: all(len(consumer.statistics().queues) == count for consumer, count in wanted),
        f"queues {[count for _, count in wanted]}",
    )


async def until(read: Callable[[], bool], what: str) -> None:
    """Wait for what the brokers decide."""
    await asyncio.to_thread(wait_until, read, what)


async def progress(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    """Return the committed offsets."""
    async with Admin(cluster.nameserver_addresses) as admin:
        _, queues = await admin.describe_group(group, topic)
    return {each.queue_id: each.committed_offset for _, each in queues}


async def test_consumers_come_and_go_and_nothing_is_missed_or_committed_backwards(cluster: Cluster) -> None:
    log, sender = Log(), Sender(cluster, "comings")
    await sender.create()
    await sender.send(200)
    first = consumer_of(cluster, "comings", log.listener("first"))
    second = consumer_of(cluster, "comings", log.listener("second", 0.01))
    third = consumer_of(cluster, "comings", log.listener("third"))
    await first.subscribe("comings")
    await until_owning((first, QUEUES))
    await log.until(sender.sent)
    offsets = [await progress(cluster, "comings", "comings")]
    await second.subscribe("comings")
    await until_owning((first, 4), (second, 4))
    await sender.send(200)
    await third.subscribe("comings")
    consumers = (first, second, third)
    await until(
        lambda: [len(each.statistics().queues) for each in consumers] in ([2, 3, 3], [3, 2, 3], [3, 3, 2]),
        "all queues of three consumers",
    )
    owned = [each.queue for consumer in consumers for each in consumer.statistics().queues]
    assert len(set(owned)) == QUEUES, "no queue has two owners"
    await sender.send(200)
    await log.until(sender.sent)
    offsets.append(await progress(cluster, "comings", "comings"))
    await first.close()
    await sender.send(200)
    await until_owning((second, 4), (third, 4))
    await log.until(sender.sent)
    await second.close()
    await third.close()
    offsets.append(await progress(cluster, "comings", "comings"))
    for before, after in pairwise(offsets):
        assert all(after[queue] >= offset for queue, offset in before.items())
    assert sum(offsets[-1].values()) == len(sender.sent)
    assert set(log.seen) == sender.sent
    assert set(log.seen.values()) == {1}, "who leaves, or hands over in time, leaves nothing to come again"


async def test_the_queues_of_a_consumer_that_was_killed_go_to_another_one(cluster: Cluster) -> None:
    log, sender = Log(), Sender(cluster, "killed")
    await sender.create()
    await sender.send(400)
    victim = start_member(cluster, "killed", "killed")
    try:
        assert victim.stdout is not None
        lines = [await asyncio.to_thread(victim.stdout.readline) for _ in range(400)]
        done = {line.split()[2] for line in lines}
        assert done == sender.sent
        async with consumer_of(cluster, "killed", log.listener("second")) as second:
            await second.subscribe("killed")
            await until_owning((second, 4))
            victim.kill()
            await until_owning((second, QUEUES))
            await sender.send(100)
            await log.until(sender.sent - done)
            assert sum((await second.lag()).values()) < 400
    finally:
        victim.kill()
        victim.wait()
        if victim.stdout is not None:
            victim.stdout.close()


async def test_a_crash_repeats_at_most_one_batch_where_each_is_committed(cluster: Cluster) -> None:
    """A consumer with one listener at a time and `commit_interval_ms=0` is killed during its work, twice."""
    log, sender, done, batch = Log(), Sender(cluster, "batches"), Counter[bytes](), 5
    await sender.create()
    await sender.send(300)
    for _ in range(2):
        victim = start_member(cluster, "batches", "batches", str(batch))
        assert victim.stdout is not None
        try:
            lines = [await asyncio.to_thread(victim.stdout.readline) for _ in range(60)]
        finally:
            victim.kill()
            victim.wait()
        lines += victim.stdout.readlines()
        victim.stdout.close()
        done.update(line.split()[2] for line in lines if line.endswith(b"\n"))
    async with consumer_of(cluster, "batches", log.listener("last")) as last:
        await last.subscribe("batches")
        await log.until(sender.sent - done.keys())
    everything = done + log.seen
    assert everything.keys() == sender.sent
    assert everything.total() <= 300 + 2 * batch, "each crash repeats a batch at most"


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_lost_leader_moves_no_queue_and_nothing_comes_twice(cluster: Cluster, how: str) -> None:
    topic = f"leader-{how}"
    log, sender = Log(), Sender(cluster, topic)
    await sender.create()
    one = consumer_of(cluster, topic, log.listener("one"))
    two = consumer_of(cluster, topic, log.listener("two"))
    async with one, two:
        await one.subscribe(topic)
        await two.subscribe(topic)
        await until_owning((one, 4), (two, 4))
        await sender.send(100)
        await log.until(sender.sent)
        before = {each.queue for each in one.statistics().queues}
        leader = cluster.wait_leader()
        getattr(cluster, how)(leader)
        await sender.send(300)
        await log.until(sender.sent)
        assert {each.queue for each in one.statistics().queues} == before
        assert not one.statistics().failed
    if how == "pause":
        cluster.resume(leader)
    assert set(log.seen.values()) == {1}
    assert sum((await progress(cluster, topic, topic)).values()) == len(sender.sent)


async def test_an_offset_that_an_admin_sets_back_is_obeyed_while_the_group_consumes(cluster: Cluster) -> None:
    log, sender = Log(), Sender(cluster, "back")
    await sender.create()
    await sender.send(40)
    async with (
        Admin(cluster.nameserver_addresses) as admin,
        consumer_of(cluster, "back", log.listener("a")) as consumer,
    ):
        await consumer.subscribe("back")
        await log.until(sender.sent)
        await admin.reset_offsets("back", "back", "earliest")
        while set(log.seen.values()) != {2}:
            log.changed.clear()
            await log.changed.wait()
    assert sum((await progress(cluster, "back", "back")).values()) == 40


async def test_a_group_that_begins_at_the_end_or_at_a_time_does_so_exactly(cluster: Cluster) -> None:
    sender = Sender(cluster, "starts")
    await sender.create()
    await sender.send(50)
    middle = time.time_ns() // 1_000_000 + 1
    await until(lambda: time.time_ns() // 1_000_000 > middle, "the next millisecond")
    await sender.send(50)
    for start, begins in (("latest", 100), (str(middle), 50), ("earliest", 0)):
        log, group = Log(), f"starts-{begins}"
        consumer = consumer_of(cluster, group, log.listener("a"), start=start)
        async with consumer:
            await consumer.subscribe("starts")
            await until_owning((consumer, QUEUES))
            await sender.send(10)
            await log.until({b"%d" % number for number in range(begins, len(sender.sent))})
        assert min(map(int, log.seen)) == begins
        sender.sent -= {b"%d" % number for number in range(100, 1000)}

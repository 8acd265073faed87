"""Measure queue-exclusive groups: `python -m bench.exclusive_bench [--parts drain,rebalance]`.

drain: one PushConsumer with its usual commits reads 1 KiB messages from 8 queues, `--runs` times.
rebalance: `--members` consumers share `--queues` queues while messages arrive on all of them. One joins, one
leaves, half of them leave, one is killed. Measured: the time until every queue has its new owner, and the
longest time without a message on any queue; the same while nothing happens. All consumers but the killed one
share this process and its CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Set before gRPC is loaded, as the command line and the brokers do.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import uvloop

from ledgermq.client import (
    Admin,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
)
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from tests.integration.cluster import Cluster

clock = time.perf_counter
_BODY: Final = os.urandom(1024)
_BATCH: Final = 1000
_SETTLE_S: Final = 1.0  # before and after an event, for the gaps
_LOOK_S: Final = 0.005
_READY: Final = "ready"


# --- drain --------------------------------------------------------------------------------------------------
async def drain(nameserver: str, count: int, runs: int) -> None:
    """Fill a topic once, and read all of it with one consumer of a new consumer group in each run."""
    topic = "drained"
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=8)
    async with Producer(nameserver) as producer:
        await producer.prepare(topic)
        for _ in range(count // (4 * _BATCH)):
            batches = ([Message(topic, _BODY) for _ in range(_BATCH)] for _ in range(4))
            await asyncio.gather(*(producer.send_batch(batch) for batch in batches))
    stored = count // (4 * _BATCH) * 4 * _BATCH
    rates = [await _drained(nameserver, topic, f"drain-{run}", stored) for run in range(runs)]
    rows = ", ".join(f"{rate:,.0f}" for rate in rates)
    print(f"drain: {stored:,} messages of 1 KiB, msg/s: {rows}; median {statistics.median(rates):,.0f}")


async def _drained(nameserver: str, topic: str, group: str, stored: int) -> float:
    got, all_there, times = 0, asyncio.Event(), list[float]()

    async def listener(messages: list[MessageView]) -> None:
        nonlocal got
        if not times:
            times.append(clock())
        got += sum(bool(message.body) for message in messages)
        if got >= stored:
            times.append(clock())
            all_there.set()

    async with PushConsumer(nameserver, group=group, listener=listener) as consumer:
        await consumer.subscribe(topic)
        await all_there.wait()
    async with PullConsumer(nameserver, group=group) as reader:  # close() committed the finished messages
        committed = sum(max(committed, 0) for _, committed, _, _ in await reader.offsets(topic))
    if (got, committed) != (stored, stored):
        raise RuntimeError(f"{got} messages came and {committed} were committed, of {stored}")
    return stored / (times[1] - times[0])


# --- rebalance ----------------------------------------------------------------------------------------------
class Group:
    """Consumers of one consumer group in this process, and the time of each queue's last message."""

    def __init__(self, nameserver: str, topic: str, queues: int) -> None:
        self.nameserver, self.topic, self.queues = nameserver, topic, queues
        self.members: list[PushConsumer] = []
        self._last: dict[int, float] = {}
        self._worst: dict[int, float] = {}

    async def join(self) -> None:
        """Add a consumer."""

        async def listener(messages: list[MessageView]) -> None:
            now = clock()
            for queue_id in {message.queue_id for message in messages}:
                self._note(queue_id, now)

        member = PushConsumer(self.nameserver, group="shared", listener=listener)
        self.members.append(member)
        await member.subscribe(self.topic)

    def _note(self, queue_id: int, now: float) -> None:
        before = self._last.get(queue_id, now)
        self._worst[queue_id] = max(self._worst.get(queue_id, 0.0), now - before)
        self._last[queue_id] = now

    def owned(self) -> list[int]:
        """Return the number of queues of each member."""
        return [len(member.statistics().queues) for member in self.members]

    def is_even(self, elsewhere: int) -> bool:
        """Return whether all queues but those of a member `elsewhere` are evenly distributed."""
        owned = self.owned()
        share = self.queues // (len(owned) + bool(elsewhere))
        return sum(owned) == self.queues - elsewhere and all(each in (share, share + 1) for each in owned)

    async def until_even(self, elsewhere: int = 0) -> None:
        """Wait until they are."""
        while not self.is_even(elsewhere):  # noqa: ASYNC110 (no event signals it)
            await asyncio.sleep(_LOOK_S)

    async def event(self, name: str, happen: Callable[[], Awaitable[None]]) -> None:
        """Trigger an event, wait until the queues are shared again, and print that time and the worst gap."""
        await asyncio.sleep(_SETTLE_S)
        self._worst.clear()
        began = clock()
        self._last = dict.fromkeys(range(self.queues), began)  # also of queues owned by another process
        await happen()
        await self.until_even()
        took = clock() - began
        await asyncio.sleep(_SETTLE_S)
        now = clock()
        for queue_id in range(self.queues):
            self._note(queue_id, now)
        print(
            f"{name}: shared again after {took:.2f} s, longest gap of a queue "
            f"{max(self._worst.values()):.2f} s"
        )


async def rebalance(nameserver: str, members: int, queues: int, rate: int) -> None:
    """Let members join and leave."""
    topic = "shared"
    async with Admin(nameserver) as admin:
        await admin.create_topic(topic, queues=queues)
    group = Group(nameserver, topic, queues)
    async with Producer(nameserver, selector=StrictRoundRobin()) as producer:
        sending = asyncio.create_task(_send(producer, topic, rate))
        for _ in range(members - 1):
            await group.join()
        await group.until_even()

        async def leave(count: int) -> None:
            gone, group.members = group.members[:count], group.members[count:]
            await asyncio.gather(*(member.close() for member in gone))

        await group.event("nothing", lambda: asyncio.sleep(0))
        await group.event(f"member {members} joins", group.join)
        await group.event("one leaves", lambda: leave(1))
        await group.event("half of them leave", lambda: leave(members // 2))
        with _member_elsewhere(nameserver, topic) as process:
            share = queues // (len(group.members) + 1)
            while (elsewhere := queues - sum(group.owned())) < share:  # noqa: ASYNC110 (no event signals it)
                await asyncio.sleep(_LOOK_S)
            await group.until_even(elsewhere)

            async def kill() -> None:
                process.kill()

            await group.event("one is killed (its session ends after 3 s)", kill)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await asyncio.gather(*(member.close() for member in group.members))


async def _send(producer: Producer, topic: str, rate: int) -> None:
    """Send that many messages a second, a few at a time."""
    began, sent = clock(), 0
    while True:
        for _ in range(int((clock() - began) * rate) - sent):
            producer.send_nowait(topic, _BODY[:100])
            sent += 1
        await asyncio.sleep(0.01)


@contextmanager
def _member_elsewhere(nameserver: str, topic: str) -> Iterator[subprocess.Popen[str]]:
    """A consumer of the consumer group in a separate process."""
    command = [sys.executable, "-m", "bench.exclusive_bench", "--member", nameserver, topic]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            raise RuntimeError("the other member did not start")
        yield process
    finally:
        process.kill()
        process.wait()


async def _be_member(nameserver: str, topic: str) -> None:
    async def listener(messages: list[MessageView]) -> None:
        pass

    async with PushConsumer(nameserver, group="shared", listener=listener) as consumer:
        await consumer.subscribe(topic)
        print(_READY, flush=True)
        await consumer.run()


async def _measure(cluster: Cluster, options: argparse.Namespace) -> None:
    await asyncio.to_thread(cluster.wait_leader)
    nameserver = cluster.nameserver_addresses[0]
    if "drain" in options.parts:
        await drain(nameserver, options.count, options.runs)
    if "rebalance" in options.parts:
        await rebalance(nameserver, options.members, options.queues, options.rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default="drain,rebalance")
    parser.add_argument("--count", type=int, default=400_000, help="messages of the drain")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--queues", type=int, default=64)
    parser.add_argument("--rate", type=int, default=3200, help="messages a second while members come and go")
    parser.add_argument("--member", nargs=2, metavar=("NAMESERVER", "TOPIC"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member:
        uvloop.run(_be_member(*options.member))
        return
    with tempfile.TemporaryDirectory(prefix="exclusive-bench-") as folder, Cluster(Path(folder)) as cluster:
        uvloop.run(_measure(cluster, options))


if __name__ == "__main__":
    main()

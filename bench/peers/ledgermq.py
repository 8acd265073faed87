"""LedgerMQ itself: three nodes, `flush = sync`, through its own client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ledgermq.client import Admin, Message, Producer, PullConsumer
from ledgermq.client.bench.unary_callers import UnaryCallers
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from tests.integration.cluster import Cluster

from .measure import clock, closed_loop

#: Value of the broker's flush setting -> what an acknowledgement means.
_ACKNOWLEDGED = {
    "sync": "a majority has flushed it (fsync, batched)",
    "async_timed": "a majority has it in its page cache, flushed now and then",
    "async_notify": "a majority has it in its page cache, flushed at once after it",
}
_QUEUES_OF_A_TOPIC = 1000  # brokers allow a few more


class LedgerSession:
    #: Messages in flight in W3. Batches form by themselves, so more in flight means larger batches.
    window = 4000
    #: The same of `send_batch`; and as many as Kafka's leanest client has.
    batch_windows = (4000, 60_000)

    def __init__(self, nameserver: str, topics: list[str], queues: int, producers: list[Producer]) -> None:
        self._nameserver, self._producers = nameserver, producers
        self._topics, self._queues = topics, queues
        self._listeners: list[asyncio.Task[None]] = []
        self._turns = itertools.cycle(itertools.product(topics, producers))
        self._topic = topics[0]

    async def send(self, body: bytes) -> Any:
        topic, producer = next(self._turns)
        return await producer.send(topic, body)

    def batch(self, body: bytes, count: int) -> Callable[[], Awaitable[Any]]:
        """Return a call that sends that many messages by `send_batch`."""
        messages = [Message(self._topic, body) for _ in range(count)]
        return lambda: self._producers[0].send_batch(messages)

    async def fill_every_queue(self) -> None:
        """Send one message to each queue."""
        async with Producer(self._nameserver, selector=StrictRoundRobin()) as producer:
            for topic in self._topics:
                await producer.prepare(topic)
                await asyncio.gather(
                    *(producer.send(topic, b"first") for _ in range(self._queues // len(self._topics)))
                )

    @contextlib.asynccontextmanager
    async def callers(self, target: str, body: bytes) -> AsyncIterator[list[Callable[[], Awaitable[Any]]]]:
        """Yield calls of the official protocol that send one message each. `target`: leader or follower."""
        async with Admin(self._nameserver) as admin:
            groups = await admin.groups()
        async with UnaryCallers(groups, target, self._topic, body) as found:
            yield found.calls

    async def preload(self, body: bytes, count: int) -> int:
        return len(await closed_loop(lambda: self.send(body), self.window, 120, count))

    async def drain(self, count: int) -> int:
        got = 0
        async with PullConsumer(self._nameserver, group="drain") as consumer:
            await consumer.subscribe(self._topic)
            while got < count:
                messages = await consumer.poll(4000, timeout_ms=5000)
                if not messages:
                    break
                for message in messages:
                    got += bool(message.body)
                await consumer.commit()
        return got

    async def listen(self, on_body: Callable[[bytes], None]) -> None:
        async def consume() -> None:
            async with PullConsumer(self._nameserver, group="listen") as consumer:
                await consumer.subscribe(self._topic)
                last_commit = clock()
                while True:
                    for message in await consumer.poll(1000, timeout_ms=5000):
                        on_body(message.body)
                    if clock() - last_commit > 1:
                        await consumer.commit()
                        last_commit = clock()

        self._listeners.append(asyncio.create_task(consume()))

    async def close(self) -> None:
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        await asyncio.gather(*(producer.close() for producer in self._producers))


class LedgerMQ:
    def __init__(self, flush: str = "sync") -> None:
        self.name = "LedgerMQ" if flush == "sync" else f"LedgerMQ flush={flush}"
        self.acknowledged = _ACKNOWLEDGED[flush]
        self._flush = flush

    def version(self) -> str:
        return version("ledgermq")

    async def start(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._cluster = Cluster(folder, nodes=3, settings={"flush": self._flush})
        await asyncio.to_thread(self._cluster.start_all)
        self._nameserver = self._cluster.nameserver_addresses[0]

    async def stop(self) -> None:
        await asyncio.to_thread(self._cluster.stop_all)

    def pids(self) -> list[int]:
        return [process.pid for process in self._cluster.nodes.values()]

    async def open(self, name: str, producers: int = 1, queues: int = 8) -> LedgerSession:
        """Spread `queues` over several topics if one topic cannot take them all."""
        count = -(-queues // _QUEUES_OF_A_TOPIC)
        topics = [name if count == 1 else f"{name}-{number}" for number in range(count)]
        async with Admin(self._nameserver) as admin:
            for topic in topics:
                await admin.create_topic(topic, queues=queues // count)
        # The peers' clients do not compress either.
        made = [Producer(self._nameserver, compress_above=None) for _ in range(producers)]
        for producer in made:
            await producer.start()
            for topic in topics:
                await producer.prepare(topic)
        return LedgerSession(self._nameserver, topics, queues, made)

    def folders(self) -> list[Path]:
        """Return each node's data folder."""
        return [self._folder / name for name in self._cluster.nodes]

    async def open_for_failover(
        self, name: str
    ) -> tuple[Callable[[int], Awaitable[Any]], Callable[[int], None], Callable[[], Awaitable[Any]]]:
        session = await self.open(name)
        leader = await asyncio.to_thread(self._cluster.wait_leader)

        async def send(number: int) -> None:
            await session.send(b"%08d" % number + bytes(1016))

        def end(signal_number: int) -> None:
            os.kill(self._cluster.nodes[leader].pid, signal_number)

        async def restore() -> None:
            await session.close()
            await asyncio.to_thread(self._cluster.wait_ended, leader)
            await asyncio.to_thread(self._cluster.restart, leader)

        return send, end, restore

"""LedgerMQ itself, three nodes, `flush = sync`, through its own client."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ledgermq.client import Admin, Producer, PullConsumer
from tests.integration.cluster import Cluster

from .measure import clock, closed_loop


class LedgerSession:
    #: messages in flight in W3: batches form by themselves, so more in flight are larger batches
    window = 4000

    def __init__(self, nameserver: str, topic: str, producer: Producer) -> None:
        self._nameserver, self._topic, self._producer = nameserver, topic, producer
        self._listeners: list[asyncio.Task[None]] = []

    async def send(self, body: bytes) -> Any:
        return await self._producer.send(self._topic, body)

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
        await self._producer.close()


class LedgerMQ:
    name = "LedgerMQ"
    fsync = "yes, batched"

    def version(self) -> str:
        return version("ledgermq")

    async def start(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._cluster = Cluster(folder, nodes=3)
        await asyncio.to_thread(self._cluster.start_all)
        self._nameserver = self._cluster.nameserver_addresses[0]

    async def stop(self) -> None:
        await asyncio.to_thread(self._cluster.stop_all)

    def pids(self) -> list[int]:
        return [process.pid for process in self._cluster.nodes.values()]

    async def open(self, name: str) -> LedgerSession:
        async with Admin(self._nameserver) as admin:
            await admin.create_topic(name, queues=8)
        producer = Producer(self._nameserver)
        await producer.start()
        return LedgerSession(self._nameserver, name, producer)

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

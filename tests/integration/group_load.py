"""Numbered messages and consumers of each kind, for tests in which broker groups come and go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ledgermq.client import (
    Admin,
    BrokerGroupAdmin,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
)
from ledgermq.client.cli import run_cli
from ledgermq.client.produce.queue_selection import StrictRoundRobin

TOPIC = "orders"


def run(coroutine: Coroutine[Any, Any, None], seconds: float = 120) -> None:
    asyncio.run(asyncio.wait_for(coroutine, seconds))


async def command(*arguments: str) -> int:
    return await asyncio.to_thread(run_cli, list(arguments))


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.02)


class Load:
    """Numbered messages, a few at a time, and where each was stored."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sent = 0  # numbers below it have been handed to the producer
        self.groups: dict[int, str] = {}  # by number: the broker group that acknowledged it
        self._enough = asyncio.Event()

    async def run(self) -> None:
        while not self._enough.is_set():
            numbers = range(self.sent, self.sent + 4)
            self.sent += 4
            receipts = await asyncio.gather(*(self._producer.send(TOPIC, b"%d" % each) for each in numbers))
            for number, receipt in zip(numbers, receipts, strict=True):
                self.groups[number] = receipt.broker_group
            await asyncio.sleep(0.01)

    def end(self) -> None:
        self._enough.set()

    async def more(self, count: int) -> None:
        """Wait until so many more were acknowledged, all of them sent from now on."""
        last = self.sent + count
        await until(lambda: last in self.groups)


class Consumers:
    """One of each kind, in consumer groups of their own; what each got, and from which broker groups."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.got: dict[str, set[int]] = defaultdict(set)
        self.groups: dict[str, set[str]] = defaultdict(set)
        self.push: PushConsumer
        self.pull: PullConsumer

    def _take(self, kind: str, message: Any) -> None:
        self.got[kind].add(int(message.body))
        self.groups[kind].add(message.queue.broker_group)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def listener(messages: list[MessageView]) -> None:
            for message in messages:
                self._take("push", message)

        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self.push = await enter(
                PushConsumer(self._address, group="push", listener=listener, start="latest")
            )
            self.pull = await enter(PullConsumer(self._address, group="pull", start="latest"))
            simple = await enter(SimpleConsumer(self._address, group="simple"))
            for consumer in (self.push, self.pull, simple):
                await consumer.subscribe(TOPIC)
            await until(lambda: len(self.push.statistics().queues) == 2)
            tasks = [asyncio.create_task(self._pull()), asyncio.create_task(self._simple(simple))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _pull(self) -> None:
        while True:
            for message in await self.pull.poll(timeout_ms=200):
                self._take("pull", message)
            await self.pull.commit()

    async def _simple(self, consumer: SimpleConsumer) -> None:
        while True:
            messages = await consumer.receive(timeout_ms=500)
            for message in messages:
                self._take("simple", message)
            await asyncio.gather(*(consumer.ack(message) for message in messages))

    async def saw(self, broker_group: str) -> None:
        kinds = ("push", "pull", "simple")
        await until(lambda: all(broker_group in self.groups[kind] for kind in kinds))


@dataclass(frozen=True)
class Traffic:
    """Who uses the topic while groups come and go."""

    producer: Producer
    consumers: Consumers
    admin: BrokerGroupAdmin
    load: Load


@asynccontextmanager
async def traffic(address: str, timeout_ms: int) -> AsyncIterator[Traffic]:
    """Send and consume inside the block.

    At its end, all sent messages have been acknowledged, and each consumer has got all of them.
    """
    async with Admin(address) as admin:
        await admin.create_topic(TOPIC, 2)
    consumers = Consumers(address)
    async with (
        Producer(address, selector=StrictRoundRobin(), timeout_ms=timeout_ms) as producer,
        BrokerGroupAdmin(address) as admin_of_groups,
        consumers.running(),
    ):
        load = Load(producer)
        sending = asyncio.create_task(load.run())
        await load.more(20)
        yield Traffic(producer, consumers, admin_of_groups, load)
        load.end()
        await sending
        await until(lambda: all(len(got) == load.sent for got in consumers.got.values()))
    assert load.groups.keys() == set(range(load.sent)), "each was acknowledged"

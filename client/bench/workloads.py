"""Workloads of `ledgermq bench`: what users can expect of this cluster on this machine.

W1 one message in flight · W2 64 in flight · W3 as many as the client pipelines · W4 read a backlog back with
committed offsets · W5 500 messages/s, from send to receive · W6 64 callers of the official protocol, one
message per call.
Owns: the loops. Must not: print, aggregate figures (`figures` does).
A figure is valid for this run on this machine. Compare figures of one run only.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import ClassVar, Final

from ..admin.admin import Admin
from ..cluster.topic_route import BrokerGroup
from ..consume.pull_consumer import PullConsumer
from ..errors import LedgerMQError, UsageError
from ..message import Message, MessageQueue
from ..produce.producer import Producer
from ..produce.queue_selection import StickyRoundRobin
from .figures import Figures, Recorder
from .unary_callers import UnaryCallers

clock = time.perf_counter
_STAMP = struct.Struct("<d")
_PATIENCE_MS = 5_000  # a reader without messages for this long has received everything
_FIRST_MS = 20_000  # timeout of the first message of W5, which fetches routes and connects

#: For `gc.set_threshold` of a process that keeps thousands of messages in flight, as one that measures does:
#: with Python's defaults a quarter of its time goes to collections that find next to nothing.
GC_THRESHOLDS: Final = (100_000, 20, 100)
#: All workloads with short descriptions.
TITLES: Final = {
    "W1": "one message in flight",
    "W2": "64 in flight",
    "W3": "pipelined",
    "W4": "read a backlog back",
    "W5": "send to receive",
    "W6": "official protocol, unary calls",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run. `producers` and `batch` apply to W2 and W3, `callers` and `target` to W6."""

    size: int = 1024  # bytes of a body
    seconds: float = 5.0  # per workload
    warm_up_s: float = 0.5
    in_flight: int = 4000  # messages, in W3
    batch: int = 0  # messages per send_batch; 0: one awaitable per message
    producers: int = 1  # they share the messages in flight
    callers: int = 64
    target: str = "leader"  # or "follower"
    rate: float = 500.0  # messages per second in W5
    groups: int = 0  # broker groups that get messages; 0: all

    def check(self) -> None:
        """Check that the settings fit together. Raises: UsageError."""
        if self.target not in ("leader", "follower"):
            raise UsageError(f'there is no target "{self.target}"', "", "Choose leader or follower")
        if self.batch > self.in_flight:
            raise UsageError(
                f"a batch of {self.batch:,} messages does not fit into {self.in_flight:,} in flight",
                "",
                f"Allow more, or make batches smaller: --in-flight {self.batch}",
            )
        if self.producers > self.in_flight:
            raise UsageError(
                f"{self.producers:,} producers cannot share {self.in_flight:,} messages in flight",
                "Each needs one",
                f"Allow more, or take fewer: --in-flight {self.producers}",
            )


class BrokerGroupsSelector:
    """The client's default choice of queues, limited to some broker groups."""

    sticky: ClassVar = True

    def __init__(self, groups: Sequence[str]) -> None:
        self._groups = frozenset(groups)
        self._choice = StickyRoundRobin()
        self._known: Sequence[MessageQueue] = ()
        self._numbers: list[int] = []
        self._chosen: list[MessageQueue] = []

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        if queues is not self._known:
            self._known = queues
            chosen = [number for number, queue in enumerate(queues) if queue.broker_group in self._groups]
            self._numbers = chosen or list(range(len(queues)))
            self._chosen = [queues[number] for number in self._numbers]
        return self._numbers[self._choice.choose(self._chosen, key)]

    def on_flush(self) -> None:
        self._choice.on_flush()


class Workloads:
    """Runs workloads against an existing topic. `recorder`: that of the running workload."""

    def __init__(self, nameserver: str, topic: str, settings: Settings) -> None:
        settings.check()
        self.recorder: Recorder | None = None
        self._nameserver = nameserver
        self._topic = topic
        self._settings = settings
        self._groups: list[BrokerGroup] = []
        self._stored = 0
        self._cpu = 0.0

    async def run(self, name: str) -> Figures:
        """Run one workload by name (W1 … W6). Raises: errors of producer and consumer, UsageError."""
        self._groups = await self._used_groups()
        settings = self._settings
        if name in ("W1", "W2", "W3"):
            return await self._produce(name, {"W1": 1, "W2": 64, "W3": settings.in_flight}[name])
        if name == "W4":
            return await self._drain()
        return await (self._end_to_end() if name == "W5" else self._unary())

    async def _used_groups(self) -> list[BrokerGroup]:
        async with Admin(self._nameserver) as admin:
            known = await admin.groups()
        wanted = self._settings.groups
        if wanted > len(known):
            raise UsageError(
                f"{wanted} broker groups are asked for, and the cluster has {len(known)}",
                "",
                f"Take fewer: --groups {len(known)}",
            )
        return known[: wanted or len(known)]

    def _begin(self, name: str, per_call: int = 1) -> Recorder:
        self.recorder = Recorder(name, self._settings.size, self._settings.seconds, per_call)
        self._restart(self.recorder)
        return self.recorder

    def _restart(self, recorder: Recorder) -> None:
        """Restart the recording after the warm-up."""
        self._stored += recorder.messages
        self._cpu = time.process_time()
        recorder.begin(clock())

    def _finish(self, recorder: Recorder) -> Figures:
        figures = recorder.finish(clock(), time.process_time() - self._cpu)
        self._stored += figures.messages
        return figures

    def _producer(self) -> Producer:
        selector = (
            BrokerGroupsSelector([group.name for group in self._groups]) if self._settings.groups else None
        )
        # Bodies are random: an attempt to compress them would measure the compression library.
        return Producer(self._nameserver, selector=selector, compress_above=None)

    async def _produce(self, name: str, in_flight: int) -> Figures:
        settings = self._settings
        batch = settings.batch if name != "W1" else 0
        batch = min(batch, in_flight)
        recorder = self._begin(name, batch or 1)
        async with AsyncExitStack() as stack:
            count = min(settings.producers, in_flight)
            producers = [await stack.enter_async_context(self._producer()) for _ in range(count)]
            for producer in producers:
                await producer.prepare(self._topic)
            sends = [self._send(producer, batch) for producer in producers]
            calls = max(in_flight // (batch or 1), count)
            await _keep_open(sends, min(calls, max(64, count)), settings.warm_up_s, recorder)
            self._restart(recorder)
            await _keep_open(sends, calls, settings.seconds, recorder)
            return self._finish(recorder)

    def _send(self, producer: Producer, batch: int) -> Callable[[], Awaitable[object]]:
        topic, body = self._topic, os.urandom(self._settings.size)
        if not batch:
            return lambda: producer.send(topic, body)
        messages = [Message(topic, body) for _ in range(batch)]
        return lambda: producer.send_batch(messages)

    async def _drain(self) -> Figures:
        """Read back what earlier workloads stored; if nothing was stored, store something first."""
        if not self._stored:
            await self._produce("W3", self._settings.in_flight)
        async with PullConsumer(self._nameserver, group=f"bench-{time.time_ns()}") as consumer:
            await consumer.subscribe(self._topic)
            recorder = self._begin("W4")
            while recorder.messages < self._stored:
                messages = await consumer.poll(4096, timeout_ms=_PATIENCE_MS)
                if not messages:
                    break
                recorder.received(sum(bool(message.body) for message in messages), clock())
                await consumer.commit()
            return recorder.finish(clock(), time.process_time() - self._cpu)

    async def _end_to_end(self) -> Figures:
        """Send at a steady rate, and measure the time until receipt by the timestamp in each body."""
        settings = self._settings
        async with (
            self._producer() as producer,
            PullConsumer(self._nameserver, start="latest") as consumer,
        ):
            await consumer.subscribe(self._topic)
            await producer.send(self._topic, self._stamped())  # connects; its latency is not counted
            if not await consumer.poll(1, timeout_ms=_FIRST_MS):
                raise LedgerMQError(
                    f'a message to topic "{self._topic}" was stored, and is not delivered',
                    "",
                    "See: ledgermq cluster status",
                )
            self._stored += 1
            recorder = self._begin("W5")
            count = max(int(settings.rate * settings.seconds), 1)
            receiver = asyncio.create_task(_receive(consumer, count, recorder))
            try:
                await self._send_steadily(producer, count)
                await receiver
            finally:
                receiver.cancel()
                await asyncio.gather(receiver, return_exceptions=True)
            return self._finish(recorder)

    def _stamped(self) -> bytes:
        return _STAMP.pack(clock()) + bytes(max(0, self._settings.size - _STAMP.size))

    async def _send_steadily(self, producer: Producer, count: int) -> None:
        """Send `count` messages on schedule and wait for all. Raises: the error of the first failed send."""
        begin, rate = clock(), self._settings.rate
        open_sends: set[asyncio.Task[object]] = set()
        failures: list[BaseException] = []

        def done(task: asyncio.Task[object]) -> None:
            open_sends.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                failures.append(error)

        for number in range(count):
            pause = begin + number / rate - clock()
            if pause > 0:
                await asyncio.sleep(pause)
            if failures:
                break
            task: asyncio.Task[object] = asyncio.create_task(producer.send(self._topic, self._stamped()))
            open_sends.add(task)
            task.add_done_callback(done)
        await asyncio.gather(*open_sends, return_exceptions=True)
        await asyncio.sleep(0)  # lets the last callbacks run
        if failures:
            raise failures[0]

    async def _unary(self) -> Figures:
        settings = self._settings
        recorder = self._begin("W6")
        async with UnaryCallers(
            self._groups, settings.target, self._topic, os.urandom(settings.size)
        ) as callers:
            await _keep_open(callers.calls, settings.callers, settings.warm_up_s, recorder)
            self._restart(recorder)
            await _keep_open(callers.calls, settings.callers, settings.seconds, recorder)
        return self._finish(recorder)


async def _keep_open(
    calls: Sequence[Callable[[], Awaitable[object]]], count: int, seconds: float, recorder: Recorder
) -> None:
    """Keep `count` calls open for a time, taking `calls` in turn. Raises: the error of the first failure."""
    end = clock() + seconds

    async def worker(call: Callable[[], Awaitable[object]]) -> None:
        begin = clock()
        while begin < end:
            await call()
            now = clock()
            recorder.call(begin, now)
            begin = now

    workers = [asyncio.create_task(worker(calls[number % len(calls)])) for number in range(count)]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:  # a failed worker ends all of them
            each.cancel()


async def _receive(consumer: PullConsumer, count: int, recorder: Recorder) -> None:
    """Record the latencies of `count` messages; fewer when none comes for a while."""
    while recorder.messages < count and (messages := await consumer.poll(timeout_ms=_PATIENCE_MS)):
        now = clock()
        for message in messages:
            recorder.call(_STAMP.unpack_from(message.body)[0], now)

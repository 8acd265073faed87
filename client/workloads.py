"""The workloads of `ledgermq bench`: what a user can expect of this cluster on this machine.

W1 one message in flight · W2 64 in flight · W3 as many as the client pipelines · W4 read a backlog back with committed
offsets · W5 500 messages/s, from send to receive. Owns: the loops and the figures. Must not: print.
A figure holds for this run on this machine; compare figures of one run only.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

from .producer import Producer
from .pull_consumer import PullConsumer

clock = time.perf_counter
_STAMP = struct.Struct("<d")
_PATIENCE_MS = 5_000  # a reader that gets nothing for so long has everything that comes


@dataclass(slots=True)
class Figures:
    """The outcome of one workload. Latencies in ms; `histogram` counts latencies by upper bound in ms."""

    workload: str
    messages: int
    seconds: float
    bytes_per_message: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    histogram: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "messages_per_second": round(self.rate, 1)}


def summarise(workload: str, latencies: list[float], seconds: float, size: int, count: int = 0) -> Figures:
    """Fold latencies (s) into figures; `count` messages when no latencies were taken."""
    figures = Figures(workload, count or len(latencies), seconds, size)
    if latencies:
        ordered = sorted(latencies)
        figures.p50_ms = 1e3 * ordered[len(ordered) // 2]
        figures.p99_ms = 1e3 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        figures.max_ms = 1e3 * ordered[-1]
        figures.histogram = _histogram(ordered)
    return figures


def _histogram(ordered: list[float]) -> dict[str, int]:
    """Count by bounds that double, from 0.25 ms on."""
    counts: dict[str, int] = {}
    bound, position = 0.25, 0
    while position < len(ordered):
        before = position
        while position < len(ordered) and ordered[position] * 1e3 <= bound:
            position += 1
        if position > before:
            counts[f"{bound:g}"] = position - before
        bound *= 2
    return counts


class Workloads:
    """Runs workloads against one topic that exists."""

    def __init__(self, nameserver: str, topic: str, *, size: int, seconds: float, in_flight: int) -> None:
        self._nameserver = nameserver
        self._topic = topic
        self._size = size
        self._seconds = seconds
        self._in_flight = in_flight
        self._warm_up_s = min(0.5, seconds)
        self._stored = 0

    async def run(self, name: str) -> Figures:
        """Run one workload by name (W1 … W5). Raises: what the producer and the consumer raise."""
        if name in ("W1", "W2", "W3"):
            return await self._produce(name, {"W1": 1, "W2": 64, "W3": self._in_flight}[name])
        if name == "W4":
            return await self._drain()
        return await self._end_to_end()

    async def _produce(self, name: str, in_flight: int) -> Figures:
        body = os.urandom(self._size)
        async with Producer(self._nameserver) as producer:
            await producer.prepare(self._topic)
            await self._loop(lambda: producer.send(self._topic, body), min(in_flight, 64), self._warm_up_s)
            begin = clock()
            latencies = await self._loop(lambda: producer.send(self._topic, body), in_flight, self._seconds)
            return summarise(name, latencies, clock() - begin, self._size)

    async def _loop(
        self, send: Callable[[], Awaitable[object]], in_flight: int, seconds: float
    ) -> list[float]:
        latencies: list[float] = []
        end = clock() + seconds

        async def worker() -> None:
            begin = clock()
            while begin < end:
                await send()
                now = clock()
                latencies.append(now - begin)
                begin = now

        workers = [asyncio.create_task(worker()) for _ in range(in_flight)]
        try:
            await asyncio.gather(*workers)
        finally:
            for each in workers:  # one that failed ends them all
                each.cancel()
        self._stored += len(latencies)
        return latencies

    async def _drain(self) -> Figures:
        """Read back what the workloads before stored; with nothing stored, store something first."""
        if not self._stored:
            await self._produce("W3", self._in_flight)
        async with PullConsumer(self._nameserver, group=f"bench-{time.time_ns()}") as consumer:
            await consumer.subscribe(self._topic)
            got, begin = 0, clock()
            while got < self._stored:
                messages = await consumer.poll(4096, timeout_ms=_PATIENCE_MS)
                if not messages:
                    break
                for message in messages:
                    got += bool(message.body)
                await consumer.commit()
            return summarise("W4", [], clock() - begin, self._size, got)

    async def _end_to_end(self, rate: int = 500) -> Figures:
        """Send at a steady rate and take the time until each message is received, by the clock in its body."""
        async with (
            Producer(self._nameserver) as producer,
            PullConsumer(self._nameserver, start="latest") as consumer,
        ):
            await consumer.subscribe(self._topic)
            await producer.send(self._topic, self._stamped())  # connects; its latency does not count
            count = max(int(rate * self._seconds), 1)
            receiver = asyncio.create_task(self._receive(consumer, count + 1))
            try:
                begin = clock()
                await self._send_steadily(producer, count, rate)
                seconds = clock() - begin
                latencies = await receiver
            finally:
                receiver.cancel()
                await asyncio.gather(receiver, return_exceptions=True)
        self._stored += count + 1
        return summarise("W5", latencies[1:], seconds, self._size)

    def _stamped(self) -> bytes:
        return _STAMP.pack(clock()) + bytes(max(0, self._size - _STAMP.size))

    async def _send_steadily(self, producer: Producer, count: int, rate: int) -> None:
        """Send `count` messages at their times and wait for all. Raises: what the first failed send raised."""
        begin = clock()
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
        await asyncio.sleep(0)  # the callbacks of the last ones
        if failures:
            raise failures[0]

    async def _receive(self, consumer: PullConsumer, count: int) -> list[float]:
        """Return the latencies of `count` messages; fewer when none comes for a while."""
        latencies: list[float] = []
        while len(latencies) < count and (messages := await consumer.poll(timeout_ms=_PATIENCE_MS)):
            now = clock()
            latencies += (now - _STAMP.unpack_from(message.body)[0] for message in messages)
        return latencies

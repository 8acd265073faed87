"""Client histories: what was acknowledged, and what each node really serves.

Every message has a body of its own, so that a lost, a doubled and a misplaced message are told apart.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import grpc

from ledgermq.client import Producer
from ledgermq.client.errors import LedgerMQError
from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc, record
from ledgermq.proto.route_pb2 import TopicInfo

Place = tuple[int, int]  # queue id, queue offset
T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class History:
    """Bodies by outcome. A body in `unknown` may be stored or not; one in `acknowledged` must be."""

    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    unknown: dict[bytes, str] = field(default_factory=dict)

    def check(self, stored: dict[Place, bytes], where: str) -> None:
        """Compare with what a node serves: nothing is lost, moved, stored twice or invented."""
        lost = [body for body, place in self.acknowledged.items() if stored.get(place) != body]
        assert not lost, (
            f"{where}: {len(lost)} acknowledged messages are not at their place, first {lost[:3]}"
        )
        doubled = [body for body, times in Counter(stored.values()).items() if times > 1]
        assert not doubled, f"{where}: {len(doubled)} messages are stored twice, first {doubled[:3]}"
        invented = [b for b in stored.values() if b not in self.acknowledged and b not in self.unknown]
        assert not invented, f"{where}: {len(invented)} messages were never sent, first {invented[:3]}"


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all loads of the test process: gRPC's poller stays with its first loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="load", daemon=True).start()
    return loop


def run_client(coroutine: Coroutine[Any, Any, T], timeout: float = 120.0) -> T:
    """Run a coroutine of a test's clients on the loop that all clients share; return its result."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _background_loop())
    try:
        return future.result(timeout)
    except BaseException:
        future.cancel()
        raise


def on_client_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine by `run_client`."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_client(test(*args, **kwargs))

    return run


class Load:
    """A producer in the background that keeps `in_flight` messages open until it is stopped."""

    def __init__(
        self, nameserver: str, topic: str, *, in_flight: int = 64, prefix: str = "m", timeout_ms: int = 20_000
    ) -> None:
        self.history = History()
        self._nameserver, self._topic, self._in_flight, self._prefix = nameserver, topic, in_flight, prefix
        self._timeout_ms = timeout_ms
        self._stop = threading.Event()
        self._numbers = iter(range(1 << 62))
        self._produced: Future[None] | None = None

    async def _produce(self) -> None:
        async with Producer(self._nameserver, timeout_ms=self._timeout_ms) as producer:
            await asyncio.gather(*(self._worker(producer) for _ in range(self._in_flight)))

    async def _worker(self, producer: Producer) -> None:
        while not self._stop.is_set():
            body = f"{self._prefix}-{next(self._numbers)}".encode()
            self.history.unknown[body] = "in flight"
            try:
                receipt = await producer.send(self._topic, body)
            except LedgerMQError as error:
                self.history.unknown[body] = str(error)
                await asyncio.sleep(0.05)
                continue
            del self.history.unknown[body]
            self.history.acknowledged[body] = (receipt.queue_id, receipt.queue_offset)

    @property
    def count(self) -> int:
        return len(self.history.acknowledged)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Produce inside the block; the first messages are acknowledged when it begins."""
        self._produced = asyncio.run_coroutine_threadsafe(self._produce(), _background_loop())
        try:
            yield self
        finally:
            self.stop()

    def ask_to_stop(self) -> None:
        """Begin nothing new; what is open goes on until it is decided."""
        self._stop.set()

    def stop(self) -> History:
        self.ask_to_stop()
        assert self._produced is not None, "stopped before it ran"
        self._produced.result(self._timeout_ms / 1000 + 30)
        return self.history


def describe_topic(address: str, topic: str) -> TopicInfo:
    """Return id and queue count of a topic; any node answers while there is a leader."""
    with grpc.insecure_channel(address) as channel:
        request = admin_pb2.DescribeTopicRequest(topic=topic)
        answer = admin_pb2_grpc.AdminServiceStub(channel).DescribeTopic(request, timeout=20)
    assert not answer.refusal.code, answer.refusal.message
    info: TopicInfo = answer.topic
    return info


def read_topic(
    address: str, topic: str | TopicInfo, begins: Mapping[int, int] | None = None
) -> dict[Place, bytes]:
    """Return all messages of a topic that one node serves by Fetch, from `begins` (by queue) to the end."""
    info = describe_topic(address, topic) if isinstance(topic, str) else topic
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        stub = log_pb2_grpc.LogServiceStub(channel)
        stored: dict[Place, bytes] = {}
        for queue_id in range(info.queue_count):
            _read_queue(stub, info.topic_id, queue_id, stored, (begins or {}).get(queue_id, 0))
        return stored


def _read_queue(
    stub: log_pb2_grpc.LogServiceStub, topic_id: int, queue_id: int, stored: dict[Place, bytes], offset: int
) -> None:
    while True:
        position = log_pb2.FetchPosition(topic_id=topic_id, queue_id=queue_id, offset=offset)
        answer = stub.Fetch(log_pb2.FetchRequest(positions=[position], max_bytes=4 << 20), timeout=20)
        assert not answer.refusal.code, answer.refusal.message
        if not answer.queues or not answer.queues[0].sections:
            return
        assert not answer.queues[0].refusal.code, answer.queues[0].refusal.message
        for fetched in answer.queues[0].sections:
            offset = _take_section(fetched.section, queue_id, offset, stored)


def _take_section(section: bytes, queue_id: int, offset: int, stored: dict[Place, bytes]) -> int:
    header = record.decode_section(section)
    record.verify_section(section, 0, header)
    body = section[record.SECTION_HEADER_SIZE :]
    for number, position in enumerate(record.record_positions(body, header.count)):
        place = (queue_id, header.base_queue_offset + number)
        if place[1] >= offset:
            stored[place] = bytes(record.decode_record(body, int(position)).body)
    return max(offset, header.base_queue_offset + header.count)

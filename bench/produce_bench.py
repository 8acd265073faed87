"""CPU per message of a producer alone: no network and no broker, every request is answered at once.

    python -m bench.produce_bench [--size 128] [--count 200000] [--calls batch,many,produce,nowait,send]

What is left is what the client itself does for a message: encode, number, cut requests, and tell the result.
Compare two versions in turn, in processes of their own. `--json` prints one line for a program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from ledgermq.client import Message, Producer
from ledgermq.client.cluster.topic_route import BrokerGroup, Node, TopicInBrokerGroup, TopicRoute
from ledgermq.client.event_loop import happens_anew
from ledgermq.client.produce.produce_stream import BrokerGroupConnection, encoded, now_ms
from ledgermq.proto import log_pb2

_TOPIC = "produce-bench"
_QUEUES = 8
_IN_FLIGHT = 4000  # messages
_BATCH = 1000


async def _answered_at_once(self: Any, address: str) -> None:
    """Take the place of a stream to a leader that stores everything."""
    ends: dict[tuple[str, int], int] = {}
    while True:
        request = self.window.next_request(now_ms())
        if request is None:
            await happens_anew(self._wake)
            continue
        self._on_flush(request.count)
        encoded(request)
        results = []
        for section in request.sections:
            key = section.lane.queue.topic, section.lane.queue.queue_id
            base = ends.get(key, 0)
            ends[key] = base + section.count
            results.append(log_pb2.SectionResult(base_queue_offset=base, count=section.count))
        await asyncio.sleep(0)
        answer = log_pb2.ProduceResponse(request_id=request.request_id, results=results)
        self._on_outcome(self, self.window.on_response(answer, now_ms()))


async def _route(topic: str, **options: object) -> TopicRoute:
    group = BrokerGroup("c", "g0", 1, "n1", (Node("n1", "127.0.0.1:1", "", True),), True)
    return TopicRoute(topic, "c", (TopicInBrokerGroup(group, 1, _QUEUES, True, True),))


async def batch(producer: Producer, body: bytes, count: int) -> None:
    """`send_batch`, four at a time. Building the messages does not count."""
    messages = [Message(_TOPIC, body) for _ in range(_BATCH)]
    for _ in range(count // (4 * _BATCH)):
        await asyncio.gather(*(producer.send_batch(messages) for _ in range(4)))


async def many(producer: Producer, body: bytes, count: int) -> None:
    """`produce_many` from a generator of bodies."""
    await producer.produce_many((body for _ in range(count)), topic=_TOPIC)


async def produce(producer: Producer, body: bytes, count: int) -> None:
    """`produce`, with a function that counts."""
    stored = 0

    def told(receipt: object, error: object) -> None:
        nonlocal stored
        stored += 1

    for number in range(count):
        producer.produce(told, _TOPIC, body)
        if number - stored >= _IN_FLIGHT:
            await asyncio.sleep(0)
    await producer.flush()


async def nowait(producer: Producer, body: bytes, count: int) -> None:
    """`send_nowait`, and all futures of a round awaited together."""
    for _ in range(count // _IN_FLIGHT):
        await asyncio.gather(*[producer.send_nowait(_TOPIC, body) for _ in range(_IN_FLIGHT)])


async def send(producer: Producer, body: bytes, count: int) -> None:
    """`send` from as many tasks as messages are in flight."""

    async def one_after_the_other() -> None:
        for _ in range(count // _IN_FLIGHT):
            await producer.send(_TOPIC, body)

    await asyncio.gather(*(one_after_the_other() for _ in range(_IN_FLIGHT)))


CALLS: dict[str, Callable[[Producer, bytes, int], Awaitable[None]]] = {
    "batch": batch, "many": many, "produce": produce, "nowait": nowait, "send": send,
}  # fmt: skip


async def measure(call: str, size: int, count: int) -> float:
    """Return the microseconds of CPU per message."""
    BrokerGroupConnection._use_stream = _answered_at_once  # type: ignore[method-assign]
    async with Producer("127.0.0.1:1", compress_above=None) as producer:
        producer._routes.get = _route  # type: ignore[method-assign]
        await producer.prepare(_TOPIC)
        body = os.urandom(size)
        await CALLS[call](producer, body, min(count, 2 * _IN_FLIGHT))
        begin = time.process_time()
        await CALLS[call](producer, body, count)
        return 1e6 * (time.process_time() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU per message of a producer alone")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--count", type=int, default=200_000, help="messages of each call")
    parser.add_argument("--calls", default=",".join(CALLS), help=f"of {', '.join(CALLS)}")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args()
    found = {
        call: round(uvloop.run(measure(call, options.size, options.count)), 3)
        for call in options.calls.split(",")
    }
    if options.json:
        print(json.dumps(found))
        return
    for call, cpu in found.items():
        print(f"{call:8} {cpu:6.2f} us of CPU per message of {options.size} B")


if __name__ == "__main__":
    main()

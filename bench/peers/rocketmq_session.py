"""Producers and pulling consumers of RocketMQ over `remoting`, on the connections of one process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from . import remoting
from .measure import closed_loop

_BATCH = 256
_ATTEMPTS = 3  # as the Java client: retryTimesWhenSendFailed is 2


class RocketSession:
    #: Messages in flight in W3, as many as ours.
    window = 4000

    def __init__(self, topic: str, queues: int, port: int) -> None:
        self._topic, self._queues, self._port = topic, queues, port
        self._connections: list[remoting.Connection] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._next_queue = itertools.cycle(range(queues))
        self._plain = [remoting.send_request(topic, queue) for queue in range(queues)]
        self._batches = [remoting.send_request(topic, queue, batch=True) for queue in range(queues)]

    async def start(self, producers: int) -> None:
        """Connect and create the topic."""
        await self.connect(producers)
        request = remoting.create_topic_request(self._topic, self._queues)
        (await self._connections[0].call(request)).accept()

    async def connect(self, producers: int = 1) -> None:
        self._connections = [await remoting.Connection.to(self._port) for _ in range(producers)]
        self._turns = itertools.cycle(self._connections)

    async def send(self, body: bytes) -> None:
        await self._store(self._plain, body)

    def batch(self, body: bytes, count: int) -> Callable[[], Awaitable[Any]]:
        """Return a call that sends that many messages in one request, to one queue after the other."""
        bodies = [body] * count

        return lambda: self._store(self._batches, remoting.batch_body(bodies))

    async def _store(self, requests: Sequence[remoting.Request], body: bytes) -> None:
        """Send to the next queue, and on refusal to the one after it. Raises: OSError, RefusedError."""
        for attempt in range(1, _ATTEMPTS + 1):
            answer = await next(self._turns).call(requests[next(self._next_queue)], body)
            if answer.code == remoting.OK or attempt == _ATTEMPTS:
                answer.accept()
                return

    async def preload(self, body: bytes, count: int) -> int:
        send = self.batch(body, _BATCH)
        stored = len(await closed_loop(send, self.window // _BATCH, 120, count // _BATCH)) * _BATCH
        return stored + len(await closed_loop(lambda: self.send(body), 64, 30, count - stored))

    async def drain(self, count: int) -> int:
        """Pull from all queues at once; each pull commits what the one before brought."""
        got = 0

        async def pull(queue: int) -> None:
            nonlocal got
            async for bodies in self._pull(f"drain-{self._topic}", queue, wait_ms=500):
                got += sum(map(bool, bodies))
                if not bodies or got >= count:
                    return

        await asyncio.gather(*(pull(queue) for queue in range(self._queues)))
        return got

    async def listen(self, on_body: Callable[[bytes], None]) -> None:
        async def consume(queue: int) -> None:
            async for bodies in self._pull(f"listen-{self._topic}", queue, wait_ms=5000):
                for body in bodies:
                    on_body(body)

        self._listeners += [asyncio.create_task(consume(queue)) for queue in range(self._queues)]

    async def _pull(self, group: str, queue: int, wait_ms: int) -> AsyncIterator[list[bytes]]:
        """Yield the bodies of each pull; none if it waited in vain."""
        connection, offset = await remoting.Connection.to(self._port), 0
        try:
            while True:
                request = remoting.pull_request(group, self._topic, queue, offset, wait_ms)
                answer = (await connection.call(request)).accept(remoting.NO_NEW_MESSAGE, remoting.PULL_AGAIN)
                offset = int(answer.header["extFields"]["nextBeginOffset"])
                if answer.code == remoting.OK:
                    yield list(remoting.stored_bodies(answer.body))
                elif answer.code == remoting.NO_NEW_MESSAGE:
                    yield []
        finally:
            connection.close()

    async def close(self) -> None:
        for task in self._listeners:
            task.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)
        for connection in self._connections:
            connection.close()

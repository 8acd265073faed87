"""The asyncio producer: encodes, chooses queues, batches, retries, and resolves one future per message.

    async with Producer("127.0.0.1:9876") as producer:
        receipt = await producer.send("orders", b"hello", tag="new")

Owns: the bound on bytes that wait (`max_pending_bytes`), deadlines, one connection per broker group.
A receipt means: stored and flushed on a majority of the group's nodes. A retry is recognised by the brokers, so a
message that was sent again is stored once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from .batching import Delivered, Failed, Lane, Outcome, Section, SendWindow
from .channels import Channels
from .connection import GroupConnection, now_ms
from .encoding import COMPRESS_ABOVE, RecordEncoder, check_text, encode_text
from .errors import (
    BufferFullError,
    ClosedError,
    LedgerMQError,
    MessageTooLargeError,
    SendTimeoutError,
    TopicNotFoundError,
    error_of,
)
from .message import Message, SendReceipt
from .message_ids import process_ids
from .plain_run import PlainRun
from .queue_selection import QueueSelector, StickyRoundRobin, queue_of_group
from .routes import Routes
from .topic_route import BrokerGroup, TopicRoute

logger = logging.getLogger(__name__)

#: One deadline for a message, from when it has a queue: connection, failover, retries. The route of a new topic comes before. ms.
SEND_TIMEOUT_MS: Final = 10_000
#: Bytes of messages that may wait for their acknowledgement.
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
_CHECK_S: Final = 0.1
_RECORD_ROOM: Final = 256  # what a record needs beside body and labels, for choosing a section


class _Topic:
    """What the producer keeps per topic: the encoder and the lanes of the queues that may be written."""

    __slots__ = ("encoder", "lanes", "queues", "route", "windows")

    def __init__(self, route: TopicRoute, encoder: RecordEncoder) -> None:
        self.route = route
        self.encoder = encoder
        self.queues = route.queues
        self.lanes: list[Lane] = []
        self.windows: list[GroupConnection] = []


class Producer:
    """Sends messages. Use it as an async context manager, or call start() and close()."""

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        cluster: str = "",
        timeout_ms: int = SEND_TIMEOUT_MS,
        selector: QueueSelector | None = None,
        compress_above: int | None = COMPRESS_ABOVE,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.timeout_ms = timeout_ms
        self._selector = selector or StickyRoundRobin(secrets.randbelow(1 << 16))
        self._compress_above = compress_above
        self._max_pending_bytes = max_pending_bytes
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._routes.on_change(self._on_route)
        self._ids = process_ids()
        self._host = socket.gethostname()
        self._topics: dict[str, _Topic] = {}
        self._connections: dict[str, GroupConnection] = {}
        self._pending_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._open: set[Section] = set()  # with messages that nobody has acknowledged or given up
        self._released = asyncio.Event()  # a section left `_open`
        self._timer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False  # or closing: takes no new calls
        self._ended = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin to watch deadlines. Nothing is connected before the first send."""
        if self._timer is None:
            self._timer = asyncio.create_task(self._watch_deadlines(), name="ledgermq-producer-deadlines")

    async def close(self) -> None:
        """Wait for what is open (until its deadlines), then close every connection. New calls are refused at once."""
        if self._ended:
            return
        self._closed = True
        while self._open:  # a call that waited for room comes in meanwhile
            await self.flush()
        self._ended = True
        for connection in self._connections.values():
            await connection.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._tasks, *([self._timer] if self._timer else [])):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._routes.close()
        await self._channels.close()

    # --- sending ----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str | Message,
        body: bytes | str | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
    ) -> SendReceipt:
        """Send one message and wait until it is committed. Sends that run at the same time share a request.

        Raises: UsageError (nothing was sent), TopicNotFoundError, RefusedError (not stored), SendTimeoutError,
        NameserversDownError.
        """
        self._check_open()
        name = topic.topic if isinstance(topic, Message) else topic
        if name not in self._topics:
            await self.prepare(name)
        if self._pending_bytes >= self._max_pending_bytes:
            await self.ready()  # last: nothing may come between it and taking the room
        return await self._put(topic, body, tag, keys, properties, message_group)

    def send_nowait(
        self,
        topic: str | Message,
        body: bytes | str | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
    ) -> asyncio.Future[SendReceipt]:
        """Queue one message and return a future of its receipt. Await `prepare(topic)` once before.

        Raises: BufferFullError (await `ready()`), UsageError, TopicNotFoundError (not prepared).
        """
        self._check_open()
        return self._put(topic, body, tag, keys, properties, message_group)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("producer")

    def _put(
        self,
        topic: str | Message,
        body: bytes | str | None,
        tag: str,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        message_group: str,
    ) -> asyncio.Future[SendReceipt]:
        if isinstance(topic, Message):
            message = topic
            topic, body, tag, keys = message.topic, message.body, message.tag, message.keys
            properties, message_group = message.properties, message.message_group
        if self._pending_bytes >= self._max_pending_bytes:
            raise BufferFullError(self._pending_bytes, self._max_pending_bytes)
        state = self._topics.get(topic)
        if state is None or self._ended:
            raise ClosedError("producer") if self._ended else TopicNotFoundError(topic)
        data = encode_text("body", body) if isinstance(body, str) else body if body is not None else b""
        if message_group:
            check_text("message_group", message_group)
            number = queue_of_group(message_group, len(state.lanes))
        else:
            number = self._selector.choose(state.queues, keys[0] if keys else "")
            paused_until = state.windows[number].window.paused_until
            if paused_until and paused_until > now_ms():
                number = _not_paused(state.windows, number)
        return self._enqueue(state, number, data, tag, keys, properties, message_group)

    def _enqueue(
        self,
        state: _Topic,
        number: int,
        body: bytes,
        tag: str,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        message_group: str,
    ) -> asyncio.Future[SendReceipt]:
        connection = state.windows[number]
        window = connection.window
        if len(body) > connection.group.max_message_bytes:
            raise MessageTooLargeError(len(body), connection.group.max_message_bytes)
        now = now_ms()
        section = window.open_section(
            state.lanes[number], now, now + self.timeout_ms, len(body) + _RECORD_ROOM
        )
        born_ms = time.time_ns() // 1_000_000
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        encoder = state.encoder
        if not (tag or keys or properties or message_group) and encoder.is_plain(body):
            run = section.run
            if run is None or not run.fits(encoder, len(body), born_ms):
                run = PlainRun(encoder, section.size, len(body), born_ms, self._ids.stem(born_ms))
            size = run.record_size
            window.added_to_run(section, run, (future, run.add(body, self._ids.number())))
        else:
            message_id = self._ids.next(born_ms)
            record = encoder.encode(
                section.size, body, message_id, born_ms, tag, keys, properties, message_group
            )
            size = len(record)
            window.added(section, record, (future, message_id[1]))
            if message_group:
                section.fifo = True
        self._pending_bytes += size
        self._open.add(section)
        connection.wake()
        return future

    async def send_batch(self, messages: Iterable[Message]) -> list[SendReceipt]:
        """Send many messages and wait for all of them. Receipts come in the order of the messages.

        Raises: what `send` raises, for the first message that failed; the others are sent nevertheless.
        """
        self._check_open()
        futures: list[asyncio.Future[SendReceipt]] = []
        no_route: dict[str, LedgerMQError] = {}  # of topics: they are asked for once
        for message in messages:
            try:
                if message.topic in no_route:
                    raise no_route[message.topic]
                if message.topic not in self._topics:
                    await self.prepare(message.topic)
                await self.ready()
                futures.append(self._put(message, None, "", (), None, ""))
            except LedgerMQError as error:
                if message.topic not in self._topics:
                    no_route[message.topic] = error
                futures.append(asyncio.get_running_loop().create_future())
                futures[-1].set_exception(error)
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]

    async def prepare(self, topic: str) -> None:
        """Fetch the route of a topic, so that `send_nowait` can be used.

        Raises: TopicNotFoundError, NameserversDownError, InvalidNameError.
        """
        if self._ended:
            raise ClosedError("producer")
        await self.start()
        state = self._topics.get(topic)
        encoder = (
            state.encoder
            if state
            else RecordEncoder(topic, born_host=self._host, compress_above=self._compress_above)
        )
        route = await self._routes.get(topic, create=True)
        if self._ended:
            raise ClosedError("producer")
        self._use_route(route, encoder)

    async def ready(self) -> None:
        """Wait until there is room for more messages."""
        while self._pending_bytes >= self._max_pending_bytes:
            self._room.clear()
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until every message so far is acknowledged or has failed."""
        awaited = set(self._open)
        while awaited & self._open:
            self._released.clear()
            await self._released.wait()

    # --- routes -----------------------------------------------------------------------------------------------

    def _use_route(self, route: TopicRoute, encoder: RecordEncoder) -> None:
        """Make lanes for the writable queues of a route; groups that are full or draining take no new messages."""
        state = _Topic(route, encoder)
        parts = [part for part in route.parts if part.writable and part.queue_count]
        preferred = [part for part in parts if part.group.writable] or parts
        queues = []
        for queue in route.queues:
            part = route.part(queue.broker_group)
            if part is None or part not in preferred:
                continue
            connection = self._connection(part.group)
            queues.append(queue)
            state.lanes.append(connection.window.lane(queue, part.topic_id))
            state.windows.append(connection)
        if not queues:
            raise LedgerMQError(
                f'topic "{route.topic}" has no queue that can be written',
                "",
                f"See: ledgermq topic describe {route.topic}",
            )
        state.queues = tuple(queues)
        self._topics[route.topic] = state

    def _connection(self, group: BrokerGroup) -> GroupConnection:
        connection = self._connections.get(group.name)
        if connection is None:
            window = SendWindow(_new_producer_id)
            connection = GroupConnection(
                group, self._channels, window, self._on_outcome, self._selector.on_flush
            )
            self._connections[group.name] = connection
        else:
            connection.update(group)
        connection.window.limit(group.max_request_bytes)
        return connection

    def _on_route(self, route: TopicRoute) -> None:
        state = self._topics.get(route.topic)
        if state is None or self._ended:
            return
        try:
            self._use_route(route, state.encoder)
        except LedgerMQError as error:
            logger.warning("route not usable topic=%s reason=%s", route.topic, error)
        for connection in self._connections.values():
            connection.wake()

    def _refresh(self, topic: str) -> None:
        """Fetch the route again in the background."""

        async def refresh() -> None:
            try:
                await self._routes.get(topic, refresh=True)
            except LedgerMQError as error:
                logger.info("route not refreshed topic=%s reason=%s", topic, error)

        task = asyncio.create_task(refresh())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- answers ----------------------------------------------------------------------------------------------

    def _on_outcome(self, connection: GroupConnection, outcome: Outcome) -> None:
        for delivered in outcome.delivered:
            self._deliver(delivered)
        for failed in outcome.failed:
            self._fail(failed, connection)
        for topic in outcome.refresh_topics:
            self._refresh(topic)
        if outcome.find_leader and not outcome.leader_hint:
            for topic, state in self._topics.items():
                if connection in state.windows:
                    self._refresh(topic)
                    break
        if outcome.try_other_group:
            self._move_sections(connection)

    def _deliver(self, delivered: Delivered) -> None:
        section = delivered.section
        topic, group, queue_id = section.lane.queue
        offset = delivered.base_offset
        for future, message_id in section.tickets:
            if not future.done():
                future.set_result(
                    SendReceipt(message_id, topic, group, queue_id, offset, delivered.duplicate)
                )
            offset += 1
        self._release(section)

    def _fail(self, failed: Failed, connection: GroupConnection) -> None:
        section = failed.section
        for future, _ in section.tickets:
            if future.done():
                continue
            if failed.refusal is not None:
                future.set_exception(error_of(failed.refusal))
            else:
                reason = section.refused or connection.last_error or "No leader acknowledged it"
                topic = section.lane.queue.topic
                future.set_exception(
                    SendTimeoutError(topic, self.timeout_ms, sent=failed.sent, reason=reason)
                )
        self._release(section)

    def _release(self, section: Section) -> None:
        self._pending_bytes -= section.body_size
        self._open.discard(section)
        if self._pending_bytes < self._max_pending_bytes:
            self._room.set()
        self._released.set()

    def _move_sections(self, source: GroupConnection) -> None:
        """Give what the group definitely refused to another group of the same topic, if there is one."""
        targets = {
            topic: [
                (lane, window)
                for lane, window in zip(state.lanes, state.windows, strict=True)
                if window is not source and window.group.writable and window.group.leader_id
            ]
            for topic, state in self._topics.items()
        }
        if not any(targets.values()):
            return
        for section in source.window.release():
            choices = targets.get(section.lane.queue.topic)
            lane, window = choices[secrets.randbelow(len(choices))] if choices else (section.lane, source)
            window.window.adopt(section, lane)
            window.wake()

    async def _watch_deadlines(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            now = now_ms()
            for connection in self._connections.values():
                for failed in connection.window.expire(now):
                    self._fail(failed, connection)


def _not_paused(connections: list[GroupConnection], number: int) -> int:
    """Return the next queue whose group takes messages now, or `number` when every group asked for a pause."""
    now = now_ms()
    for step in range(1, len(connections)):
        other = (number + step) % len(connections)
        if connections[other].window.paused_until <= now:
            return other
    return number


def _new_producer_id() -> int:
    """A random id of 63 bits, never 0 (0 means: not recognised by sequence)."""
    return secrets.randbits(63) | 1

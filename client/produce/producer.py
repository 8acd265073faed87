"""asyncio producer: sends messages in batches, retries, and reports the result of each message to its caller.

    async with Producer("127.0.0.1:9876") as producer:
        receipt = await producer.send("orders", b"hello", tag="new")

Owns: deadlines, routes, one connection per broker group; which messages move to another broker group, and
which fail because their topic no longer exists. Waiting messages and the choice of queues: `outbox`. The
meaning of a refusal: `retry_policy`.
A receipt means: stored and flushed on a majority of the nodes of the broker group. Brokers detect retries, so
a message that was resent is stored once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Self, cast

from ledgermq.proto.record import MAX_BODY_SIZE

from ..arguments import (
    a_consumer_group,
    a_flag,
    a_function,
    a_text,
    an_iterable,
    check_count,
    check_name,
    checked,
    empty_or,
    none_or,
    whole,
    wrong,
)
from ..async_client import AsyncClient
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..cluster.topic_route import (
    BrokerGroup,
    TopicInBrokerGroup,
    TopicRoute,
    no_queue_to_write,
    with_lost_parts,
)
from ..errors import (
    ClosedError,
    LedgerMQError,
    SendTimeoutError,
    TopicNotFoundError,
    error_of,
    message_of_replaced,
)
from ..message import Message, MessageQueue, SendReceipt
from ..pauses import CHECK_S
from ..trace.tracer import TRACE_TIMEOUT_MS, Tracer, trace_source
from .early_message import keep, message_of
from .encoding import COMPRESS_ABOVE, RecordEncoder
from .latency_fault import SEED_TABLE, CallTimes, LatencyFaultTable, LatencyTable
from .many import Item, Part, async_parts_of, check_many, parts_of
from .one_way import OneWay
from .outbox import OnDone, Outbox, Told
from .plain_run import Stretch, stretches, stretches_of
from .produce_stream import BrokerGroupConnection, now_ms, removed
from .producer_statistics import BrokerGroupStatistics, ProducerStatistics, statistics_of
from .queue_selection import (
    CustomChoice,
    MessageSelector,
    QueueSelector,
    Selection,
    StickyRoundRobin,
    selection_of,
    selector_of,
)
from .send_trace import trace_section
from .send_window import Delivered, Failed, Outcome, SendWindow
from .sent_batch import SentBatch
from .topic_lanes import TopicLanes

logger = logging.getLogger(__name__)

#: Deadline of a message from when it has a queue, ms. Covers connection, failover and retries, but not
#: fetching the route of a new topic.
SEND_TIMEOUT_MS: Final = 10_000
#: Parts of `produce_many` that are undecided when the next one is read.
_MOST_PARTS: Final = 16
#: Called with the position of a part's first message, and the part's receipts.
OnStored = Callable[[int, Sequence[SendReceipt]], object]
#: Bound on the bytes of unacknowledged messages.
MAX_PENDING_BYTES: Final = 64 * 1024 * 1024


class Producer(AsyncClient):
    """Sends messages. Use it as an async context manager, or call start() and close().

    Example:

        async with Producer("127.0.0.1:9876") as producer:
            receipt = await producer.send("orders", b"hello", tag="new", keys=["4711"])
            print(receipt.message_id, receipt.queue_id, receipt.queue_offset)
            await producer.send_batch(Message("orders", f"{n}".encode()) for n in range(1_000))

    One event loop and any number of tasks can share a producer. Concurrent sends share requests.
    """

    @checked(
        cluster=a_text,
        timeout_ms=check_count,
        group=empty_or(a_consumer_group),
        zone=a_text,
        send_latency_fault_enable=a_flag,
        compress_above=none_or(whole(0)),
        max_pending_bytes=check_count,
        trace=a_flag,
    )
    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        cluster: str = "",
        timeout_ms: int = SEND_TIMEOUT_MS,
        group: str = "",
        selector: QueueSelector | CustomChoice | None = None,
        zone: str = "",
        send_latency_fault_enable: bool = False,
        latency_fault_table: LatencyFaultTable = SEED_TABLE,
        compress_above: int | None = COMPRESS_ABOVE,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        trace: bool = False,
    ) -> None:
        """`timeout_ms` is the deadline of a message including all retries, ms. `selector` chooses queues: one
        of `queue_selection`, your own, or a function of the queues and the first key that returns an index.

        `nameservers`: "host:port", several with commas, or a sequence of them. `cluster`: the name of the
        cluster, needed only where the nameservers know several.
        `group`: a name for producers that do the same work. It appears in `statistics()` and in the log only.
        `zone`: broker groups whose leader is in this zone are preferred. If there are none, or none of them
        takes messages, all are used.
        `send_latency_fault_enable`: avoid broker groups after slow and failed calls, and prefer the fastest
        of the others. The rows of `latency_fault_table` (latency from which, how long; ms) say for how long.
        Queues of message groups, and queues that a selector chose for a reason, stay.
        `compress_above`: larger bodies are compressed when that makes them smaller, bytes; None: never.
        `max_pending_bytes`: bytes of messages that may wait for their receipts. Above it `send` waits, and
        `send_nowait` raises BufferFullError.
        `trace`: record the result of each message in the trace topic (`ledgermq message trace`). The brokers
        need `trace_topic`.
        Raises: UsageError (InvalidAddressError: of a nameserver; InvalidNameError).
        """
        self.group = group
        self.max_pending_bytes = max_pending_bytes
        self.one_way = OneWay(group)
        self._stored = self._failed = 0  # messages
        self._zone = zone
        table = LatencyTable(latency_fault_table)
        self._table = table if send_latency_fault_enable else None
        chosen = selector_of(selector or StickyRoundRobin(secrets.randbelow(1 << 16)))
        self._outbox = Outbox(chosen, timeout_ms, max_pending_bytes, avoid_slow=send_latency_fault_enable)
        self._compress_above = MAX_BODY_SIZE if compress_above is None else compress_above
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._routes.on_change(self._on_route)
        self._host = socket.gethostname()
        self._connections: dict[str, BrokerGroupConnection] = {}
        # Topics without lanes since a broker group was replaced: their parts in the other broker groups
        self._kept_parts: dict[str, list[TopicInBrokerGroup]] = {}
        self._timer: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._preparing: set[str] = set()  # topics for which early messages wait
        self._closed = False  # closed or closing: accepts no new calls
        self._told = Told(lambda receipt, error: None)  # of the latest `produce`
        self._tracer: Tracer | None = None
        if trace:
            self._tracer = Tracer(
                trace_source("producer", group),
                lambda: Producer(nameservers, cluster=cluster, timeout_ms=TRACE_TIMEOUT_MS),
            )

    @property
    def timeout_ms(self) -> int:
        """Deadline of a message including all retries, ms. A new value applies to later messages."""
        return self._outbox.timeout_ms

    @timeout_ms.setter
    def timeout_ms(self, timeout_ms: int) -> None:
        check_count("timeout_ms", timeout_ms)
        self._outbox.timeout_ms = timeout_ms

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Begin to watch deadlines. The first send connects. Raises: UsageError (another event loop)."""
        self._channels.check_loop()
        if self._timer is None:
            self._outbox.start()
            self._timer = asyncio.create_task(self._watch_deadlines(), name="ledgermq-producer-deadlines")

    async def close(self) -> None:
        """Wait for open messages (up to their deadlines), then disconnect. Refuses new calls at once."""
        if self._outbox.closed:
            return
        self._channels.check_loop()
        self._closed = True
        self._outbox.end_runs(for_good=True)
        while not self._outbox.is_empty:  # calls that waited for room still add messages
            await self.flush()
        self._outbox.closed = True
        if self._tracer is not None:
            await self._tracer.close()
        self.one_way.report(0, last=True)
        for connection in self._connections.values():
            await connection.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._tasks, *([self._timer] if self._timer else [])):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._routes.close()
        await self._channels.close()

    # --- sending --------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str | Message,
        body: bytes | str | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
        selector: MessageSelector | None = None,
        argument: object = None,
    ) -> SendReceipt:
        """Send one message and wait until it is committed. Concurrent sends share a request.

        `selector(queues, message, argument)` chooses the queue of this message. It gets the queues that take
        messages now, sorted by broker group and number, and returns one of them; the message stays there. If
        you need order, prefer `message_group`: it keeps its queue when broker groups come and go.
        Raises: UsageError (nothing was sent), TopicNotFoundError, RefusedError (not stored),
        SendTimeoutError, NameserversDownError.
        """
        plain = keys == () and properties is None and selector is None and argument is None
        if plain and tag == message_group == "" and type(topic) is str:
            joined = self._outbox.join(topic, body)
            if joined is not None:
                return await joined
        self._check_open()
        message = message_of(topic, body, tag, keys, properties, message_group)
        selection, name = selection_of(selector, argument), message.topic
        if type(name) is not str or name not in self._outbox.topics:
            keep(message)  # invalid messages are refused before the route is fetched
        if name not in self._outbox.topics or self._outbox.is_full:  # else no coroutine per message
            await self._ready_for(name)  # last: no await between this and `put`, which takes the room
        return await self._outbox.put(message, selection)

    def send_nowait(
        self,
        topic: str | Message,
        body: bytes | str | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
        selector: MessageSelector | None = None,
        argument: object = None,
    ) -> asyncio.Future[SendReceipt]:
        """Queue one message and return a future of its receipt.

        The first message of a topic waits for the route; call `prepare(topic)` to fetch it ahead.
        Raises: BufferFullError (await `ready()`), UsageError. The future gets the other errors of `send`.
        """
        plain = keys == () and properties is None and selector is None and argument is None
        if plain and tag == message_group == "" and type(topic) is str:
            joined = self._outbox.join(topic, body)
            if joined is not None:
                return joined
        self._check_open()
        message = message_of(topic, body, tag, keys, properties, message_group)
        selection = selection_of(selector, argument)
        try:
            return self._outbox.put(message, selection)
        except TopicNotFoundError:
            return self._put_early(message, selection)

    def produce(
        self,
        on_done: OnDone,
        topic: str | Message,
        body: bytes | str | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
        selector: MessageSelector | None = None,
        argument: object = None,
    ) -> None:
        """Queue one message, and call `on_done(receipt, error)` with its result. One of the two is None.

        No task is woken for it, so this is cheaper than a future. `on_done` must be short. It may queue more
        messages; what it raises is logged. Use the same function for many messages.
        Raises: BufferFullError (await `ready()`), UsageError. `on_done` gets the other errors of `send`.
        """
        told = self._told
        if on_done is not told.on_done:
            a_function("on_done", on_done)
            told = self._told = Told(on_done)
        plain = keys == () and properties is None and selector is None and argument is None
        plain = plain and tag == message_group == "" and type(topic) is str
        if plain and self._outbox.join(cast("str", topic), body, told) is not None:
            return
        self._check_open()
        message = message_of(topic, body, tag, keys, properties, message_group)
        selection = selection_of(selector, argument)
        try:
            self._outbox.put_for(told, message, selection)
        except TopicNotFoundError:
            self._put_early(message, selection).add_done_callback(told.follow)

    def _put_early(self, message: Message, selection: Selection | None) -> asyncio.Future[SendReceipt]:
        future = self._outbox.put_early(message, selection)
        if message.topic not in self._preparing:
            self._preparing.add(message.topic)
            self._in_background(self._prepare_for_waiting(message.topic))
        return future

    async def _prepare_for_waiting(self, topic: str) -> None:
        try:
            await self.prepare(topic)
        except LedgerMQError as error:
            self._outbox.no_route(topic, error)
        except BaseException:
            self._outbox.no_route(topic, ClosedError("producer"))
            raise
        finally:
            self._preparing.discard(topic)

    def send_oneway(
        self,
        topic: str | Message,
        body: bytes | str | None = None,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str = "",
        selector: MessageSelector | None = None,
        argument: object = None,
    ) -> bool:
        """Queue one message without a receipt. Return False if it was dropped because the buffer is full.

        It is sent and retried like any other message. Losses are counted (`statistics`) and logged.
        Raises: UsageError.
        """
        given: dict[str, Any] = {"tag": tag, "keys": keys, "properties": properties}
        given |= {"message_group": message_group, "selector": selector, "argument": argument}
        return self.one_way.send(partial(self.send_nowait, topic, body, **given))

    def statistics(self) -> ProducerStatistics:
        """Return the counters since the start, summed over all broker groups. Local: no network call."""
        one_way, failed = self.one_way, self._failed + self._outbox.failed_early
        return ProducerStatistics(
            self.group, self._stored, failed, one_way.stored, one_way.failed, one_way.dropped
        )

    def group_statistics(self) -> dict[str, BrokerGroupStatistics]:
        """Return the statistics of each broker group that this producer sends to, with its current state."""
        return {name: statistics_of(each, now_ms()) for name, each in sorted(self._connections.items())}

    def _check_open(self) -> None:
        self._channels.check_loop()
        if self._closed:
            raise ClosedError("producer")

    async def send_batch(self, messages: Iterable[Message]) -> Sequence[SendReceipt]:
        """Send many messages and wait for all of them. Receipts are in the order of the messages.

        Messages without labels are the cheapest. A receipt is made when it is looked at; `list()` of the
        result makes all. Raises: the error that `send` would raise for the first failed message. The other
        messages are sent nevertheless; `failed_messages` of the error has the positions of all that failed.
        """
        self._check_open()
        an_iterable("messages", messages)
        messages = list(messages)
        if (other := next((each for each in messages if not isinstance(each, Message)), None)) is not None:
            raise wrong("messages", other, "Message objects; nothing was sent")
        batch = SentBatch()
        await self._put_all(stretches(messages, self._compress_above), batch)
        return await batch.receipts()

    async def produce_many(
        self,
        messages: Iterable[Item] | AsyncIterable[Item],
        *,
        topic: str = "",
        on_stored: OnStored | None = None,
    ) -> int:
        """Send messages from an iterable of any length. Return how many were stored.

        It is read only as fast as messages are stored: a few MiB of them are in memory. Items are messages,
        or bodies for `topic`. It may be asynchronous, or an Arrow Table or RecordBatch with a column body
        and, if wanted, tag, keys (or key) and message_group. An iterable that waits (for a disk, say)
        should be asynchronous: the event loop waits with it.
        `on_stored(first, receipts)` is called for each part, in order; `first` is the position of its first
        message in the iterable. Receipts are those of `send_batch`.
        Raises: the error that `send` would raise for the first failed message. Nothing more is read then,
        and what was read before is decided: the error's `failed_messages` has the positions of those that
        failed. What the iterable raises is raised after what was read before it is stored.
        """
        check_many(topic, on_stored)
        parts = (
            async_parts_of(messages, topic)
            if isinstance(messages, AsyncIterable)
            else _in_turn(parts_of(messages, topic))
        )
        return await self._produce_parts(parts, topic, on_stored)

    async def _produce_parts(
        self, parts: AsyncGenerator[Part, None], topic: str, on_stored: OnStored | None
    ) -> int:
        """Do the same with parts (see `many`), for the synchronous producer."""
        self._check_open()
        waiting: deque[SentBatch] = deque()
        read = stored = 0
        failures: list[LedgerMQError] = []

        async def settle(most: int) -> None:
            """Take the results of the oldest parts, until at most so many are undecided."""
            nonlocal stored
            while waiting and (len(waiting) > most or waiting[0].is_decided):
                batch = waiting.popleft()
                try:
                    receipts = await batch.receipts()
                except LedgerMQError as error:
                    failures.append(error)
                else:
                    stored += len(receipts)
                    if on_stored is not None:
                        on_stored(batch.first, receipts)

        try:
            async with aclosing(parts):
                async for part in parts:
                    waiting.append(SentBatch(read))
                    read += len(part)
                    await self._put_all(_cut_part(part, topic, self._compress_above), waiting[-1])
                    await settle(_MOST_PARTS)
                    if failures:
                        break
        except Exception:  # of the iterable
            await settle(0)
            if not failures:
                raise
        await settle(0)
        if failures:
            first = failures[0]
            first.failed_messages = tuple(each for error in failures for each in error.failed_messages)
            raise first
        return stored

    async def _put_all(self, parts: Iterable[Message | Stretch], batch: SentBatch) -> None:
        """Put the messages of a batch, waiting for room. Errors become results; the others continue."""
        no_route: dict[str, LedgerMQError] = {}  # topics whose route was refused: asked for once only
        for part in parts:
            end = batch.count + (1 if isinstance(part, Message) else len(part.bodies))
            try:
                if part.topic in no_route:
                    raise no_route[part.topic]
                await self._ready_for(part.topic)
                if isinstance(part, Message):
                    await self._put_in_turn(part, batch)
                elif self._outbox.takes_whole(part):
                    await self._outbox.put_stretch(part, batch, partial(self._ready_for, part.topic))
                else:
                    for body in part.bodies:
                        await self._put_in_turn(Message(part.topic, body), batch)
            except LedgerMQError as error:
                if part.topic not in self._outbox.topics:
                    no_route[part.topic] = error
                batch.fail(error, end - batch.count)

    async def _put_in_turn(self, message: Message, batch: SentBatch) -> None:
        """Put one message of a batch once there is room. An error becomes its result; the others continue."""
        await self._ready_for(message.topic)
        try:
            batch.add(self._outbox.put(message))
        except LedgerMQError as error:
            batch.fail(error)

    async def _ready_for(self, topic: str) -> None:
        """Wait for room and for lanes of the topic, which may go away meanwhile. Raises: as `prepare`."""
        while topic not in self._outbox.topics or self._outbox.is_full:
            if topic not in self._outbox.topics:
                await self.prepare(topic)
            else:
                await self._outbox.ready()

    async def prepare(self, topic: str) -> None:
        """Fetch the route of a topic ahead, for example before `send_nowait`.

        Raises: TopicNotFoundError, NameserversDownError, InvalidNameError.
        """
        check_name("topic", topic)
        if self._outbox.closed:
            raise ClosedError("producer")
        await self.start()
        known = self._outbox.topics.get(topic)
        encoder = (
            known.encoder
            if known
            else RecordEncoder(topic, born_host=self._host, compress_above=self._compress_above)
        )
        route = await self._routes.get(topic, create=True)
        if self._outbox.closed:
            raise ClosedError("producer")
        self._use_route(route, encoder)

    async def ready(self) -> None:
        """Wait until there is room (`max_pending_bytes`). Raises: UsageError (another event loop)."""
        self._channels.check_loop()
        await self._outbox.ready()

    async def flush(self) -> None:
        """Wait until every message so far is acknowledged or has failed."""
        self._channels.check_loop()
        await self._outbox.flush()

    # --- routes ---------------------------------------------------------------------------------------------

    def _use_route(self, route: TopicRoute, encoder: RecordEncoder) -> None:
        """Make lanes for a route's writable queues. Full or draining broker groups get no new messages."""
        self._end_replaced(route)
        known = self._outbox.topics.get(route.topic)
        known_parts = known.ordered.parts if known else self._kept_parts.get(route.topic, ())
        known_parts = [part for part in known_parts if not self._is_replaced(part.group)]
        parts = [part for part in route.parts if part.writable and part.queue_count]
        preferred = [part for part in parts if part.group.writable] or parts
        if not preferred:
            raise no_queue_to_write(route)
        near = [part for part in preferred if self._zone and part.group.zone == self._zone]
        if self._zone and not near:
            logger.info("no broker group is led from the zone topic=%s zone=%s", route.topic, self._zone)
        parts = [*near, *(part for part in preferred if part not in near)]
        lanes = self._lanes_of(TopicLanes(encoder, parts, len(near) or None), route.topic)
        every = with_lost_parts(route, known_parts)
        if every != parts:
            lanes.ordered = self._lanes_of(TopicLanes(encoder, every), route.topic)
        self._kept_parts.pop(route.topic, None)
        self._outbox.use(route.topic, lanes)

    def _is_replaced(self, broker_group: BrokerGroup) -> bool:
        connection = self._connections.get(broker_group.name)
        return connection is not None and connection.group.is_another(broker_group)

    def _end_replaced(self, route: TopicRoute) -> None:
        """End connections to broker groups that a route shows as replaced by another of the same name."""
        for part in route.parts:
            connection = self._connections.get(part.group.name)
            if connection is not None and part.group.is_another(connection.group):
                self._replaced(connection)

    def _replaced(self, connection: BrokerGroupConnection) -> None:
        """Fail the messages that wait for a replaced broker group, and drop its lanes.

        The next message of its topics fetches the route again. The parts of these topics in other broker
        groups are kept, so that message groups keep their queues.
        """
        name, group_id = connection.group.name, connection.group.group_id
        text = "broker group was replaced by another one of its name broker_group=%s former_id=%016x"
        logger.warning(text, name, group_id)
        del self._connections[name]
        for topic, lanes in list(self._outbox.topics.items()):
            if connection in lanes.ordered.broker_groups:
                self._kept_parts[topic] = [part for part in lanes.ordered.parts if part.group.name != name]
                self._outbox.forget(topic)
        for failed in connection.end():
            self._fail(failed, connection, partial(message_of_replaced, name, group_id, sent=failed.sent))
        self._in_background(connection.close())

    def _lanes_of(self, lanes: TopicLanes, topic: str) -> TopicLanes:
        """Add the lanes of all parts."""
        for part in lanes.parts:
            connection = self._connection(part.group)
            queues = [MessageQueue(topic, part.group.name, number) for number in range(part.queue_count)]
            lanes.add(connection, [connection.window.lane(queue, part.topic_id) for queue in queues])
        return lanes

    def _connection(self, broker_group: BrokerGroup) -> BrokerGroupConnection:
        connection = self._connections.get(broker_group.name)
        if connection is None:
            window = SendWindow(_new_producer_id)
            calls = CallTimes(self._table) if self._table is not None else None
            connection = BrokerGroupConnection(
                broker_group, self._channels, window, self._on_outcome, self._outbox.on_flush, calls
            )
            self._connections[broker_group.name] = connection
        else:
            connection.update(broker_group)
        connection.window.limit(broker_group.max_request_bytes)
        return connection

    def _on_route(self, route: TopicRoute) -> None:
        if self._outbox.closed:
            return
        known = self._outbox.topics.get(route.topic)
        self._end_replaced(route)
        if known is None:
            if kept := self._kept_parts.get(route.topic):
                self._kept_parts[route.topic] = with_lost_parts(route, kept)
            return
        for part in route.parts:  # also parts that are not writable any more: they may owe answers
            if (connection := self._connections.get(part.group.name)) is not None:
                connection.update(part.group)
        try:
            self._use_route(route, known.encoder)
        except LedgerMQError as error:
            logger.warning("route not usable topic=%s reason=%s", route.topic, error)
        for name in removed(self._connections, map(self._routes.cached, self._outbox.topics)):
            logger.info("broker group was removed broker_group=%s", name)
            self._in_background(self._connections.pop(name).close())
        for connection in self._connections.values():
            connection.wake()

    async def _refresh(self, topic: str, refused_by: BrokerGroupConnection | None = None) -> None:
        """Fetch a route again. `refused_by`: this broker group no longer has the topic, or that queue of it.

        A topic that no longer exists anywhere is created again where brokers do so for a first message.
        Otherwise its messages fail: the topic may never exist again.
        """
        try:
            route = await self._routes.get(topic, refresh=True, create=refused_by is not None)
        except LedgerMQError as error:
            logger.info("route not refreshed topic=%s reason=%s", topic, error)
            if refused_by is not None and isinstance(error, TopicNotFoundError):
                self._forget(topic, error)
            return
        if refused_by is not None and route.part(refused_by.group.name) is None:
            self._move_sections(refused_by, topic)

    def _forget(self, topic: str, error: TopicNotFoundError) -> None:
        """Fail what is certainly not stored. What is in flight will be refused, which leads here again."""
        self._routes.forget(topic)
        self._outbox.forget(topic)
        for connection in self._connections.values():
            for failed in connection.window.give_up(topic):
                self._fail(failed, connection, error.again)

    def _move_sections(self, source: BrokerGroupConnection, topic: str | None = None) -> None:
        """Move what the broker group definitely refused (of one topic or all) to another one, if any."""
        now = now_ms()
        targets = {
            name: lanes.instead_of(source, now)
            for name, lanes in self._outbox.topics.items()
            if topic in (None, name)
        }
        if not any(targets.values()):
            return
        for section in source.window.release(topic):
            choices = targets.get(section.lane.queue.topic)
            lane, target = choices[secrets.randbelow(len(choices))] if choices else (section.lane, source)
            source.counts.moved += section.count * (target is not source)
            target.window.adopt(section, lane)
            target.wake()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- answers --------------------------------------------------------------------------------------------

    def _on_outcome(self, connection: BrokerGroupConnection, outcome: Outcome) -> None:
        for delivered in outcome.delivered:
            self._deliver(delivered, connection)
        for failed in outcome.failed:
            self._fail(failed, connection)
        if outcome.pause_ms or outcome.try_other_broker_group:
            self._outbox.end_runs()
        for topic in outcome.refresh_topics:
            self._in_background(self._refresh(topic, connection))
        if outcome.find_leader and not outcome.leader_hint:
            topics = self._outbox.topics
            its = [topic for topic, lanes in topics.items() if connection in lanes.ordered.broker_groups]
            for topic in [*its, *topics][:1]:  # a drained broker group may have no lanes: take any topic
                self._in_background(self._refresh(topic))
        if outcome.try_other_broker_group:
            self._move_sections(connection)

    def _deliver(self, delivered: Delivered, connection: BrokerGroupConnection) -> None:
        section, offset = delivered.section, delivered.base_offset
        self._stored += section.count
        connection.counts.stored += section.count
        connection.counts.repeated += section.count * delivered.duplicate
        for ticket in section.tickets:
            offset += ticket.deliver(section.lane.queue, offset, delivered.duplicate)
        if self._tracer is not None:
            result = "duplicate" if delivered.duplicate else "stored"
            trace_section(self._tracer, section, result, base_offset=delivered.base_offset)
        self._outbox.release(section)

    def _fail(
        self, failed: Failed, connection: BrokerGroupConnection, known: Callable[[], Exception] | None = None
    ) -> None:
        """Report an error to the callers of a section. `known`: makes a more exact error than the refusal."""
        section = failed.section
        self._failed += section.count
        connection.counts.failed += section.count

        def without_answer() -> Exception:
            if failed.refusal is not None:
                return error_of(failed.refusal)
            reason = section.refused or connection.last_error or "No leader acknowledged it"
            topic = section.lane.queue.topic
            return SendTimeoutError(topic, self.timeout_ms, sent=failed.sent, reason=reason)

        error = known or without_answer
        for ticket in section.tickets:
            ticket.fail(error)
        if self._tracer is not None:
            result = "unknown" if failed.sent else "refused"
            trace_section(self._tracer, section, result, error=str(error()))
        self._outbox.release(section)

    async def _watch_deadlines(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            now = now_ms()
            for connection in self._connections.values():
                for failed in connection.window.expire(now):
                    self._fail(failed, connection)
            self.one_way.report(now)


async def _in_turn(parts: Iterable[Part]) -> AsyncGenerator[Part, None]:
    """Yield parts, and let the event loop run between them."""
    for part in parts:
        yield part
        await asyncio.sleep(0)


def _cut_part(part: Part, topic: str, largest: int) -> Iterator[Message | Stretch]:
    if isinstance(part[0], Message):  # then all are
        return stretches(part, largest)
    return stretches_of(topic, part, largest)


def _new_producer_id() -> int:
    """Return a random id of 63 bits, never 0 (0 disables detection of duplicates by sequence)."""
    return secrets.randbits(63) | 1

"""Synchronous producer and consumers. Each runs its asyncio twin on a loop in a background thread.

    with Producer("127.0.0.1:9876") as producer:
        producer.send("orders", b"hi")

    for message in Consumer("127.0.0.1:9876", group="billing", topic="orders"):
        print(message.body)
        message.ack()

    with PushConsumer("127.0.0.1:9876", group="billing", listener=bill) as consumer:
        consumer.subscribe("orders")
        consumer.run()

Safe to use from several threads; common rules are in loop_thread.py. `SimpleConsumer`, `PullConsumer`,
`Admin` and `BrokerGroupAdmin` are in forwarders.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, Final

from ..admin.admin import Admin as AsyncAdmin
from ..arguments import a_flag, an_iterable, check_count, check_lease, check_name, check_start, check_wait
from ..consume.simple_consumer import INVISIBLE_MS, RECEIVE_BATCH
from ..consume.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from ..errors import ClosedError, ConsumerGroupNotFoundError, LedgerMQError
from ..message import LeasedMessage, Message, SendReceipt
from ..produce.early_message import message_of
from ..produce.many import Item, Part, check_many, parts_of
from ..produce.producer import OnStored
from ..produce.producer import Producer as AsyncProducer
from ..produce.producer_statistics import ProducerStatistics
from ..produce.queue_selection import MessageSelector, selection_of
from .forwarders import Admin, BrokerGroupAdmin, PullConsumer, SimpleConsumer
from .handover import Handover
from .loop_thread import Closing, P, awaited, direct
from .push_consumer import PushConsumer

__all__ = [
    "Admin",
    "BrokerGroupAdmin",
    "Consumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "SimpleConsumer",
]

logger = logging.getLogger(__name__)
_COMES_AGAIN: Final = "an acknowledgement failed, its message comes again: %s"


def counted(method: Callable[Concatenate[Any, P], bool]) -> Callable[Concatenate[Any, P], bool]:
    """Return the method of the synchronous producer for the one-way send of its asyncio twin."""

    @wraps(method)
    def send(producer: Any, /, *arguments: P.args, **named: P.kwargs) -> bool:
        found: bool = producer._producer.one_way.send(partial(producer.send_async, *arguments, **named))
        return found

    return send


class Producer(Closing):
    """Sends messages, and waits for each.

    `send_batch` sends many at once; `send_async` and `send_oneway` do not wait.

    Example:

        with Producer("127.0.0.1:9876") as producer:
            receipt = producer.send("orders", b"hello", tag="new", keys=["4711"])
            print(receipt.message_id, receipt.queue_id, receipt.queue_offset)
    """

    _what = "producer"

    def __init__(self, nameservers: str | Sequence[str] = "127.0.0.1:9876", **options: Any) -> None:
        """`options`: those of the asyncio Producer."""
        super().__init__()
        self._producer = self._build(lambda: AsyncProducer(nameservers, **options))
        self._handover = Handover(self._producer, self._thread.post, self._producer.max_pending_bytes)

    send = awaited(AsyncProducer.send)
    group_statistics = direct(AsyncProducer.group_statistics)

    def send_batch(self, messages: Iterable[Message]) -> Sequence[SendReceipt]:
        """Send many messages and wait for all of them. Raises: the error of the first one that failed.

        The receipts are a sequence in the order of the messages; each is made when it is looked at.
        """
        self._check_open()
        an_iterable("messages", messages)
        return self._thread.call(self._producer.send_batch(list(messages)))

    def produce_many(
        self, messages: Iterable[Item], *, topic: str = "", on_stored: OnStored | None = None
    ) -> int:
        """Send messages from an iterable of any length. Return how many were stored.

        As the asyncio Producer's; the iterable runs in another thread, and `on_stored` in the producer's.
        """
        self._check_open()
        self._thread.check_outside()
        check_many(topic, on_stored)
        parts = parts_of(messages, topic)

        async def taken() -> AsyncGenerator[Part, None]:
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                yield part

        return self._thread.call(self._producer._produce_parts(taken(), topic, on_stored))

    def send_async(
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
    ) -> Future[SendReceipt]:
        """Queue one message and return a future of its receipt; `result()` raises what `send` would.

        Messages of one thread keep their order. A callback (`add_done_callback`) runs in the producer's
        thread: it must be short, and must not wait. Raises: BufferFullError (call `ready()`), UsageError.
        """
        self._check_open()
        message = message_of(topic, body, tag, keys, properties, message_group)
        return self._handover.put(message, selection_of(selector, argument))

    send_oneway = counted(AsyncProducer.send_oneway)

    def ready(self) -> None:
        """Wait until there is room for another `send_async`. Raises: ClosedError (closed meanwhile)."""
        self._check_open()
        self._thread.check_outside()
        self._handover.wait_for_room()

    @property
    def timeout_ms(self) -> int:
        """Deadline of a message including all retries, ms."""
        return self._producer.timeout_ms

    @timeout_ms.setter
    def timeout_ms(self, timeout_ms: int) -> None:
        check_count("timeout_ms", timeout_ms)
        self._producer.timeout_ms = timeout_ms

    def flush(self) -> None:
        """Wait until every message so far is acknowledged or has failed."""
        self._check_open()

        async def flushed() -> None:
            await self._handover.flush()
            await self._producer.flush()

        self._thread.call(flushed())

    def statistics(self) -> ProducerStatistics:
        """Return the counters since the start."""
        return self._producer.statistics()

    def close(self) -> None:
        """Wait for open messages (up to their deadlines), then disconnect. May be called twice."""
        if self._closed:
            return
        self._thread.check_outside()
        try:
            super().close()
        finally:
            self._handover.abandon()

    async def _finish(self) -> None:
        await self._handover.flush()
        await self._producer.close()


class ReceivedMessage:
    """A message of a synchronous Consumer, with the attributes of `ledgermq.client.LeasedMessage`."""

    __slots__ = ("_consumer", "_message")

    def __init__(self, message: LeasedMessage, consumer: Consumer) -> None:
        self._message = message
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def __repr__(self) -> str:
        return repr(self._message)

    @property
    def body(self) -> bytes:
        """The body as the producer gave it. Raises: CorruptMessageError."""
        return self._message.body

    def ack(self) -> None:
        """Acknowledge the message. Sent in the background, together with others.

        If no node accepts it in time because a broker group is down, a warning is logged and the message is
        delivered again, to this or another consumer. Any other failure is raised by a later step of the loop,
        the last one at the latest. close() (or the end of the program) waits for pending acknowledgements and
        logs failures.
        """
        self._consumer._in_background(self._consumer._twin.ack, self._message)

    def nack(self, delay_ms: int = 0) -> None:
        """Return the message: it is delivered again after `delay_ms`. Raises: UsageError."""
        check_lease("delay_ms", delay_ms, least=0)
        self._consumer._in_background(self._consumer._twin.change_invisible, self._message, delay_ms)


class Consumer(Closing):
    """Iterates over the messages of a topic, shared with all other consumers of the consumer group.

    Example:

        with Consumer("127.0.0.1:9876", group="billing", topic="orders", timeout_ms=5_000) as consumer:
            for message in consumer:
                print(message.body)
                message.ack()

    The consumer group is created if it does not exist (it starts at `start`: "earliest", "latest" or ms since
    the epoch, as text).
    """

    _what = "consumer"
    _twin: AsyncSimpleConsumer

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        group: str,
        topic: str,
        expression: str = "*",
        start: str = "earliest",
        invisible_ms: int = INVISIBLE_MS,
        timeout_ms: int | None = None,
        trace: bool = False,
    ) -> None:
        """`timeout_ms`: end the loop after this time without a message, ms; None: never.

        `trace`: see SimpleConsumer.

        Raises: TopicNotFoundError, NameserversDownError, UsageError.
        """
        check_name("group", group)
        check_start(start)
        check_wait(timeout_ms)
        a_flag("trace", trace)
        super().__init__()
        self._nameservers = nameservers
        self._group, self._start = group, start
        self._timeout_ms = timeout_ms
        self._ready: deque[LeasedMessage] = deque()
        self._failure: BaseException | None = None
        self._acks: set[Future[None]] = set()
        self._build(
            lambda: AsyncSimpleConsumer(nameservers, group=group, invisible_ms=invisible_ms, trace=trace)
        )
        try:
            self._thread.call(self._twin.subscribe(topic, expression))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while not self._closed:
            self._raise_failure()
            message = self._next_ready()
            if message is not None:
                yield ReceivedMessage(message, self)
                continue
            try:
                messages = self._thread.call(self._receive(RECEIVE_BATCH, self._timeout_ms))
            except ClosedError:
                return  # closed by another thread
            if not messages:
                concurrent.futures.wait(list(self._acks))
                self._raise_failure()
                return
            self._ready.extend(messages)

    def _next_ready(self) -> LeasedMessage | None:
        """Take the next fetched message that was not handed out. None: there is none (any more)."""
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def receive(
        self, max_messages: int = RECEIVE_BATCH, timeout_ms: int | None = None
    ) -> list[ReceivedMessage]:
        """Return up to `max_messages`; empty if none came within `timeout_ms` (None: wait for ever).

        Messages that a loop over the consumer fetched and left come first. Raises: as SimpleConsumer.receive,
        and the failure of an earlier ack().
        """
        check_count("max_messages", max_messages)
        check_wait(timeout_ms)
        self._check_open()
        self._raise_failure()
        ready: list[ReceivedMessage] = []
        while len(ready) < max_messages and (message := self._next_ready()) is not None:
            ready.append(ReceivedMessage(message, self))
        if ready:
            return ready
        found = self._thread.call(self._receive(max_messages, timeout_ms))
        return [ReceivedMessage(message, self) for message in found]

    async def _receive(self, max_messages: int, timeout_ms: int | None) -> list[LeasedMessage]:
        try:
            return await self._twin.receive(max_messages, timeout_ms=timeout_ms)
        except ConsumerGroupNotFoundError:
            async with AsyncAdmin(self._nameservers) as admin:
                await admin.create_group(self._group, start=self._start, if_not_exists=True)
            return await self._twin.receive(max_messages, timeout_ms=timeout_ms)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _in_background(self, call: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        async def work() -> None:
            try:
                await call(*arguments)
            except Exception as error:  # a defect must reach the caller, too
                if isinstance(error, LedgerMQError) and error.retryable:
                    # The broker group is down now: the loop continues with messages of others
                    logger.warning(_COMES_AGAIN, error)
                    return
                self._failure = error
                raise

        self._check_open()
        future = self._thread.submit(work())
        self._acks.add(future)
        future.add_done_callback(self._acks.discard)

    async def _finish(self) -> None:
        await asyncio.gather(
            *(asyncio.wrap_future(each) for each in list(self._acks)), return_exceptions=True
        )
        for message in self._ready:  # leased, never handed out: return them
            try:
                await self._twin.change_invisible(message, 0)
            except LedgerMQError:
                break  # the lease ends by itself
        self._ready.clear()
        await self._twin.close()
        if self._failure is not None:
            logger.warning(_COMES_AGAIN, self._failure)

"""asyncio simple consumer: receives messages with a lease and acknowledges each of them.

    async with SimpleConsumer("127.0.0.1:9876", group="billing") as consumer:
        await consumer.subscribe("orders")
        for message in await consumer.receive():
            ...
            await consumer.ack(message)

Any number of simple consumers share a consumer group. Owns: which broker group is asked next, natural
batching of acknowledgements (those made while a request is out share the next one).
Speaks `apache.rocketmq.v2.MessagingService`: every node answers, and forwards to its leader. A message that
is not acknowledged within its invisible time is delivered again.
Invariant: every call has one deadline over all nodes that are tried; no call waits for a silent node longer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

from ..arguments import (
    a_consumer_group,
    a_flag,
    a_text,
    check_count,
    check_lease,
    check_name,
    check_tag_filter,
    check_wait,
    checked,
    instance_of,
)
from ..async_client import AsyncClient
from ..cluster.calls import call_broker_group
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..errors import (
    ClosedError,
    ConsumerGroupNotFoundError,
    InvalidHandleError,
    LedgerMQError,
    RefusedError,
    TooManyRequestsError,
    TopicNotFoundError,
    UsageError,
)
from ..message import LeasedMessage
from ..pauses import FIRST_SILENCE_S, GRACE_S, LONGEST_SILENCE_S, POLL_MS, REFUSED_PAUSE_S
from .consume_trace import consume_trace
from .statistics import LeaseStatistics

logger = logging.getLogger(__name__)

INVISIBLE_MS: Final = 30_000
RECEIVE_BATCH: Final = 32
#: Deadline of an acknowledgement including failover, s.
_CALL_TIMEOUT_S: Final = 10.0
_SLICE_MS: Final = 500
_MAX_ACKS: Final = 256
#: Status messages of a receive that are not worth a log line.
_NOTHING_TO_SAY: Final = ("", "OK", "no new message")

_LEASED: Final = instance_of(LeasedMessage, "a LeasedMessage, as receive() returns them")

T = TypeVar("T")
Source = tuple[str, str]  # topic, broker group
Stub = rocketmq_v2_pb2_grpc.MessagingServiceStub


class SilentBrokerGroups:
    """Broker groups not to be asked for a while, because none of their nodes answered. Pure.

    Report `failed` and `answered`; get the sources to ask from `among`. `now` is monotonic seconds.
    """

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}  # broker group → (until, next duration), s

    def failed(self, broker_group: str, now: float) -> None:
        """No node of the broker group answered."""
        _, seconds = self._until.get(broker_group, (0.0, FIRST_SILENCE_S))
        self._until[broker_group] = (now + seconds, min(2 * seconds, LONGEST_SILENCE_S))

    def answered(self, broker_group: str) -> None:
        """A node of the broker group answered."""
        self._until.pop(broker_group, None)

    def among(self, sources: Sequence[Source], now: float) -> Sequence[Source]:
        """Return the sources to ask now; all of them when every broker group is silent."""
        if not self._until:
            return sources
        found = [each for each in sources if self._until.get(each[1], (now, 0.0))[0] <= now]
        return found or sources


class SimpleConsumer(AsyncClient):
    """Receives messages with leases. Use it as an async context manager, or call close().

    Example:

        async with SimpleConsumer("127.0.0.1:9876", group="billing", invisible_ms=30_000) as consumer:
            await consumer.subscribe("orders", "paid || refunded")
            for message in await consumer.receive(32, timeout_ms=5_000):
                print(message.queue_id, message.queue_offset, message.body)
                await consumer.ack(message)

    Any number of consumers of a consumer group share every queue. The consumer group must exist
    (`Admin.create_group`).
    """

    @checked(group=a_consumer_group, cluster=a_text, trace=a_flag)
    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        group: str,
        invisible_ms: int = INVISIBLE_MS,
        cluster: str = "",
        trace: bool = False,
    ) -> None:
        """`invisible_ms`: how long a message is leased, unless a `receive` overrides it.

        `trace`: record the result of each message in the trace topic (`ledgermq message trace`). Raises:
        UsageError.
        """
        check_lease("invisible_ms", invisible_ms)
        self.group = group
        self.invisible_ms = invisible_ms
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._routes.on_change(lambda _: None)  # keeps the watch open: a new leader is asked at once
        self._filters: dict[str, v2.FilterExpression] = {}
        self._turn = 0
        self._empty = 0  # consecutive answers without a message
        self._acks: dict[tuple[str, str], list[tuple[LeasedMessage, asyncio.Future[None]]]] = defaultdict(
            list
        )
        self._ack_tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._client_id = f"{socket.gethostname()}@{secrets.token_hex(8)}"
        self._silent = SilentBrokerGroups()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by broker group
        self._closed = False
        self._trace = consume_trace("simple", group, self._client_id, nameservers, cluster) if trace else None

    async def close(self) -> None:
        """Wait for pending acknowledgements (up to their deadline), then disconnect.

        A waiting `receive` ends with ClosedError.
        """
        self._channels.check_loop()
        self._closed = True
        await asyncio.gather(*self._ack_tasks.values(), return_exceptions=True)
        if self._trace is not None:
            await self._trace.close()
        await self._routes.close()
        await self._channels.close()

    async def subscribe(self, topic: str, expression: str = "*") -> None:
        """Receive from a topic. `expression` selects tags: "*", or "a || b".

        Raises: TopicNotFoundError, NoBrokersError, NameserversDownError, InvalidNameError, UsageError (not a
        tag filter).
        """
        check_name("topic", topic)
        check_tag_filter(expression)
        await self._routes.get(topic)
        self._filters[topic] = v2.FilterExpression(type=v2.TAG, expression=expression)

    # --- receiving ------------------------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int = RECEIVE_BATCH,
        *,
        invisible_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[LeasedMessage]:
        """Return up to `max_messages`; wait up to `timeout_ms` (None: for ever) for the first one.

        Keeps asking while no node of a broker group answers. Raises: UsageError (an argument, no
        subscription, no readable queue), ClosedError (also when it is closed meanwhile),
        ConsumerGroupNotFoundError, TopicNotFoundError, RefusedError.
        """
        check_count("max_messages", max_messages)
        check_wait(timeout_ms)
        if invisible_ms is not None:
            check_lease("invisible_ms", invisible_ms)
        self._channels.check_loop()
        if not self._filters:
            raise UsageError("this consumer has no subscription", "", "Call subscribe() first")
        end = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            if self._closed:
                raise ClosedError("consumer")
            every = await self._sources()
            sources = self._silent.among(every, time.monotonic())
            rest_ms = POLL_MS if end is None else max(int((end - time.monotonic()) * 1000), 0)
            # With several sources a long poll at one of them would delay the others. It is cut into slices,
            # and starts only after each source has answered that it has nothing.
            slice_ms = POLL_MS
            if len(every) > 1:
                slice_ms = _SLICE_MS if self._empty >= len(sources) else 0
            poll_ms = min(rest_ms, slice_ms)
            self._turn += 1
            topic, broker_group = sources[self._turn % len(sources)]
            messages = await self._receive_from(
                topic, broker_group, max_messages, invisible_ms or self.invisible_ms, poll_ms
            )
            if self._trace is not None:
                self._trace.received(messages)
            self._empty = 0 if messages else self._empty + 1
            if messages or (end is not None and time.monotonic() >= end):
                return messages

    async def _sources(self) -> list[tuple[str, str]]:
        """Return the readable (topic, broker group) pairs. Raises: UsageError (there is none)."""
        sources = [
            (topic, part.group.name)
            for topic in self._filters
            for part in (await self._routes.get(topic)).parts
            if part.readable
        ]
        if not sources:
            names = ", ".join(self._filters)
            raise UsageError(
                f"{names} has no queue that can be read",
                "Reading is switched off for it",
                f"See: ledgermq topic describe {next(iter(self._filters))}",
            )
        return sources

    async def _receive_from(
        self, topic: str, broker_group: str, max_messages: int, invisible_ms: int, poll_ms: int
    ) -> list[LeasedMessage]:
        """Ask nodes of a broker group, the leader first, until one answers or the poll's time is over."""
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name=topic), id=-1, broker=v2.Broker(name=broker_group)
            ),
            filter_expression=self._filters[topic],
            batch_size=max_messages,
            auto_renew=False,
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)

        def receive(channel: Any, rest_s: float) -> Awaitable[list[LeasedMessage]]:
            request.long_polling_timeout.FromMilliseconds(max(int((rest_s - GRACE_S) * 1000), 0))
            return self._receive_once(Stub(channel), request, broker_group, rest_s)

        # One deadline for all nodes. The grace is for an answer that is on its way when the long poll ends.
        timeout_s = poll_ms / 1000 + GRACE_S
        try:
            messages = await call_broker_group(
                lambda: self._routes.broker_group(topic, broker_group),
                self._channels,
                receive,
                timeout_s=timeout_s,
                attempt_s=timeout_s,
                port="messaging_address",
                once=True,
            )
        except LedgerMQError as error:
            if not error.retryable:
                raise
            logger.info("receive failed broker_group=%s reason=%s", broker_group, error)
        else:
            self._silent.answered(broker_group)
            return messages
        self._silent.failed(broker_group, time.monotonic())
        await asyncio.sleep(REFUSED_PAUSE_S)
        await self._refresh(topic)
        return []

    async def _receive_once(
        self, stub: Stub, request: v2.ReceiveMessageRequest, broker_group: str, timeout_s: float
    ) -> list[LeasedMessage]:
        """Make one call. If the stream breaks, keep the messages received before: they are leased to us."""
        messages: list[LeasedMessage] = []
        call = stub.ReceiveMessage(request, timeout=timeout_s, metadata=self._metadata())
        try:
            async for frame in call:
                if frame.HasField("message"):
                    # Use the queue's topic, not the record's: acknowledgements go there.
                    frame.message.topic.name = request.message_queue.topic.name
                    messages.append(LeasedMessage(frame.message, broker_group))
                    counts = self._counts[broker_group]
                    counts["received"] += 1
                    counts["redelivered"] += messages[-1].delivery_attempt > 1
                elif frame.HasField("status") and not messages:
                    if frame.status.code != v2.MESSAGE_NOT_FOUND:
                        self._raise(frame.status, request.message_queue.topic.name)
                    if frame.status.message not in _NOTHING_TO_SAY:
                        logger.warning("group=%s: %s", self.group, frame.status.message)
        except grpc.RpcError:
            if not messages:
                raise
        return messages

    async def __aiter__(self) -> AsyncIterator[LeasedMessage]:
        """Yield messages until close()."""
        while not self._closed:
            try:
                messages = await self.receive()
            except ClosedError:
                return
            for message in messages:
                yield message

    def statistics(self) -> dict[str, LeaseStatistics]:
        """Return the counters since the start, by broker group. Local: no network call."""
        waiting: Counter[str] = Counter()
        for (broker_group, _), acks in self._acks.items():
            waiting[broker_group] += len(acks)
        return {
            name: LeaseStatistics(
                each["received"], each["redelivered"], each["acknowledged"], each["refused"], waiting[name]
            )
            for name, each in sorted(self._counts.items())
        }

    # --- acknowledging --------------------------------------------------------------------------------------

    @checked(message=_LEASED)
    async def ack(self, message: LeasedMessage) -> None:
        """Acknowledge a message: it is not delivered again. Returns when a majority of the nodes knows.

        Raises: InvalidHandleError (the lease was over: the message is or was delivered again), RefusedError,
        BrokerUnreachableError (no node answered in time), ClosedError.
        """
        self._channels.check_loop()
        if self._closed:
            raise ClosedError("consumer")
        key = (message.queue.broker_group, message.topic)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks[key].append((message, future))
        if key not in self._ack_tasks:
            self._ack_tasks[key] = asyncio.create_task(self._send_acks(key))
        await future

    async def _send_acks(self, key: tuple[str, str]) -> None:
        """Send the collected acknowledgements, until none is left.

        The task leaves `_ack_tasks` in the same step in which it finds none left. A later acknowledgement,
        even before the loop has reported the end of this task, starts the next task.
        """
        waiting: list[tuple[LeasedMessage, asyncio.Future[None]]] = []
        try:
            while waiting := self._acks[key][:_MAX_ACKS]:
                del self._acks[key][: len(waiting)]
                outcomes = await self._outcomes(key, waiting)
                if self._trace is not None:
                    for (message, _), error in zip(waiting, outcomes, strict=True):
                        self._trace.ended(message, "consumed", error)
                refused = sum(each is not None for each in outcomes)
                self._counts[key[0]].update(refused=refused, acknowledged=len(outcomes) - refused)
                _end(waiting, outcomes)
        finally:
            del self._ack_tasks[key]
            for _, future in (*waiting, *self._acks.pop(key, ())):
                future.cancel()  # only after a defect or cancellation: no caller may wait for ever

    async def _outcomes(
        self, key: tuple[str, str], waiting: list[tuple[LeasedMessage, asyncio.Future[None]]]
    ) -> list[LedgerMQError | None]:
        """Send one request; return the result of each acknowledgement (None: success)."""
        broker_group, topic = key
        request = v2.AckMessageRequest(group=v2.Resource(name=self.group), topic=v2.Resource(name=topic))
        for message, _ in waiting:
            request.entries.add(message_id=message.message_id, receipt_handle=message.receipt_handle)
        try:
            answer = await self._ack_once(request, topic, broker_group)
        except LedgerMQError as error:
            return [error] * len(waiting)
        statuses = [entry.status for entry in answer.entries]
        # If the request was refused as a whole, there are no entries.
        statuses += [answer.status] * (len(waiting) - len(statuses))
        return [self._error(status, topic) for status in statuses[: len(waiting)]]

    async def _ack_once(
        self, request: v2.AckMessageRequest, topic: str, broker_group: str
    ) -> v2.AckMessageResponse:
        answer: v2.AckMessageResponse = await self._call(
            topic, broker_group, lambda stub, timeout_s: self._unary(stub.AckMessage, request, timeout_s)
        )
        return answer

    @checked(message=_LEASED)
    async def change_invisible(self, message: LeasedMessage, invisible_ms: int) -> None:
        """Set the end of the lease to `invisible_ms` from now; 0 returns the message at once.

        Raises: UsageError, InvalidHandleError, RefusedError, BrokerUnreachableError, ClosedError.
        """
        check_lease("invisible_ms", invisible_ms, least=0)
        if self._closed:
            raise ClosedError("consumer")
        request = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=self.group),
            topic=v2.Resource(name=message.topic),
            receipt_handle=message.receipt_handle,
            message_id=message.message_id,
        )
        request.invisible_duration.FromMilliseconds(invisible_ms)
        answer: v2.ChangeInvisibleDurationResponse = await self._call(
            message.topic,
            message.queue.broker_group,
            lambda stub, timeout_s: self._unary(stub.ChangeInvisibleDuration, request, timeout_s),
        )
        error = self._error(answer.status, message.topic)
        if self._trace is not None:
            self._trace.ended(message, "lease moved" if invisible_ms else "given back", error)
        if error is not None:
            raise error
        message.receipt_handle = answer.receipt_handle or message.receipt_handle

    # --- calls ----------------------------------------------------------------------------------------------

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            ("x-mq-client-id", self._client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "ledgermq"),
            ("x-mq-protocol", "v2"),
        )

    def _unary(self, method: Any, request: Any, timeout_s: float) -> Any:
        return method(request, timeout=timeout_s, metadata=self._metadata())

    async def _call(self, topic: str, broker_group: str, call: Callable[[Stub, float], Awaitable[T]]) -> T:
        """Make a call that is safe to repeat. Raises: as call_broker_group."""
        return await call_broker_group(
            lambda: self._routes.broker_group(topic, broker_group),
            self._channels,
            lambda channel, timeout_s: call(Stub(channel), timeout_s),
            timeout_s=_CALL_TIMEOUT_S,
            port="messaging_address",
            after_round=lambda: self._refresh(topic),
        )

    async def _refresh(self, topic: str) -> None:
        try:
            await self._routes.get(topic, refresh=True)
        except LedgerMQError as error:
            logger.info("route not refreshed topic=%s reason=%s", topic, error)

    def _raise(self, status: v2.Status, topic: str) -> None:
        error = self._error(status, topic)
        if error is not None:
            raise error

    def _error(self, status: v2.Status, topic: str) -> LedgerMQError | None:
        """Translate a status of the official protocol; None for OK."""
        code = status.code
        if code in (v2.OK, v2.MULTIPLE_RESULTS):
            return None
        name = v2.Code.Name(code)
        if code == v2.TOPIC_NOT_FOUND:
            return TopicNotFoundError(topic)
        if code == v2.CONSUMER_GROUP_NOT_FOUND:
            return ConsumerGroupNotFoundError(
                name,
                f'consumer group "{self.group}" does not exist. '
                f"Create it: ledgermq group create {self.group}",
            )
        if code == v2.INVALID_RECEIPT_HANDLE:
            return InvalidHandleError(
                name,
                f"the lease of a message is over after {self.invisible_ms} ms ({status.message}); "
                "it is delivered again. "
                "Acknowledge sooner, or receive with a longer invisible_ms",
            )
        if code == v2.TOO_MANY_REQUESTS:
            return TooManyRequestsError(name, status.message)
        return RefusedError(name, status.message or name)


def _end(
    waiting: list[tuple[LeasedMessage, asyncio.Future[None]]], errors: Sequence[LedgerMQError | None]
) -> None:
    """Resolve the futures of acknowledgements."""
    for (_, future), error in zip(waiting, errors, strict=True):
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

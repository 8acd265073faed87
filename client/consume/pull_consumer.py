"""asyncio pull consumer: reads queues in order from the committed offsets, and commits on request.

    async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            ...
            await consumer.commit()

Owns: the public interface. The parts do the work: WantedQueues (which queues), QueueFetcher (their messages),
ConsumerGroupOffsets (offsets at the brokers). `subscribe` reads *all* queues of the topic. To share a topic,
the consumers of one consumer group `assign` disjoint queues, or use SimpleConsumer, which shares by leases.
Delivery is at least once: what was handed out and not committed is delivered again after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Final

from ledgermq.proto import log_pb2 as pb

from ..arguments import (
    a_consumer_group,
    a_flag,
    a_queue,
    a_text,
    a_time,
    a_topic,
    an_iterable,
    check_count,
    check_name,
    check_offset,
    check_queue,
    check_timeout,
    checked,
    empty_or,
    instance_of,
    none_or,
    one_of,
    whole,
)
from ..async_client import AsyncClient
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..errors import ClosedError, LedgerMQError, RefusedError, RouteError, UsageError
from ..message import MessageQueue, MessageView
from .consume_trace import consume_trace
from .fetch_buffer import MAX_BUFFER_BYTES
from .offsets import ConsumerGroupOffsets
from .queue_fetcher import QueueFetcher
from .read_source import FetchSource
from .statistics import PullStatistics
from .wanted_queues import WantedQueues

#: Default maximum of messages per poll.
POLL_BATCH: Final = 512
#: Default time that a commit waits for a broker group without a leader, ms.
COMMIT_TIMEOUT_MS: Final = 5_000


class PullConsumer(AsyncClient):
    """Reads topics queue by queue. Use it as an async context manager, or call close().

    Example:

        async with PullConsumer("127.0.0.1:9876", group="billing", start="earliest") as consumer:
            await consumer.subscribe("orders")
            while messages := await consumer.poll(256, timeout_ms=1_000):
                for message in messages:
                    print(message.queue, message.queue_offset, message.body)
                await consumer.commit()

    Offsets count the messages of a queue from 0. Without a consumer group no offsets are read or committed.
    """

    @checked(
        group=empty_or(a_consumer_group),
        start=one_of("earliest", "latest"),
        cluster=a_text,
        max_buffer_bytes=check_count,
        when_deleted=one_of("earliest", "latest", "raise"),
        trace=a_flag,
    )
    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        group: str = "",
        start: str = "earliest",
        cluster: str = "",
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        when_deleted: str = "earliest",
        trace: bool = False,
    ) -> None:
        """`group` "" commits nothing. `start`: "earliest" or "latest", for queues without a committed offset.

        `when_deleted`: what to do when retention deleted messages before they were read. "earliest" and
        "latest" continue at that end of the queue, and log a warning. With "raise" the next poll raises
        MessagesDeletedError, and the one after it continues at the earliest message. In each case
        `deleted_count` counts them.
        `max_buffer_bytes`: bytes of fetched messages to buffer, per broker group.
        `trace`: record in the trace topic which messages were handed out (`ledgermq message trace`).
        Raises: InvalidNameError, UsageError.
        """
        self.group = group
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._reader = QueueFetcher(
            self._routes,
            self._channels,
            max_buffer_bytes=max_buffer_bytes,
            when_deleted=when_deleted,
            consumer_group=group,
        )
        self._offsets = ConsumerGroupOffsets(group, self._channels, self._routes.broker_group)
        self._wanted = WantedQueues(self._routes, self._reader, self._offsets, start)
        self._closed = False
        self._trace = consume_trace("pull", group, "", nameservers, cluster) if trace else None

    async def close(self) -> None:
        """Close every stream. This commits nothing."""
        self._channels.check_loop()
        self._closed = True
        await self._wanted.close()
        await self._reader.close()
        if self._trace is not None:
            await self._trace.close()
        await self._routes.close()
        await self._channels.close()

    @property
    def deleted_count(self) -> int:
        """Number of messages that retention deleted before they were read."""
        return self._reader.deleted_count

    def statistics(self) -> PullStatistics:
        """Return current statistics without a call. Ends and lag are as of the last answers; see `lag`."""
        reader = self._reader
        return PullStatistics(
            reader.delivered_count,
            reader.deleted_count,
            reader.statistics,
            self._wanted.missing,
            reader.sources,
        )

    # --- queues ---------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str) -> None:
        """Read all queues of the topic from the committed offsets, including those of later broker groups.

        Returns as soon as the live broker groups have answered. One that is down joins when it is back
        (`missing`).
        Raises: TopicNotFoundError, NameserversDownError; when no broker group answers, RefusedError or
        BrokerUnreachableError.
        """
        self._check_open()
        check_name("topic", topic)
        await self._wanted.subscribe(topic)

    @checked(topic=a_topic)
    def unsubscribe(self, topic: str) -> None:
        """Stop reading all queues of the topic."""
        self._wanted.unsubscribe(topic)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic."""
        check_name("topic", topic)
        return (await self._routes.get(topic)).queues

    @checked(queues=an_iterable)
    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Also read these queues, from their committed offsets.

        Raises: as `subscribe`; UsageError (no such queue).
        """
        self._check_open()
        await self._wanted.assign([check_queue(queue) for queue in queues])

    @checked(queues=an_iterable)
    def unassign(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading these queues."""
        self._wanted.unassign([check_queue(queue) for queue in queues])

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read."""
        return self._reader.queues

    @property
    def missing(self) -> tuple[MessageQueue, ...]:
        """Wanted queues whose broker groups have not answered yet. They join by themselves."""
        return self._wanted.missing

    @checked(queues=an_iterable)
    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop handing out messages of these queues; positions stay. Raises: UsageError (not assigned)."""
        self._reader.pause(queues)

    @checked(queues=an_iterable)
    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue paused queues at their positions. Raises: UsageError (not assigned)."""
        self._reader.resume(queues)

    @property
    def paused(self) -> tuple[MessageQueue, ...]:
        """The assigned queues that are paused."""
        return self._reader.paused

    @property
    def sources(self) -> dict[str, FetchSource]:
        """Node that answered last, by broker group: the leader, or a follower while a backlog is read."""
        return self._reader.sources

    def _check_open(self) -> None:
        self._channels.check_loop()
        if self._closed:
            raise ClosedError("consumer")

    # --- positions ------------------------------------------------------------------------------------------

    @checked(queue=a_queue)
    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to hand out. Raises: UsageError."""
        return self._reader.position(queue)

    @checked(queue=a_queue)
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at `offset`. Raises: UsageError (not assigned, or not an offset).

        A queue of a broker group that was replaced continues in the new one.
        Raises: TopicNotFoundError (the new one does not have it).
        Makes no call. Beyond the end, no message arrives until the queue has grown that far. The log says so
        once, as soon as the broker has.
        """
        self._reader.seek(queue, offset)

    @checked(topic=a_topic)
    async def seek_to_beginning(self, topic: str) -> None:
        """Continue all assigned queues of the topic at their first stored message. Raises: as `offsets`."""
        for queue, found in (await self._query(topic, read=True)).items():
            self._reader.seek(queue, found.begin_offset)

    @checked(topic=a_topic)
    async def seek_to_end(self, topic: str) -> None:
        """Continue all assigned queues of the topic after their last message. Raises: as `offsets`."""
        for queue, found in (await self._query(topic, read=True)).items():
            self._reader.seek(queue, found.end_offset)

    @checked(topic=a_topic, timestamp_ms=a_time)
    async def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """Continue all assigned queues of the topic at a time: at the first message stored then or later.

        A queue without such a message continues at its end.
        `timestamp_ms`: ms since the epoch, by the brokers' clock. Raises: as `offsets`; UsageError (not a
        time).
        """
        for queue, found in (await self._query(topic, read=True, timestamp=timestamp_ms)).items():
            if not found.HasField("time_offset"):
                raise RefusedError(
                    "UNSUPPORTED",
                    f'broker group "{queue.broker_group}" is of a version that finds no offset by time',
                )
            self._reader.seek(queue, found.time_offset)

    # --- offsets --------------------------------------------------------------------------------------------

    @checked(topic=a_topic)
    async def offsets(self, topic: str) -> list[tuple[MessageQueue, int, int, int]]:
        """Return (queue, committed or -1, begin, end) of every queue of a topic.

        Raises: TopicNotFoundError, NameserversDownError; RefusedError or BrokerUnreachableError when a broker
        consumer group has not answered within 5 s.
        """
        found = await self._query(topic)
        return [(queue, each.offset, each.begin_offset, each.end_offset) for queue, each in found.items()]

    @checked(topic=a_topic, timestamp_ms=whole(0))
    async def stretches(
        self, topic: str, timestamp_ms: int
    ) -> tuple[dict[MessageQueue, tuple[int, int]], dict[str, LedgerMQError]]:
        """Return (first offset at or after a time, end) of each assigned queue, and the silent broker groups.

        Raises: RefusedError, when a retry would not help.
        """
        self._check_open()
        names = sorted({queue.broker_group for queue in self._reader.queues if queue.topic == topic})
        asked = [self._offsets.query(topic, name, timestamp=timestamp_ms) for name in names]
        found: dict[MessageQueue, tuple[int, int]] = {}
        silent: dict[str, LedgerMQError] = {}
        for name, answer in zip(names, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, LedgerMQError) and (answer.retryable or isinstance(answer, RouteError)):
                silent[name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for queue, each in answer.items():
                    if queue in self._reader:
                        begin = each.time_offset if each.HasField("time_offset") else each.begin_offset
                        found[queue] = begin, each.end_offset
        return found, silent

    @checked(topic=a_topic)
    async def committed(self, topic: str) -> dict[MessageQueue, int]:
        """Return the committed offset of each queue; -1: none. Raises: as `offsets`."""
        return {queue: found.offset for queue, found in (await self._query(topic)).items()}

    @checked(topic=a_topic)
    async def lag(self, topic: str) -> dict[MessageQueue, int]:
        """Return how many messages follow the position of each assigned queue. Raises: as `offsets`."""
        ends = await self._query(topic, read=True)
        return {
            queue: max(found.end_offset - self._reader.position(queue), 0) for queue, found in ends.items()
        }

    async def _query(
        self, topic: str, *, read: bool = False, timestamp: int = 0
    ) -> dict[MessageQueue, pb.QueueOffset]:
        """Ask all broker groups of a topic at once. `read`: only about the queues that are read.

        Asks again when a broker group was replaced meanwhile: its offsets are none of the new one's.
        """
        route = await self._routes.get(topic)
        while True:
            names = {queue.broker_group for queue in self._reader.queues if queue.topic == topic}
            if not read:
                names = {part.group.name for part in route.parts}
            answers = await asyncio.gather(
                *(self._offsets.query(topic, name, timestamp=timestamp) for name in sorted(names))
            )
            asked, route = route, await self._routes.get(topic)
            if not route.replaces(asked):
                break
        return {
            queue: found
            for answer in answers
            for queue, found in answer.items()
            if not read or queue in self._reader
        }

    @checked(offsets=none_or(instance_of(Mapping, "a dict of offsets by queue")), reset=a_flag)
    async def commit(
        self,
        offsets: Mapping[MessageQueue, int] | None = None,
        *,
        reset: bool = False,
        timeout_ms: int = COMMIT_TIMEOUT_MS,
    ) -> None:
        """Commit offsets for the consumer group; default: everything that was handed out.

        `reset` allows going back. While a broker group has no leader, this waits for the next one, at most
        `timeout_ms`; offsets in the other broker groups are committed meanwhile. A failed commit may be
        repeated: that never moves an offset back.
        The default leaves out a queue that stands beyond its end, and raises after the others are committed.
        The same holds for a queue of a broker group that was replaced.
        Raises: UsageError (no consumer group; impossible queue, offset or timeout), TopicNotFoundError,
        RefusedError (NoQuorumError: no leader in time), BrokerUnreachableError.
        """
        self._check_open()
        if not self.group:
            raise UsageError(
                "this consumer has no consumer group", "Offsets are stored for each one", "Give group=NAME"
            )
        check_timeout(timeout_ms, least=1)
        beyond = self._reader.beyond if offsets is None else {}
        wanted = self._reader.positions if offsets is None else offsets
        checked: dict[MessageQueue, int] = {}
        for each, offset in wanted.items():
            queue = check_queue(each)
            check_offset(offset)
            if queue in beyond:
                continue
            if queue not in self._reader and queue not in await self.queues(queue.topic):
                raise UsageError(f"{queue} does not exist", "", f"See: ledgermq topic describe {queue.topic}")
            checked[queue] = offset
        self._reader.check_replaced(checked)  # routes may have changed above
        await self._offsets.commit(checked, reset=reset, timeout_s=timeout_ms / 1000)
        if offsets is None:
            self._reader.check_replaced()
        for queue, end in beyond.items():
            raise UsageError(
                f"{queue} stands at {wanted[queue]}, beyond its end, which is {end}",
                "The offsets of the other queues are stored",
                "Move it back: seek()",
            )

    # --- reading --------------------------------------------------------------------------------------------

    async def poll(self, max_messages: int = POLL_BATCH, timeout_ms: int | None = None) -> list[MessageView]:
        """Return up to `max_messages`; wait up to `timeout_ms` (None: for ever) for the first one.

        Raises: RefusedError and other errors that a retry cannot heal; UsageError (nothing assigned, not a
        number of messages), ClosedError.
        """
        check_count("max_messages", max_messages)
        if timeout_ms is not None:
            check_timeout(timeout_ms)
        self._check_open()
        if self._wanted.is_empty:
            raise UsageError("this consumer reads no queue", "", "Call subscribe() or assign() first")
        messages = self._reader.take(max_messages) or await self._reader.wait(max_messages, timeout_ms)
        if self._trace is not None:
            self._trace.received(messages)
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        self._channels.check_loop()
        handed_out = 0
        while not self._closed:
            ready = None if self._trace is not None else self._reader.take(1)
            for message in ready or await self.poll(1):
                yield message
            handed_out += 1
            if handed_out % POLL_BATCH == 0:
                await asyncio.sleep(0)  # a loop body that never awaits would starve all other tasks

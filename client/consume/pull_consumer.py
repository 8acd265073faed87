"""The asyncio pull consumer: reads queues in order, from where the consumer group stands, and commits when told to.

    async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            ...
            await consumer.commit()

Owns: what users call; the parts do the work (WantedQueues: which queues, QueueFetcher: their messages, GroupOffsets: the
brokers' view). `subscribe` reads *all* queues of the topic: consumers of one group that shall share a topic's queues use
`assign` with queues of their own, or SimpleConsumer, which shares by leases.
Messages come at least once: what was handed out and not committed comes again after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

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
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..cluster.topic_route import BrokerGroup, TopicRoute
from ..errors import ClosedError, LedgerMQError, RefusedError, RouteError, UsageError
from ..message import MessageQueue, MessageView
from .consume_trace import consume_trace
from .fetch_buffer import MAX_BUFFER_BYTES
from .offsets import GroupOffsets
from .queue_fetcher import QueueFetcher
from .read_source import FetchSource
from .statistics import PullStatistics
from .wanted_queues import WantedQueues

#: Messages that one poll returns at most, unless told otherwise.
POLL_BATCH: Final = 512
#: How long a commit waits for a broker group without a leader, unless told otherwise.
COMMIT_TIMEOUT_MS: Final = 5_000


class PullConsumer:
    """Reads topics queue by queue. Use it as an async context manager, or call close().

    Example:

        async with PullConsumer("127.0.0.1:9876", group="billing", start="earliest") as consumer:
            await consumer.subscribe("orders")
            while messages := await consumer.poll(256, timeout_ms=1_000):
                for message in messages:
                    print(message.queue, message.queue_offset, message.body)
                await consumer.commit()

    Offsets count the messages of a queue from 0. Without a consumer group it reads and stores nothing.
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

        `when_deleted`: what happens when retention deleted messages before they were read. "earliest" and "latest" go on
        at that end of the queue, with a warning in the log; with "raise" the next poll raises MessagesDeletedError, and the
        one after it goes on at the earliest message. `deleted_count` counts them in each case.
        `trace`: tell the trace topic which messages were handed out (`ledgermq message trace`).
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
        self._offsets = GroupOffsets(group, self._channels, self._find)
        self._wanted = WantedQueues(self._routes, self._reader, self._offsets, start)
        # As they were known last, also when no route names them any more
        self._groups: dict[str, BrokerGroup] = {}
        self._routes.on_change(self._remember)
        self._closed = False
        self._trace = consume_trace("pull", group, "", nameservers, cluster) if trace else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every stream. Nothing is committed by this."""
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
        """Messages that retention deleted before they were read."""
        return self._reader.deleted_count

    def statistics(self) -> PullStatistics:
        """Return figures of this moment. Asks nobody: ends and lag are those of the last answers, see `lag`."""
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
        """Read all queues of the topic from the committed offsets, and those of broker groups that come later.

        Returns as soon as the living broker groups have answered; one that is down joins when it is back (`missing`).
        Raises: TopicNotFoundError, NameserversDownError; when no group answers, RefusedError or BrokerUnreachableError.
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
        """Read these queues too, each from its committed offset. Raises: as `subscribe`; UsageError (no such queue)."""
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
        """Queues to be read whose broker groups have not answered yet: they join by themselves."""
        return self._wanted.missing

    @checked(queues=an_iterable)
    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no message of these queues until `resume`; they keep their positions. Raises: UsageError (not assigned)."""
        self._reader.pause(queues)

    @checked(queues=an_iterable)
    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues, where each stands. Raises: UsageError (not assigned)."""
        self._reader.resume(queues)

    @property
    def paused(self) -> tuple[MessageQueue, ...]:
        """The assigned queues of which nothing is handed out until `resume`."""
        return self._reader.paused

    @property
    def sources(self) -> dict[str, FetchSource]:
        """Of each broker group that is read, the node that answered last: its leader, or a follower while a backlog is read."""
        return self._reader.sources

    def _check_open(self) -> None:
        self._channels.check_loop()
        if self._closed:
            raise ClosedError("consumer")

    # --- positions ------------------------------------------------------------------------------------------

    @checked(queue=a_queue)
    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out. Raises: UsageError."""
        return self._reader.position(queue)

    @checked(queue=a_queue)
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at `offset`. Raises: UsageError (not assigned, or no offset).

        One of a broker group that was replaced goes on in the new one.
        Raises: TopicNotFoundError (the new one does not have it).
        Asks nobody. Beyond the end nothing comes until the queue has grown so far; the log says so, once, when the broker has.
        """
        self._reader.seek(queue, offset)

    @checked(topic=a_topic)
    async def seek_to_beginning(self, topic: str) -> None:
        """Continue all assigned queues of the topic at their first stored message. Raises: as `offsets`."""
        for queue, found in (await self._query(topic, read=True)).items():
            self._reader.seek(queue, found.begin_offset)

    @checked(topic=a_topic)
    async def seek_to_end(self, topic: str) -> None:
        """Continue all assigned queues of the topic behind their last message. Raises: as `offsets`."""
        for queue, found in (await self._query(topic, read=True)).items():
            self._reader.seek(queue, found.end_offset)

    @checked(topic=a_topic, timestamp_ms=a_time)
    async def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """Continue all assigned queues of the topic at the first message stored at or after that time, else at their end.

        `timestamp_ms`: ms since the epoch, by the brokers' clock. Raises: as `offsets`; UsageError (no time).
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

        Raises: TopicNotFoundError, NameserversDownError; RefusedError or BrokerUnreachableError when a broker group has not
        answered within 5 s.
        """
        found = await self._query(topic)
        return [(queue, each.offset, each.begin_offset, each.end_offset) for queue, each in found.items()]

    @checked(topic=a_topic, timestamp_ms=whole(0))
    async def stretches(
        self, topic: str, timestamp_ms: int
    ) -> tuple[dict[MessageQueue, tuple[int, int]], dict[str, LedgerMQError]]:
        """Return, of the assigned queues, the first offset at or after a time and the end; and which broker groups are silent.

        Raises: RefusedError, when asking again would not help.
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
        """Return the committed offset of each queue, -1 where nothing was committed. Raises: as `offsets`."""
        return {queue: found.offset for queue, found in (await self._query(topic)).items()}

    @checked(topic=a_topic)
    async def lag(self, topic: str) -> dict[MessageQueue, int]:
        """Return how many messages lie between the position of each assigned queue and its end. Raises: as `offsets`."""
        ends = await self._query(topic, read=True)
        return {
            queue: max(found.end_offset - self._reader.position(queue), 0) for queue, found in ends.items()
        }

    async def _query(
        self, topic: str, *, read: bool = False, timestamp: int = 0
    ) -> dict[MessageQueue, pb.QueueOffset]:
        """Ask all broker groups of a topic, at once. `read`: only for the queues that are read."""
        route = await self._routes.get(topic)
        names = {queue.broker_group for queue in self._reader.queues if queue.topic == topic}
        if not read:
            names = {part.group.name for part in route.parts}
        answers = await asyncio.gather(
            *(self._offsets.query(topic, name, timestamp=timestamp) for name in sorted(names))
        )
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
        """Store how far the group has consumed; default: everything that was handed out.

        `reset` allows going back. While a broker group has no leader it waits for the next one, at most `timeout_ms`; the
        other groups have stored theirs by then. What failed may be committed again: nothing goes back by that.
        A queue that stands beyond its end is left out by the default, and an error after the others are
        stored; so is one of a broker group that was replaced.
        Raises: UsageError (no group, impossible queue, offset or timeout), TopicNotFoundError, RefusedError (NoQuorumError: no leader
        in time), BrokerUnreachableError.
        """
        self._check_open()
        if not self.group:
            raise UsageError("this consumer has no group", "Offsets are stored per group", "Give group=")
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
        self._reader.check_replaced(checked)  # while the routes were asked
        await self._offsets.commit(checked, reset=reset, timeout_s=timeout_ms / 1000)
        if offsets is None:
            self._reader.check_replaced()
        for queue, end in beyond.items():
            raise UsageError(
                f"{queue} stands at {wanted[queue]}, beyond its end, which is {end}",
                "The offsets of the other queues are stored",
                "Move it back: seek()",
            )

    def _find(self, topic: str, name: str) -> BrokerGroup:
        route = self._routes.cached(topic)
        part = route.part(name) if route else None
        return part.group if part is not None else self._groups[name]

    def _remember(self, route: TopicRoute) -> None:
        for part in route.parts:
            self._groups[part.group.name] = part.group

    # --- reading --------------------------------------------------------------------------------------------

    async def poll(self, max_messages: int = POLL_BATCH, timeout_ms: int | None = None) -> list[MessageView]:
        """Return up to `max_messages`, waiting up to `timeout_ms` (None: without end) for the first one.

        Raises: RefusedError and other errors that repeating cannot heal; UsageError (nothing assigned, no number of messages),
        ClosedError.
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
                await asyncio.sleep(0)  # a loop body that never waits would keep everything else from running

"""The asyncio pull consumer: reads queues in order, from where the consumer group stands, and commits when told to.

    async with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            ...
            await consumer.commit()

Owns: one fetch stream per broker group, the assignment, positions. `subscribe` reads *all* queues of the topic: one
consumer per group and topic for now, sharing a topic's queues among consumers is not built yet (`assign` lets you
share them by hand; SimpleConsumer shares by leases).
Messages come at least once: what was handed out and not committed comes again after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from ledgermq.proto import log_pb2 as pb

from .channels import Channels
from .encoding import check_name
from .errors import ClosedError, UsageError
from .fetch_buffer import MAX_BUFFER_BYTES, check_offset
from .group_offsets import GroupOffsets
from .message import MessageQueue, MessageView
from .queue_reader import QueueReader
from .routes import Routes
from .topic_route import BrokerGroup, TopicRoute

_TAKE: Final = 512


class PullConsumer:
    """Reads topics queue by queue. Use it as an async context manager, or call close()."""

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        group: str = "",
        start: str = "earliest",
        cluster: str = "",
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        when_deleted: str = "earliest",
    ) -> None:
        """`group` "" commits nothing. `start`: "earliest" or "latest", for queues without a committed offset.

        `when_deleted`: what happens when retention deleted messages before they were read. "earliest" and "latest" go on
        at that end of the queue, with a warning in the log; with "raise" the next poll raises MessagesDeletedError, and the
        one after it goes on at the earliest message. `deleted_count` counts them in each case.
        Raises: InvalidNameError, UsageError.
        """
        if group:
            check_name("group", group)
        if start not in ("earliest", "latest"):
            raise UsageError(f"start is {start!r}", "", 'It must be "earliest" or "latest"')
        self.group = group
        self._channels = Channels()
        self._start = start
        self._routes = Routes(nameservers, self._channels, cluster)
        self._reader = QueueReader(
            self._routes, self._channels, max_buffer_bytes=max_buffer_bytes, when_deleted=when_deleted
        )
        self._offsets = GroupOffsets(group, self._channels, self._find)
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every stream. Nothing is committed by this."""
        self._closed = True
        await self._reader.close()
        await self._routes.close()
        await self._channels.close()

    @property
    def deleted_count(self) -> int:
        """Messages that retention deleted before they were read."""
        return self._reader.deleted_count

    # --- assignment -------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str) -> None:
        """Read all queues of the topic, from the committed offsets.

        Raises: TopicNotFoundError, NameserversDownError, BrokerUnreachableError.
        """
        await self.assign(await self.queues(topic))

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic."""
        check_name("topic", topic)
        return (await self._routes.get(topic)).queues

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues too, each from its committed offset."""
        if self._closed:
            raise ClosedError("consumer")
        new = [MessageQueue(*queue) for queue in queues if MessageQueue(*queue) not in self._reader]
        for topic in {queue.topic for queue in new}:
            route = await self._routes.get(topic)
            starts = await self._start_offsets(route)
            for queue in new:
                if queue.topic == topic:
                    if queue not in starts:
                        raise UsageError(
                            f"{queue} does not exist", "", f"See: ledgermq topic describe {topic}"
                        )
                    self._reader.read(route, queue, starts[queue])

    def unassign(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading these queues."""
        self._reader.give_up(queues)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        return self._reader.queues

    async def _start_offsets(self, route: TopicRoute) -> dict[MessageQueue, int]:
        offsets = {}
        for queue, found in (await self._query(route.topic)).items():
            begin, end = found.begin_offset, found.end_offset
            if found.lost and queue not in self._reader:
                begin = self._reader.on_deleted(queue, found.lost, begin, end)
                offsets[queue] = begin if self._reader.when_deleted == "latest" else found.offset
            elif found.offset >= 0:
                offsets[queue] = found.offset
            else:
                offsets[queue] = begin if self._start == "earliest" else end
        return offsets

    # --- offsets ----------------------------------------------------------------------------------------------

    async def offsets(self, topic: str) -> list[tuple[MessageQueue, int, int, int]]:
        """Return (queue, committed or -1, begin, end) of every queue of a topic."""
        found = await self._query(topic)
        return [(queue, each.offset, each.begin_offset, each.end_offset) for queue, each in found.items()]

    async def _query(self, topic: str) -> dict[MessageQueue, pb.QueueOffset]:
        route = await self._routes.get(topic)
        found: dict[MessageQueue, pb.QueueOffset] = {}
        for answer in await asyncio.gather(
            *(self._offsets.query(topic, part.group.name) for part in route.parts)
        ):
            found |= answer
        return found

    def _find(self, topic: str, name: str) -> BrokerGroup:
        route = self._routes.cached(topic)
        part = route.part(name) if route else None
        assert part is not None, "only called for parts of a known route"
        return part.group

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out. Raises: UsageError."""
        return self._reader.position(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at `offset`. Raises: UsageError (not assigned, or no offset)."""
        self._reader.seek(queue, offset)

    async def seek_to_beginning(self, topic: str) -> None:
        """Continue all assigned queues of the topic at their first stored message."""
        for queue, _, begin, _ in await self.offsets(topic):
            if queue in self._reader:
                self._reader.seek(queue, begin)

    async def seek_to_end(self, topic: str) -> None:
        """Continue all assigned queues of the topic behind their last message."""
        for queue, _, _, end in await self.offsets(topic):
            if queue in self._reader:
                self._reader.seek(queue, end)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, reset: bool = False) -> None:
        """Store how far the group has consumed; default: everything that was handed out.

        `reset` allows going back. Raises: UsageError (no group, impossible queue or offset), TopicNotFoundError,
        RefusedError, BrokerUnreachableError.
        """
        if not self.group:
            raise UsageError("this consumer has no group", "Offsets are stored per group", "Give group=")
        wanted = self._reader.positions if offsets is None else offsets
        checked: dict[MessageQueue, int] = {}
        for each, offset in wanted.items():
            queue = MessageQueue(*each)
            check_offset(offset)
            if queue not in self._reader and queue not in await self.queues(queue.topic):
                raise UsageError(f"{queue} does not exist", "", f"See: ledgermq topic describe {queue.topic}")
            checked[queue] = offset
        await self._offsets.commit(checked, reset=reset)

    async def committed(self, topic: str) -> dict[MessageQueue, int]:
        """Return the committed offset of each queue, -1 where nothing was committed."""
        return {queue: offset for queue, offset, _, _ in await self.offsets(topic)}

    # --- reading ----------------------------------------------------------------------------------------------

    async def poll(self, max_messages: int = _TAKE, timeout_ms: int | None = None) -> list[MessageView]:
        """Return up to `max_messages`, waiting up to `timeout_ms` (None: without end) for the first one.

        Raises: RefusedError and other errors that repeating cannot heal; UsageError (nothing assigned).
        """
        if not self._reader.has_queues and not self._closed:
            raise UsageError("this consumer reads no queue", "", "Call subscribe() or assign() first")
        return self._reader.take(max_messages) or await self._reader.wait(max_messages, timeout_ms)

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        handed_out = 0
        while not self._closed:
            for message in self._reader.take(1) or await self.poll(1):
                yield message
            handed_out += 1
            if handed_out % _TAKE == 0:
                await asyncio.sleep(0)  # a loop body that never waits would keep everything else from running

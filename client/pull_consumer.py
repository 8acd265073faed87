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
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc
from grpc import aio

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc, route_pb2

from .calls import call_group, raise_if_final
from .channels import Channels, unreachable
from .encoding import check_name
from .errors import (
    ClosedError,
    CorruptMessageError,
    LedgerMQError,
    MessagesDeletedError,
    UsageError,
    error_of,
)
from .fetch_buffer import MAX_BUFFER_BYTES, AssignedQueue, FetchBuffer, OutOfRange, check_offset
from .message import MessageQueue, MessageView
from .retry_policy import LeaderSearch
from .routes import Routes
from .topic_route import BrokerGroup, TopicRoute

logger = logging.getLogger(__name__)

_MAX_WAIT_MS: Final = 10_000  # long poll of one fetch
_ANSWER_GRACE_S: Final = 3.0  # a node that is silent for longer than the poll and this is left
_BEYOND_END_PAUSE_S: Final = 0.1
_TAKE: Final = 512


class _GroupFetcher:
    """Reads the assigned queues of one broker group into its buffer."""

    def __init__(self, owner: PullConsumer, group: BrokerGroup, max_bytes: int) -> None:
        self.group = group
        self.buffer = FetchBuffer(max_bytes)
        self.changed = asyncio.Event()  # the assignment changed, or there is room again
        self.topics: set[str] = set()
        self._owner = owner
        self._search = LeaderSearch()
        self._call: Any = None
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-fetch-{group.name}")

    def restart(self) -> None:
        """Ask again with the positions as they are now."""
        self.changed.set()
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if not self.buffer.has_room:
                self.changed.clear()
                await self.changed.wait()
                continue
            leader = self.group.leader
            nodes = [node.log_address for node in self.group.by_preference]
            address, pause_ms = self._search.next(leader.log_address if leader else "", nodes)
            if pause_ms:
                await self._owner.refresh(self.topics)
                await asyncio.sleep(pause_ms / 1000)
            if address:
                await self._read_from(address)

    async def _read_from(self, address: str) -> None:
        """Fetch from one node until its stream breaks or the assignment changes."""
        call = log_pb2_grpc.LogServiceStub(self._owner.channels.get(address)).FetchStream()
        self._call = call
        try:
            await self._exchange(call)
        except grpc.RpcError as error:
            logger.info("fetch stream broke address=%s reason=%s", address, unreachable(address, error))
            self._search.failed(address)
        except TimeoutError:
            logger.info("fetch stream silent address=%s", address)
            self._search.failed(address)
        except asyncio.InvalidStateError:
            # The stream ended while we were waiting for room in the buffer; gRPC says so at the next write.
            if not call.cancelled():  # by us, because the assignment changed
                logger.info("fetch stream ended address=%s", address)
                self._search.failed(address)
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            # only the stream was cancelled: the assignment changed
        except CorruptMessageError as error:
            # Another node has another copy of the same bytes.
            logger.error("fetched bytes are damaged address=%s error=%s", address, error)
            self._search.failed(address)
            await asyncio.sleep(_BEYOND_END_PAUSE_S)
        except LedgerMQError as error:
            self._owner.fail(error)
            await asyncio.sleep(_BEYOND_END_PAUSE_S)
        finally:
            self._call = None
            call.cancel()

    async def _exchange(self, call: aio.StreamStreamCall[pb.FetchRequest, pb.FetchResponse]) -> None:
        while True:
            while not self.buffer.has_room:
                self.changed.clear()
                await self.changed.wait()
            request, asked = self.buffer.next_request(_MAX_WAIT_MS)
            await call.write(request)
            async with asyncio.timeout(_MAX_WAIT_MS / 1000 + _ANSWER_GRACE_S):
                response = await call.read()
            if not isinstance(response, pb.FetchResponse):
                raise TimeoutError  # the node ended the stream
            if response.HasField("refusal"):
                raise_if_final(response.refusal)
                self._search.hint(response.refusal.leader_address)
                raise TimeoutError
            refused = self.buffer.on_response(response, asked)
            self._search.succeeded()
            if self.buffer.has_messages:
                self._owner.arrived()
            if refused:
                await self._owner.on_refused(self, refused)


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
        if when_deleted not in ("earliest", "latest", "raise"):
            raise UsageError(
                f"when_deleted is {when_deleted!r}", "", 'It must be "earliest", "latest" or "raise"'
            )
        self.group = group
        #: Messages that retention deleted before they were read.
        self.deleted_count = 0
        self._when_deleted = when_deleted
        self.channels = Channels()
        self._start = start
        self._max_buffer_bytes = max_buffer_bytes
        self._routes = Routes(nameservers, self.channels, cluster)
        self._routes.on_change(self._on_route)
        self._fetchers: dict[str, _GroupFetcher] = {}
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._arrived = asyncio.Event()
        self._failure: LedgerMQError | None = None
        self._turn = 0
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
        self.arrived()
        for fetcher in self._fetchers.values():
            await fetcher.close()
        await self._routes.close()
        await self.channels.close()

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
        new = [MessageQueue(*queue) for queue in queues if MessageQueue(*queue) not in self._assigned]
        for topic in {queue.topic for queue in new}:
            route = await self._routes.get(topic)
            starts = await self._start_offsets(route)
            for queue in new:
                if queue.topic == topic:
                    if queue not in starts:
                        raise UsageError(
                            f"{queue} does not exist", "", f"See: ledgermq topic describe {topic}"
                        )
                    self._read(route, queue, starts[queue])

    def unassign(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading these queues."""
        for queue in queues:
            assigned = self._assigned.pop(MessageQueue(*queue), None)
            if assigned is not None:
                fetcher = self._fetchers[queue.broker_group]
                fetcher.buffer.remove(assigned)
                fetcher.changed.set()  # there may be room again

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        return tuple(self._assigned)

    def _read(self, route: TopicRoute, queue: MessageQueue, offset: int) -> None:
        part = route.part(queue.broker_group)
        assert part is not None, "the start offset came from this part"
        fetcher = self._fetchers.get(queue.broker_group)
        if fetcher is None:
            fetcher = _GroupFetcher(self, part.group, self._max_buffer_bytes)
            self._fetchers[queue.broker_group] = fetcher
        assigned = AssignedQueue(queue, part.topic_id, offset, offset)
        self._assigned[queue] = assigned
        fetcher.topics.add(queue.topic)
        fetcher.buffer.assign(assigned)
        fetcher.restart()

    async def _start_offsets(self, route: TopicRoute) -> dict[MessageQueue, int]:
        offsets = {}
        for queue, found in await self._query(route.topic):
            begin, end = found.begin_offset, found.end_offset
            if found.lost and queue not in self._assigned:
                begin = self._on_deleted(queue, found.lost, begin, end)
                offsets[queue] = begin if self._when_deleted == "latest" else found.offset
            elif found.offset >= 0:
                offsets[queue] = found.offset
            else:
                offsets[queue] = begin if self._start == "earliest" else end
        return offsets

    def _on_deleted(self, queue: MessageQueue, count: int, begin: int, end: int) -> int:
        """Say that messages are gone, as `when_deleted` wants it; return where to go on."""
        self.deleted_count += count
        text = "messages were deleted before they were read queue=%s count=%d begin=%d"
        logger.warning(text, queue, count, begin)
        if self._when_deleted == "raise":
            self.fail(MessagesDeletedError(queue.topic, queue.queue_id, count, begin))
        return end if self._when_deleted == "latest" else begin

    # --- offsets ----------------------------------------------------------------------------------------------

    async def offsets(self, topic: str) -> list[tuple[MessageQueue, int, int, int]]:
        """Return (queue, committed or -1, begin, end) of every queue of a topic."""
        found = await self._query(topic)
        return [(queue, each.offset, each.begin_offset, each.end_offset) for queue, each in found]

    async def _query(self, topic: str) -> list[tuple[MessageQueue, pb.QueueOffset]]:
        route = await self._routes.get(topic)
        request = pb.QueryOffsetsRequest(group=self.group, topic=topic)
        found = []

        async def query(channel: aio.Channel, timeout_s: float) -> pb.QueryOffsetsResponse:
            stub = log_pb2_grpc.LogServiceStub(channel)
            result: pb.QueryOffsetsResponse = await stub.QueryOffsets(request, timeout=timeout_s)
            return result

        for name in [part.group.name for part in route.parts]:
            answer = await call_group(self._group_of(topic, name), self.channels, query)
            found += [(MessageQueue(topic, name, each.queue_id), each) for each in answer.offsets]
        return found

    def _group_of(self, topic: str, name: str) -> Any:
        def newest() -> BrokerGroup:
            route = self._routes.cached(topic)
            part = route.part(name) if route else None
            assert part is not None, "only called for parts of a known route"
            return part.group

        return newest

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be handed out. Raises: UsageError."""
        return self._of(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at `offset`. Raises: UsageError (not assigned, or no offset)."""
        assigned = self._of(queue)
        fetcher = self._fetchers[queue.broker_group]
        fetcher.buffer.seek(assigned, offset)
        fetcher.restart()

    async def seek_to_beginning(self, topic: str) -> None:
        """Continue all assigned queues of the topic at their first stored message."""
        for queue, _, begin, _ in await self.offsets(topic):
            if queue in self._assigned:
                self.seek(queue, begin)

    async def seek_to_end(self, topic: str) -> None:
        """Continue all assigned queues of the topic behind their last message."""
        for queue, _, _, end in await self.offsets(topic):
            if queue in self._assigned:
                self.seek(queue, end)

    def _of(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._assigned.get(MessageQueue(*queue))
        if assigned is None:
            raise UsageError(
                f"{queue} is not assigned to this consumer", "", "Call assign() or subscribe() first"
            )
        return assigned

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, reset: bool = False) -> None:
        """Store how far the group has consumed; default: everything that was handed out.

        `reset` allows going back. Raises: UsageError (no group, impossible queue or offset), TopicNotFoundError,
        RefusedError, BrokerUnreachableError.
        """
        if not self.group:
            raise UsageError("this consumer has no group", "Offsets are stored per group", "Give group=")
        wanted = offsets if offsets is not None else {q: a.position for q, a in self._assigned.items()}
        by_group: dict[str, pb.CommitOffsetsRequest] = {}
        for each, offset in wanted.items():
            queue = MessageQueue(*each)
            check_offset(offset)
            if queue not in self._assigned and queue not in await self.queues(queue.topic):
                raise UsageError(f"{queue} does not exist", "", f"See: ledgermq topic describe {queue.topic}")
            request = by_group.setdefault(
                queue.broker_group, pb.CommitOffsetsRequest(group=self.group, reset=reset)
            )
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        sends = [self._commit_in(name, request) for name, request in by_group.items()]
        for outcome in await asyncio.gather(
            *sends, return_exceptions=True
        ):  # one group must not hold up another
            if outcome is not None:
                raise outcome

    async def _commit_in(self, name: str, request: pb.CommitOffsetsRequest) -> None:
        def send(channel: aio.Channel, timeout_s: float) -> Any:
            return log_pb2_grpc.LogServiceStub(channel).CommitOffsets(request, timeout=timeout_s)

        await call_group(self._group_of(request.offsets[0].topic, name), self.channels, send)

    async def committed(self, topic: str) -> dict[MessageQueue, int]:
        """Return the committed offset of each queue, -1 where nothing was committed."""
        return {queue: offset for queue, offset, _, _ in await self.offsets(topic)}

    # --- reading ----------------------------------------------------------------------------------------------

    async def poll(self, max_messages: int = _TAKE, timeout_ms: int | None = None) -> list[MessageView]:
        """Return up to `max_messages`, waiting up to `timeout_ms` (None: without end) for the first one.

        Raises: RefusedError and other errors that repeating cannot heal; UsageError (nothing assigned).
        """
        if not self._assigned and not self._closed:
            raise UsageError("this consumer reads no queue", "", "Call subscribe() or assign() first")
        if messages := self._take(max_messages):
            return messages
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while not self._closed:
                    self._arrived.clear()
                    if messages := self._take(max_messages):
                        return messages
                    await self._arrived.wait()
        except TimeoutError:
            return []
        return []

    def _take(self, max_messages: int) -> list[MessageView]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        fetchers = list(self._fetchers.values())
        self._turn += 1
        for step in range(len(fetchers)):
            fetcher = fetchers[(self._turn + step) % len(fetchers)]
            had_room = fetcher.buffer.has_room
            if messages := fetcher.buffer.take(max_messages):
                if not had_room and fetcher.buffer.has_room:
                    fetcher.changed.set()
                return messages
        return []

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        handed_out = 0
        while not self._closed:
            for message in self._take(1) or await self.poll(1):
                yield message
            handed_out += 1
            if handed_out % _TAKE == 0:
                await asyncio.sleep(0)  # a loop body that never waits would keep everything else from running

    # --- for the fetchers -------------------------------------------------------------------------------------

    def arrived(self) -> None:
        """Messages, or a failure, wait for `poll`."""
        self._arrived.set()

    def fail(self, error: LedgerMQError) -> None:
        """Let the next `poll` raise `error`."""
        self._failure = error
        self.arrived()

    async def refresh(self, topics: set[str]) -> None:
        """Fetch the routes again; the listener hands them to the fetchers."""
        for topic in topics:
            try:
                await self._routes.get(topic, refresh=True)
            except LedgerMQError as error:
                logger.info("route not refreshed topic=%s reason=%s", topic, error)

    def _on_route(self, route: TopicRoute) -> None:
        for part in route.parts:
            fetcher = self._fetchers.get(part.group.name)
            if fetcher is not None:
                fetcher.group = part.group

    async def on_refused(
        self, fetcher: _GroupFetcher, refused: list[tuple[AssignedQueue, route_pb2.Refusal] | OutOfRange]
    ) -> None:
        """Heal what can be healed: offsets that were deleted, a node that is behind, a topic that was re-created."""
        for each in refused:
            if isinstance(each, OutOfRange):
                await self._on_out_of_range(fetcher, each)
                continue
            assigned, refusal = each
            error = error_of(refusal)
            if error.refresh_route:
                await self._on_stale_route(fetcher, assigned)
            elif not error.retryable:
                self.unassign([assigned.queue])
                self.fail(error)
            else:
                await asyncio.sleep(_BEYOND_END_PAUSE_S)

    async def _on_out_of_range(self, fetcher: _GroupFetcher, found: OutOfRange) -> None:
        assigned = found.assigned
        if assigned.fetch_offset < found.begin:
            # What is buffered below the begin was read in time: only asking goes on elsewhere.
            count = found.begin - assigned.fetch_offset
            fetcher.buffer.skip_to(assigned, self._on_deleted(assigned.queue, count, found.begin, found.end))
        else:
            # The node has not applied as far as we have read elsewhere: it will.
            await asyncio.sleep(_BEYOND_END_PAUSE_S)

    async def _on_stale_route(self, fetcher: _GroupFetcher, assigned: AssignedQueue) -> None:
        """The topic id may be of an older incarnation of the topic: take the newest one, from its beginning."""
        topic = assigned.queue.topic
        await asyncio.sleep(_BEYOND_END_PAUSE_S)
        await self.refresh({topic})
        if self._assigned.get(assigned.queue) is not assigned:
            return  # given up meanwhile
        route = self._routes.cached(topic)
        part = route.part(assigned.queue.broker_group) if route else None
        if route is None or part is None or part.topic_id == assigned.topic_id:
            return
        if assigned.queue.queue_id >= part.queue_count:
            self.unassign([assigned.queue])
            return
        logger.warning("topic was created again, reading it from its beginning queue=%s", assigned.queue)
        fetcher.buffer.remove(assigned)
        self._read(route, assigned.queue, 0)

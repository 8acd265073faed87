"""Queue fetcher: reads assigned queues of any broker groups in order. Base of consumers that read the log.

Owns: one fetcher per broker group, the assigned queues and their positions, the reaction to deleted messages
and to topics that were created again. Must not: choose queues or start positions, commit.
Invariant: a broker group is never asked with the ids and offsets of an earlier one of the same name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from ..arguments import check_offset, check_queue
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..cluster.topic_route import BrokerGroup, TopicInBrokerGroup, TopicRoute
from ..errors import (
    LedgerMQError,
    MessagesDeletedError,
    TopicNotFoundError,
    UsageError,
    error_of,
    position_of_replaced,
)
from ..message import MessageQueue, MessageView
from ..pauses import POLL_MS
from .fetch_buffer import MAX_BUFFER_BYTES, FetchBuffer
from .fetch_stream import BrokerGroupFetcher
from .intake import AssignedQueue, OutOfRange, Refused
from .read_source import FetchSource
from .statistics import PulledQueue

logger = logging.getLogger(__name__)


class QueueFetcher:
    """Call `read` with queues, then `take` or `wait` for their messages. Call close()."""

    def __init__(
        self,
        routes: Routes,
        channels: Channels,
        *,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        when_deleted: str = "earliest",
        consumer_group: str = "",
    ) -> None:
        """`max_buffer_bytes`: per broker group. `when_deleted`: see PullConsumer.

        `consumer_group`: sent to the brokers, which show who reads.

        Raises: UsageError.
        """
        self.channels = channels
        self.delivered_count = 0  # messages handed out
        #: Messages that retention deleted before they were read.
        self.deleted_count = 0
        self.when_deleted = when_deleted
        self.consumer_group = consumer_group
        self._routes = routes
        self._routes.on_change(self._on_route)
        self._max_buffer_bytes = max_buffer_bytes
        self._fetchers: dict[str, _Fetcher] = {}
        self._ending: set[asyncio.Task[None]] = set()  # fetchers that are closing
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        # Queues of broker groups that were replaced, with that broker group and the position in it
        self._replaced: dict[MessageQueue, tuple[BrokerGroup, AssignedQueue]] = {}
        self._paused: set[MessageQueue] = set()
        self._arrived = asyncio.Event()
        self._failure: LedgerMQError | None = None
        self._turn = 0
        self._closed = False

    async def close(self) -> None:
        """Close every stream, and wake callers that wait for messages."""
        self._closed = True
        self.arrived()
        for fetcher in list(self._fetchers.values()):
            await fetcher.close()
        await asyncio.gather(*self._ending)

    # --- queues ---------------------------------------------------------------------------------------------

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        return (*self._assigned, *self._replaced)

    @property
    def has_queues(self) -> bool:
        return bool(self._assigned or self._replaced)

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """Offset of the next message to hand out, by queue."""
        return {queue: assigned.position for queue, assigned in self._assigned.items()}

    @property
    def statistics(self) -> tuple[PulledQueue, ...]:
        """Statistics of every queue that is read, sorted by queue."""
        found = []
        for queue, each in sorted(self._assigned.items()):
            end = each.end_offset if each.sought else max(each.end_offset, each.fetch_offset)
            paused = queue in self._paused
            found.append(PulledQueue(queue, each.position, end, each.fetch_offset - each.position, paused))
        return tuple(found)

    @property
    def beyond(self) -> dict[MessageQueue, int]:
        """Queues that brokers report to stand beyond their ends, with these ends."""
        return {queue: each.end_offset for queue, each in self._assigned.items() if each.beyond}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._assigned or queue in self._replaced

    @property
    def replaced(self) -> Collection[MessageQueue]:
        """Queues with positions in broker groups that were replaced. They are not read."""
        return self._replaced.keys()

    def check_replaced(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Check that none of these queues (None: all) belongs to a broker group that was replaced.

        Raises: OtherBrokerGroupError.
        """
        found = [queue for queue in (self._replaced if queues is None else queues) if queue in self._replaced]
        if found:
            former = self._replaced[found[0]][0]
            positions = ", ".join(
                f"{queue} ({assigned.position})"
                for queue, (broker_group, assigned) in self._replaced.items()
                if broker_group.name == former.name
            )
            raise position_of_replaced(former.name, former.group_id, positions)

    def read(self, part: TopicInBrokerGroup, queue: MessageQueue, offset: int) -> None:
        """Read a queue from `offset` on. `part`: its broker group in the route of the topic."""
        self._fetch(AssignedQueue(queue, part.topic_id, offset, offset), part.group)

    def _fetch(self, assigned: AssignedQueue, broker_group: BrokerGroup) -> None:
        queue = assigned.queue
        fetcher = self._fetchers.get(broker_group.name)
        if fetcher is None:
            fetcher = self._fetchers[broker_group.name] = _Fetcher(self, broker_group, self._max_buffer_bytes)
        self._assigned[queue] = assigned
        fetcher.topics.add(queue.topic)
        if queue not in self._paused:
            fetcher.buffer.assign(assigned)
            fetcher.restart()

    def give_up(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading these queues, and drop their buffered records."""
        for each in queues:
            queue = check_queue(each)
            assigned = self._assigned.pop(queue, None)
            self._paused.discard(queue)
            self._replaced.pop(queue, None)
            if assigned is not None:
                self._drop(assigned)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop handing out messages of these queues; positions stay. Raises: UsageError."""
        for assigned in [self._of(queue) for queue in queues]:
            if assigned.queue not in self._paused:
                self._paused.add(assigned.queue)
                self._drop(assigned)
                assigned.fetch_offset = assigned.position

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue paused queues at their positions. Raises: UsageError."""
        for assigned in [self._of(queue) for queue in queues]:
            if assigned.queue in self._paused:
                self._paused.discard(assigned.queue)
                fetcher = self._fetchers[assigned.queue.broker_group]
                fetcher.buffer.assign(assigned)
                fetcher.restart()

    @property
    def paused(self) -> tuple[MessageQueue, ...]:
        return tuple(queue for queue in self._assigned if queue in self._paused)

    def _drop(self, assigned: AssignedQueue) -> None:
        """Stop fetching a queue, and drop its buffered records: they would take room from other queues."""
        fetcher = self._fetchers[assigned.queue.broker_group]
        fetcher.buffer.remove(assigned)
        fetcher.changed.set()  # there may be room now

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to hand out. Raises: UsageError, OtherBrokerGroupError."""
        return self._of(queue).position

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at `offset`. Raises: UsageError (not assigned, or not an offset).

        A queue of a broker group that was replaced continues in the new one.
        Raises: TopicNotFoundError (the new one does not have it, as far as is known).
        """
        if check_queue(queue) in self._replaced:
            check_offset(offset)
            part = self._part(queue)
            if part is None or queue.queue_id >= part.queue_count:
                raise TopicNotFoundError(queue.topic)
            del self._replaced[queue]
            self._paused.discard(queue)
            self.read(part, queue, offset)
        assigned = self._of(queue)
        fetcher = self._fetchers[assigned.queue.broker_group]
        fetcher.buffer.seek(assigned, offset)
        fetcher.restart()

    @property
    def sources(self) -> dict[str, FetchSource]:
        """Node that answered last, by broker group."""
        found = {name: fetcher.source for name, fetcher in self._fetchers.items()}
        return {name: source for name, source in found.items() if source is not None}

    def _part(self, queue: MessageQueue) -> TopicInBrokerGroup | None:
        """Return the queue's part of the newest route of its topic."""
        route = self._routes.cached(queue.topic)
        return route.part(queue.broker_group) if route is not None else None

    def _of(self, queue: MessageQueue) -> AssignedQueue:
        self.check_replaced([check_queue(queue)])
        assigned = self._assigned.get(queue)
        if assigned is None:
            raise UsageError(
                f"{queue} is not assigned to this consumer", "", "Call assign() or subscribe() first"
            )
        return assigned

    # --- messages -------------------------------------------------------------------------------------------

    def take(self, max_messages: int) -> list[MessageView]:
        """Hand out what is buffered, at most `max_messages`, all of one broker group.

        Raises: the error that a fetcher reported; OtherBrokerGroupError, as long as a queue belongs to a
        broker group that was replaced.
        """
        if self._replaced:
            self.check_replaced()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        fetchers = list(self._fetchers.values())
        self._turn += 1
        for step in range(len(fetchers)):
            fetcher = fetchers[(self._turn + step) % len(fetchers)]
            if messages := fetcher.buffer.take(max_messages):
                self.delivered_count += len(messages)
                if not fetcher.changed.is_set() and fetcher.buffer.has_room:
                    fetcher.changed.set()
                return messages
        return []

    async def wait(self, max_messages: int, timeout_ms: int | None) -> list[MessageView]:
        """Hand out as `take` does, but wait for the first message. Empty after `timeout_ms` or close()."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while not self._closed:
                    self._arrived.clear()
                    if messages := self.take(max_messages):
                        return messages
                    await self._arrived.wait()
        except TimeoutError:
            return []
        return []

    # --- called by the fetchers -----------------------------------------------------------------------------

    def arrived(self) -> None:
        """Messages or an error are ready for `take`."""
        self._arrived.set()

    def fail(self, error: LedgerMQError) -> None:
        """Let the next `take` raise `error`."""
        self._failure = error
        self.arrived()

    async def refresh(self, topics: set[str]) -> None:
        """Fetch the routes again, and pass them to the fetchers."""
        for topic in topics:
            try:
                self._on_route(await self._routes.get(topic, refresh=True))
            except LedgerMQError as error:
                logger.info("route not refreshed topic=%s reason=%s", topic, error)

    def _on_route(self, route: TopicRoute) -> None:
        for part in route.parts:
            fetcher = self._fetchers.get(part.group.name)
            if fetcher is not None:
                if part.group.is_another(fetcher.group):
                    self._end_replaced(fetcher)
                else:
                    fetcher.update(part.group)
            self._take_back(part.group)
        for name, fetcher in list(self._fetchers.items()):
            if fetcher.group.draining and not any(self._has(topic, name) for topic in fetcher.topics):
                self._leave(name, fetcher)

    def _end_replaced(self, fetcher: _Fetcher) -> None:
        """Another broker group has the name: stop reading the queues of the former one."""
        former = fetcher.group
        text = "broker group was replaced by another one of its name broker_group=%s former_id=%016x"
        logger.warning(text, former.name, former.group_id)
        for queue, assigned in list(self._assigned.items()):
            if queue.broker_group == former.name:
                self._replaced[queue] = former, assigned
                del self._assigned[queue]
        self._end(fetcher)
        self.arrived()

    def _take_back(self, broker_group: BrokerGroup) -> None:
        """Continue where queues were read before a lagging nameserver named a former broker group."""
        for queue, (known, assigned) in list(self._replaced.items()):
            # An unknown id may be that of any broker group
            if (
                known.name == broker_group.name
                and broker_group.group_id
                and not broker_group.is_another(known)
            ):
                del self._replaced[queue]
                at = assigned.position
                self._fetch(AssignedQueue(queue, assigned.topic_id, at, at), broker_group)

    def _has(self, topic: str, broker_group: str) -> bool:
        route = self._routes.cached(topic)
        return route is not None and route.part(broker_group) is not None

    def _leave(self, name: str, fetcher: _Fetcher) -> None:
        """Drop a broker group that was drained and left all routes: it was removed. A silent one is kept."""
        logger.info("broker group was removed broker_group=%s", name)
        self.give_up([queue for queue in self._assigned if queue.broker_group == name])
        self._end(fetcher)

    def _end(self, fetcher: _Fetcher) -> None:
        name = fetcher.group.name
        del self._fetchers[name]
        task = asyncio.create_task(fetcher.close(), name=f"ledgermq-end-{name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def on_refused(self, fetcher: _Fetcher, refused: list[Refused[AssignedQueue]]) -> None:
        """Heal what can be healed: deleted offsets, a node that lags, a topic that was created again.

        One route request per topic for all queues: until it is answered, no queue of the broker group is
        fetched.
        """
        stale: list[AssignedQueue] = []
        behind: list[AssignedQueue] = []
        for each in refused:
            if isinstance(each, OutOfRange):
                if not self._went_on(fetcher, each):
                    behind.append(each.assigned)
                continue
            assigned, refusal = each
            error = error_of(refusal)
            if error.refresh_route:
                stale.append(assigned)
            elif error.retryable:
                behind.append(assigned)
            else:
                self.give_up([assigned.queue])
                self.fail(error)
        fetcher.ask_soon(behind)
        if stale:
            await self.refresh({assigned.queue.topic for assigned in stale})
            fetcher.ask_later([each for each in stale if not self._read_newest(fetcher, each)])

    def _went_on(self, fetcher: _Fetcher, found: OutOfRange[AssignedQueue]) -> bool:
        """Continue after deleted messages. Return False if the node has not applied that far yet: it will."""
        assigned = found.assigned
        if assigned.fetch_offset >= found.begin:
            _warn_beyond(assigned, found.end)
            return False
        # Records buffered below the begin were read in time: only fetching continues elsewhere.
        count = found.begin - assigned.fetch_offset
        fetcher.buffer.skip_to(assigned, self.on_deleted(assigned.queue, count, found.begin, found.end))
        return True

    def on_deleted(self, queue: MessageQueue, count: int, begin: int, end: int) -> int:
        """Report deleted messages as `when_deleted` demands. Return the offset to continue at."""
        self.deleted_count += count
        text = "messages were deleted before they were read queue=%s count=%d begin=%d"
        logger.warning(text, queue, count, begin)
        if self.when_deleted == "raise":
            self.fail(MessagesDeletedError(queue.topic, queue.queue_id, count, begin))
        return end if self.when_deleted == "latest" else begin

    def _read_newest(self, fetcher: _Fetcher, assigned: AssignedQueue) -> bool:
        """Read a newer incarnation of the topic from its beginning. Return False if there is none."""
        if self._assigned.get(assigned.queue) is not assigned:
            return True  # no longer read
        part = self._part(assigned.queue)
        if part is None or part.topic_id == assigned.topic_id:
            return False
        if assigned.queue.queue_id >= part.queue_count:
            self.give_up([assigned.queue])
            return True
        logger.warning("topic was created again, reading it from its beginning queue=%s", assigned.queue)
        fetcher.buffer.remove(assigned)
        self.read(part, assigned.queue, 0)
        fetcher.ask_soon([self._assigned[assigned.queue]])  # the node may not know the topic yet
        return True


def _warn_beyond(assigned: AssignedQueue, end: int) -> None:
    """Warn once that a queue was moved beyond its end, and is silent until it has grown that far."""
    assigned.end_offset = max(assigned.end_offset, end)
    if assigned.sought and not assigned.beyond:
        assigned.beyond = True
        text = "seek beyond the end: nothing comes until the queue has grown so far queue=%s offset=%d end=%d"
        logger.warning(text, assigned.queue, assigned.fetch_offset, end)


class _Fetcher(BrokerGroupFetcher[AssignedQueue]):
    """Fetches the assigned queues of one broker group into its buffer."""

    def __init__(self, owner: QueueFetcher, broker_group: BrokerGroup, max_bytes: int) -> None:
        self.buffer = FetchBuffer(max_bytes)
        self.topics: set[str] = set()
        self._owner = owner
        super().__init__(broker_group, owner.channels, self.buffer, POLL_MS, owner.consumer_group)

    async def refresh(self) -> None:
        await self._owner.refresh(self.topics)

    def arrived(self) -> None:
        self._owner.arrived()

    def fail(self, error: LedgerMQError) -> None:
        self._owner.fail(error)

    async def on_refused(self, refused: list[Refused[AssignedQueue]]) -> None:
        await self._owner.on_refused(self, refused)

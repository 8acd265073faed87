"""asyncio push consumer: passes messages to a listener, and shares queues with its consumer group.

    async def bill(messages):
        ...

    async with PushConsumer("127.0.0.1:9876", group="billing", listener=bill) as consumer:
        await consumer.subscribe("orders", "paid || refunded")
        await consumer.run()

Each queue belongs to one consumer of the consumer group. When consumers come and go, only the queues that
must move do. The consumer that loses a queue finishes what it has of it and commits; the next one continues
there. Delivery is at least once: what was not committed is delivered again after a crash. With
`broadcast_file` every consumer gets every message, and keeps its own offsets.
Owns: the parts of one consumer, and the order of their shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..arguments import (
    a_consumer_group,
    a_flag,
    a_function,
    a_path,
    a_text,
    check_name,
    check_tag_filter,
    checked,
    instance_of,
    none_or,
    start_position,
    whole,
)
from ..async_client import AsyncClient
from ..cluster.channels import Channels
from ..cluster.routes import Routes
from ..cluster.topic_route import BrokerGroup, TopicRoute
from ..consume.consume_trace import consume_trace
from ..consume.offsets import ConsumerGroupOffsets
from ..errors import ClosedError, LedgerMQError, TopicNotFoundError, UsageError
from ..message import MessageQueue
from .broadcast_group import BroadcastGroup
from .listener_calls import ListenerCalls
from .offsets_file import OffsetsFile
from .options import ExhaustedHook, Listener, PushOptions
from .owned_queue import ByteBudget, OwnedQueue
from .push_group import MemberGroup, QueueGroup, Shared
from .push_statistics import ConsumerStatistics, statistics_of

logger = logging.getLogger(__name__)

#: How long close() waits for running listeners, ms.
CLOSE_MS = 10_000


class PushConsumer(AsyncClient):
    """Passes messages to a listener. Use it as an async context manager, or call close().

    Example:

        async def bill(messages: Sequence[MessageView]) -> RetryLater | None:
            for message in messages:
                print(message.queue, message.queue_offset, message.body)
            return None

        async with PushConsumer("127.0.0.1:9876", group="billing", listener=bill) as consumer:
            await consumer.subscribe("orders")
            await consumer.run()

    The consumer group is created if it does not exist. Its consumers share the queues: each queue belongs to
    one consumer.
    """

    @checked(
        group=a_consumer_group,
        listener=a_function,
        orderly=a_flag,
        broadcast_file=none_or(a_path),
        start=start_position,
        on_exhausted=none_or(a_function),
        cluster=a_text,
        options=none_or(instance_of(PushOptions, "PushOptions")),
        trace=a_flag,
    )
    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        group: str,
        listener: Listener,
        orderly: bool = False,
        broadcast_file: str | Path | None = None,
        start: str = "earliest",
        on_exhausted: ExhaustedHook | None = None,
        cluster: str = "",
        options: PushOptions | None = None,
        trace: bool = False,
    ) -> None:
        """`listener(messages)` gets batches of one queue each. Exception: retry all later. See RetryLater.

        `orderly`: one batch of a queue at a time, in order; failed messages are retried before those that
        follow. Otherwise several batches of a queue may run at once, and failed messages are retried one by
        one while others continue.
        `broadcast_file`: get all messages of all queues, and keep the offsets in this file.
        `start`: start position of a new consumer group, or of queues that are not in the file: "earliest",
        "latest" or ms since the epoch.
        `on_exhausted(message, error)` gets a message after its last failed attempt, and may store it
        elsewhere.
        If it raises, it is called again later. Without it, the message is skipped and an error is logged.
        Brokers keep no dead letters.
        `trace`: record the result of each message in the trace topic (`ledgermq message trace`). The brokers
        need `trace_topic`.
        Raises: InvalidNameError, UsageError, OffsetsFileError (broadcast).
        """
        options = options or PushOptions()
        self.group = group
        #: Name of this consumer among the members of its consumer group, as brokers show it.
        self.member_id = f"{socket.gethostname()}@{os.getpid()}@{secrets.token_hex(8)}"
        self._start = start
        self._began_ms = time.time_ns() // 1_000_000
        self._file = OffsetsFile(Path(broadcast_file), group) if broadcast_file is not None else None
        self._filters: dict[str, str] = {}
        self._groups: dict[str, QueueGroup] = {}
        self._ending: set[asyncio.Task[None]] = set()  # broker groups that are being left
        self._channels = Channels()
        self._routes = Routes(nameservers, self._channels, cluster)
        self._routes.on_change(self._on_route)
        self._trace = consume_trace("push", group, self.member_id, nameservers, cluster) if trace else None
        self._calls = ListenerCalls(
            listener,
            options,
            orderly=orderly,
            on_exhausted=on_exhausted,
            on_done=self._on_done,
            on_failed=self._fail,
            settle=None if options.commit_interval_ms else self._settle,
            trace=self._trace,
        )
        self._shared = Shared(
            group,
            self.member_id,
            options,
            orderly,
            self._channels,
            ByteBudget(options.max_bytes),
            self._filters,
            self._calls,
            self._look_for_room,
            self._refresh,
            self._fail,
        )
        self._failure: LedgerMQError | None = None
        self._ended = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        if self._file is not None:
            self._file.open()

    @checked(timeout_ms=whole(0))
    async def close(self, timeout_ms: int = CLOSE_MS) -> None:
        """Let running listeners finish, commit final offsets, leave the consumer group, disconnect.

        Listeners that take longer than `timeout_ms` are cancelled; their messages are delivered again. When a
        listener calls this, it returns at once, and the consumer closes after the listener has returned. A
        second call waits for the first one.
        """
        self._channels.check_loop()
        if self._closing is None:
            self._ended.set()
            self._closing = asyncio.create_task(self._close(timeout_ms), name="ledgermq-close")
        if not self._calls.is_calling:
            await asyncio.shield(self._closing)  # a cancelled caller does not stop the shutdown

    @property
    def _closed(self) -> bool:
        return self._closing is not None

    async def _close(self, timeout_ms: int) -> None:
        groups = list(self._groups.values())
        await asyncio.gather(*(group.close() for group in groups))
        await self._calls.close(timeout_ms / 1000)
        await asyncio.gather(*(group.leave() for group in groups), *self._ending)
        if self._trace is not None:
            await self._trace.close()
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
        await self._routes.close()
        await self._channels.close()

    async def run(self) -> None:
        """Wait until the consumer is closed.

        Raises: UsageError (no subscription); errors that a retry cannot heal, such as RefusedError.
        """
        self._channels.check_loop()
        if not (self._filters or self._ended.is_set()):
            raise UsageError("this consumer has no subscription", "", "Call subscribe() first")
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    # --- subscriptions --------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, expression: str = "*") -> None:
        """Consume a topic. `expression` selects tags: "*", or "a || b".

        The other consumers of the consumer group should subscribe alike.
        Raises: TopicNotFoundError, NoBrokersError, NameserversDownError, InvalidNameError, UsageError (not a
        tag filter, or another filter than before), ClosedError.
        """
        check_name("topic", topic)
        check_tag_filter(expression)
        if self._closed:
            raise ClosedError("consumer")
        if self._filters.get(topic, expression) != expression:
            what = f'topic "{topic}" is subscribed with the filter {self._filters[topic]!r}'
            raise UsageError(what, "Messages may have passed it already", "Make another consumer")
        route = await self._routes.get(topic)
        self._filters[topic] = expression
        self._use(route, self._start)

    def _on_route(self, route: TopicRoute) -> None:
        if not self._closed and route.topic in self._filters:
            self._use(route, self._late_start)

    @property
    def _late_start(self) -> str:
        """Start position in a broker group that appears later. "latest" means when this consumer began."""
        return str(self._began_ms) if self._start == "latest" else self._start

    def _use(self, route: TopicRoute, start: str) -> None:
        """Take a route: use new broker groups, update the others."""
        for part in route.parts:
            group = self._groups.get(part.group.name)
            if group is not None and part.group.is_another(group.group):
                self._replaced(group)
                group = None
            if group is None:
                group = self._groups[part.group.name] = self._make(part.group, start)
            else:
                group.update(part.group)
        for name, group in self._groups.items():
            if isinstance(group, BroadcastGroup):
                group.read(route.topic, route.part(name))
            elif isinstance(group, MemberGroup):
                group.subscribe(self._topics_in(name, route))
        for name in [each for each in self._groups if not self._topics_in(each, route)]:
            self._lost(name)

    def _lost(self, name: str) -> None:
        """No route names a broker group: it is silent and may return, or was drained and removed for good."""
        group = self._groups[name]
        if not group.group.draining:
            group.unlisted()
            return
        logger.info("broker group was removed broker_group=%s", name)
        self._end_later(group)

    def _replaced(self, group: QueueGroup) -> None:
        """Another broker group has the name: progress in the former one does not apply to it."""
        logger.warning(
            "broker group was replaced by another one of its name broker_group=%s", group.group.name
        )
        for owned in list(group.queues.values()):
            group.lose(owned)
        self._end_later(group)

    def _end_later(self, group: QueueGroup) -> None:
        name = group.group.name
        del self._groups[name]
        group.end()
        task = asyncio.create_task(self._end(group), name=f"ledgermq-end-{name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, group: QueueGroup) -> None:
        """Leave a broker group that was removed: try to commit, then drop its queues."""
        await group.close()
        await group.leave()
        for owned in list(group.queues.values()):
            group.lose(owned)

    def _make(self, group: BrokerGroup, start: str) -> QueueGroup:
        if self._file is not None:
            return BroadcastGroup(self._shared, group, self._file, start)
        return MemberGroup(self._shared, group, start)

    def _topics_in(self, broker_group: str, route: TopicRoute) -> list[str]:
        """Return the subscribed topics that a broker group has."""
        routes = {topic: self._routes.cached(topic) for topic in self._filters} | {route.topic: route}
        return [topic for topic, each in routes.items() if each is not None and each.part(broker_group)]

    # --- called by its parts --------------------------------------------------------------------------------

    def _on_done(self, owned: OwnedQueue, moved: bool) -> None:
        if (its := self._groups.get(owned.queue.broker_group)) is not None:
            its.on_done(owned, moved)
        self._look_for_room()

    def _look_for_room(self) -> None:
        for group in self._groups.values():  # all share one byte budget
            group.look_for_room()

    async def _settle(self, owned: OwnedQueue) -> None:
        if (its := self._groups.get(owned.queue.broker_group)) is not None:
            await its.commits.settled(owned)

    async def _refresh(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                await self._routes.get(topic, refresh=True)
            except LedgerMQError as error:
                logger.info("route not refreshed topic=%s reason=%s", topic, error)

    def _fail(self, error: LedgerMQError) -> None:
        if self._failure is None:  # only the first failure: some repeat
            logger.error("consumer failed group=%s reason=%s", self.group, error)
            self._failure = error
        self._ended.set()

    # --- observation ----------------------------------------------------------------------------------------

    def statistics(self) -> ConsumerStatistics:
        """Return current statistics without a call. `end_offset` and lag are as of the last answers."""
        counters, groups = self._calls.counters, self._groups.values()
        errors = [
            f"offsets are not stored: {each.commits.last_error}" for each in groups if each.commits.last_error
        ]
        return ConsumerStatistics(
            consumed=counters.consumed,
            failed=counters.failed,
            skipped=counters.skipped,
            filtered=counters.filtered,
            deleted=sum(group.deleted for group in groups),
            queues=tuple(
                sorted(
                    (statistics_of(owned) for group in groups for owned in group.queues.values()),
                    key=lambda s: s.queue,
                )
            ),
            members={each.group.name: each.members for each in groups if isinstance(each, MemberGroup)},
            warnings=tuple(dict.fromkeys([*(w for group in groups for w in group.warnings), *errors])),
        )  # fmt: skip

    async def lag(self) -> dict[MessageQueue, int]:
        """Ask the brokers how many messages of each queue the whole consumer group has not finished.

        Without a commit, that is the whole queue. Raises: TopicNotFoundError, BrokerUnreachableError,
        RefusedError.
        """
        here = {
            each.queue: each.progress.position
            for group in self._groups.values()
            for each in group.queues.values()
        }
        offsets = ConsumerGroupOffsets(self.group, self._channels, self._find)
        found = {}
        for topic in self._filters:
            for part in (await self._routes.get(topic)).parts:
                for queue, each in (await offsets.query(topic, part.group.name)).items():
                    stored = each.offset if self._file is None else -1
                    done = max(here.get(queue, -1), stored, each.begin_offset)
                    found[queue] = max(each.end_offset - done, 0)
        return found

    def _find(self, topic: str, broker_group: str) -> BrokerGroup:
        """Return the current broker group. Raises: TopicNotFoundError."""
        route = self._routes.cached(topic)
        part = route.part(broker_group) if route else None
        if part is None:
            raise TopicNotFoundError(topic)
        return part.group

"""Wanted queues of a pull consumer: assigned ones, and all of its subscribed topics, including later ones.

Queues of broker groups that answer are read at once. A broker group that does not answer, or is created
later, joins when it answers.
Owns: queues that are wanted and not read yet, their start offsets, one task per missing broker group.
Must not: fetch, commit. Invariant: a queue is either read, missing, or not wanted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from ledgermq.proto import log_pb2 as pb

from ..cluster.routes import Routes
from ..cluster.topic_route import TopicRoute
from ..errors import LedgerMQError, RouteError, UsageError
from ..event_loop import happens
from ..message import MessageQueue
from ..pauses import ATTEMPT_TIMEOUT_S, CALL_TIMEOUT_S, JOIN_PATIENCE_S, ROUTE_AGAIN_S
from .offsets import ConsumerGroupOffsets
from .queue_fetcher import QueueFetcher

logger = logging.getLogger(__name__)


Part = tuple[str, str]  # topic, broker group


class WantedQueues:
    """Call `subscribe` or `assign`; the reader then reads. Call close()."""

    def __init__(
        self, routes: Routes, reader: QueueFetcher, offsets: ConsumerGroupOffsets, start: str
    ) -> None:
        """`start`: "earliest" or "latest", for queues without a committed offset."""
        self._routes = routes
        self._routes.on_change(self._on_route)
        self._reader = reader
        self._offsets = offsets
        self._start = start
        self._topics: dict[str, int] = {}  # subscribed topic → time of subscription, ms
        self._left: set[MessageQueue] = set()  # queues of subscribed topics that the user unassigned
        self._missing: dict[MessageQueue, int] = {}  # wanted and not read yet → wanted since, ms
        self._joining: dict[Part, asyncio.Task[None]] = {}
        self._news = asyncio.Event()  # set and replaced when a route changes

    async def close(self) -> None:
        """Stop waiting for missing broker groups."""
        self._missing.clear()
        tasks = list(self._joining.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def missing(self) -> tuple[MessageQueue, ...]:
        """Wanted queues whose broker groups have not answered yet."""
        return tuple(self._missing)

    @property
    def is_empty(self) -> bool:
        return not (self._missing or self._reader.has_queues)

    async def subscribe(self, topic: str) -> None:
        """Read all queues of a topic, including later ones. Raises: as `assign`."""
        since = _now_ms()
        route = await self._routes.get(topic)
        self._left = {queue for queue in self._left if queue.topic != topic}
        known = topic in self._topics
        self._topics.setdefault(topic, since)
        try:
            await self.assign(route.queues, since)
        except LedgerMQError:
            if not known:
                self.unsubscribe(topic)
            raise

    def unsubscribe(self, topic: str) -> None:
        """Stop reading all queues of a topic."""
        self._topics.pop(topic, None)
        self._left = {queue for queue in self._left if queue.topic != topic}
        self.unassign([queue for queue in (*self._reader.queues, *self._missing) if queue.topic == topic])

    async def assign(self, queues: Iterable[MessageQueue], since: int = 0) -> None:
        """Read these queues from their committed offsets, as soon as their broker groups answer.

        Queues that are already read continue; those of replaced broker groups start afresh in the new ones.

        Returns when the live broker groups have joined. Raises: UsageError (a queue does not exist),
        TopicNotFoundError; if no broker group answered, the first failure. After an error nothing is wanted.
        """
        wanted = [queue for queue in queues if queue not in self._reader or queue in self._reader.replaced]
        for topic in {queue.topic for queue in wanted}:
            await self._check_route(topic, wanted)
        self._left.difference_update(wanted)
        self._reader.give_up([queue for queue in wanted if queue in self._reader])  # they start afresh
        for queue in wanted:
            self._missing.setdefault(queue, since or _now_ms())
        try:
            await self._join_all({(queue.topic, queue.broker_group) for queue in wanted})
        except BaseException:
            for queue in wanted:
                self._missing.pop(queue, None)
            raise
        self._join_later()

    async def _check_route(self, topic: str, wanted: list[MessageQueue]) -> None:
        known = (await self._routes.get(topic)).queues
        for queue in wanted:
            if queue.topic == topic and queue not in known:
                raise UsageError(f"{queue} does not exist", "", f"See: ledgermq topic describe {topic}")

    def unassign(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading these queues. Those of a subscribed topic do not come back by themselves."""
        for queue in queues:
            self._missing.pop(queue, None)
            if queue.topic in self._topics:
                self._left.add(queue)
            self._reader.give_up([queue])

    # --- joining --------------------------------------------------------------------------------------------

    async def _join_all(self, parts: set[Part]) -> None:
        """Let broker groups join concurrently; return when the live ones have.

        Raises: the first failure, when none could join; any error that a retry cannot heal.
        """
        joins = {asyncio.create_task(self._join(*part)): part for part in parts}
        try:
            done, waiting = await self._until_one_joined(set(joins))
            living = {task for task in waiting if self._is_alive(joins[task])}
            if living:
                done |= (await asyncio.wait(living, timeout=JOIN_PATIENCE_S))[0]
        finally:
            for task in joins:
                task.cancel()
            await asyncio.gather(*joins, return_exceptions=True)
        failures = [error for task in done if (error := task.exception()) is not None]
        final = [error for error in failures if not (isinstance(error, LedgerMQError) and error.retryable)]
        if final or (failures and len(failures) == len(done)):
            raise (final or failures)[0]

    async def _until_one_joined(
        self, waiting: set[asyncio.Task[None]]
    ) -> tuple[set[asyncio.Task[None]], set[asyncio.Task[None]]]:
        """Return (done, waiting) when one has joined or all have failed."""
        done: set[asyncio.Task[None]] = set()
        while waiting and all(task.exception() is not None for task in done):
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        return done, waiting

    def _is_alive(self, part: Part) -> bool:
        """Tell whether the nameserver reports a live node of the broker group."""
        topic, name = part
        route = self._routes.cached(topic)
        found = route.part(name) if route else None
        return found is not None and any(node.alive for node in found.group.nodes)

    def _join_later(self) -> None:
        """Ensure that every missing broker group has a task."""
        for queue in self._missing:
            part = (queue.topic, queue.broker_group)
            task = self._joining.get(part)
            if task is None or task.done():
                self._joining[part] = asyncio.create_task(
                    self._join_late(*part), name=f"ledgermq-join-{queue.broker_group}"
                )

    async def _join_late(self, topic: str, name: str) -> None:
        """Ask a broker group repeatedly until its queues are read, or no longer wanted."""
        told = False
        while self._missing_of(topic, name):
            news = self._news
            try:
                await self._join(topic, name, late=True)
            except LedgerMQError as error:
                if not told:
                    text = "broker group is missing, the others are read topic=%s broker_group=%s reason=%s"
                    logger.warning(text, topic, name, error)
                    told = True
                if not error.retryable and not isinstance(error, RouteError):
                    self._forget(topic, name)
            if self._missing_of(topic, name):
                await happens(news, ROUTE_AGAIN_S)

    async def _join(self, topic: str, name: str, *, late: bool = False) -> None:
        """Look up where a broker group's missing queues start; read them. Raises: as call_broker_group."""
        asked = (await self._routes.get(topic)).part(name)
        if asked is None:
            return  # it left the route; its return changes the route
        since = (
            min(self._missing_of(topic, name).values(), default=0) if late and self._start == "latest" else 0
        )
        found = await self._offsets.query(
            topic,
            name,
            timestamp=since,
            allow_stale=True,
            timeout_s=ATTEMPT_TIMEOUT_S if late else CALL_TIMEOUT_S,
        )
        route = self._routes.cached(topic)  # the route may have changed meanwhile
        part = route.part(name) if route else None
        if part is not None and part.group.is_another(asked.group):
            return  # the answer may be from the former broker group
        for queue in self._missing_of(topic, name):
            if part is not None and queue in found:
                del self._missing[queue]
                self._reader.read(part, queue, self._start_offset(queue, found[queue]))
        if late and not self._missing_of(topic, name):
            logger.info("broker group joined topic=%s broker_group=%s", topic, name)

    def _start_offset(self, queue: MessageQueue, found: pb.QueueOffset) -> int:
        """Return the start offset. With start="latest", a late queue starts when it was asked for."""
        begin, end = found.begin_offset, found.end_offset
        if found.lost:
            begin = self._reader.on_deleted(queue, found.lost, begin, end)
            return begin if self._reader.when_deleted == "latest" else found.offset
        if found.offset >= 0:
            return found.offset
        if self._start == "earliest":
            return begin
        return found.time_offset if found.HasField("time_offset") else end

    def _missing_of(self, topic: str, name: str) -> dict[MessageQueue, int]:
        return {
            queue: since
            for queue, since in self._missing.items()
            if (queue.topic, queue.broker_group) == (topic, name)
        }

    def _forget(self, topic: str, name: str) -> None:
        for queue in self._missing_of(topic, name):
            del self._missing[queue]

    def _on_route(self, route: TopicRoute) -> None:
        """A route changed: a subscribed topic may have more queues, a missing broker group may be back."""
        since = self._topics.get(route.topic)
        if since is not None:
            for queue in route.queues:
                if queue not in self._reader and queue not in self._left:
                    self._missing.setdefault(queue, since)
            self._join_later()
        news, self._news = self._news, asyncio.Event()
        news.set()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""Rerouting: fetches a route that turned out to be outdated, and decides about the messages that wait on it.

Owns: which messages move to another broker group, and which fail because their topic no longer exists.
Must not: decide what a refusal means (`retry_policy` does), or give up what may have been stored.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from ..cluster.routes import Routes
from ..errors import LedgerMQError, TopicNotFoundError
from .outbox import Outbox
from .produce_stream import GroupConnection, now_ms
from .send_window import Failed

logger = logging.getLogger(__name__)


#: Fails the callers of a section: (section, its connection, function that makes the error of each message).
Fail = Callable[[Failed, GroupConnection, Callable[[], Exception]], Any]


class OldRoutes:
    """Refreshes the routes of one producer. `connections` is keyed by the name of the broker group."""

    def __init__(
        self,
        routes: Routes,
        outbox: Outbox,
        connections: Mapping[str, GroupConnection],
        fail: Fail,
    ) -> None:
        self._routes = routes
        self._outbox = outbox
        self._connections = connections
        self._fail = fail

    async def refresh(self, topic: str, refused_by: GroupConnection | None = None) -> None:
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
            self.move_sections(refused_by, topic)

    def _forget(self, topic: str, error: TopicNotFoundError) -> None:
        """Fail what is certainly not stored. What is in flight will be refused, which leads here again."""
        self._routes.forget(topic)
        self._outbox.forget(topic)
        for connection in self._connections.values():
            for failed in connection.window.give_up(topic):
                self._fail(failed, connection, error.again)

    def move_sections(self, source: GroupConnection, topic: str | None = None) -> None:
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

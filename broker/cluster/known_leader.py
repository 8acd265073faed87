"""The leader of this broker group as this node knows it, with a way to wait for changes.

Owns: the leader's id, term and readiness on the event-loop thread. Must not: decide anything; Raft does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Leadership:
    """Updated by the Raft node's callbacks, read by services."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.leader_id: str | None = None  # None: not known
        self.term = 0
        self.ready = False  # this node leads and serves. Invariant: leader_id == node_id while True
        self.changes = 0  # count of changes; compare it to detect one that came between two looks
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change.

        Not a constructor argument: listeners are made after the Raft node, which updates this object.
        """
        self._listeners.append(listener)

    def on_ready(self, term: int) -> None:
        """Record that this node leads and has applied its no-op."""
        self.leader_id, self.term, self.ready = self.node_id, term, True
        self._changed()

    def on_lost(self) -> None:
        """Record that this node no longer leads; the next leader is not known yet."""
        self.ready = False
        if self.leader_id == self.node_id:
            self.leader_id = None
        self._changed()

    def on_changed(self, leader_id: str | None, term: int) -> None:
        """Record that another leader is known, or none."""
        self.leader_id, self.term = leader_id, term
        if leader_id != self.node_id:
            self.ready = False
        self._changed()

    @property
    def is_elected(self) -> bool:
        """Whether this node leads, even if it does not serve yet because its no-op is not applied."""
        return self.leader_id == self.node_id

    @property
    def known_other(self) -> str | None:
        """The leader's id when another node leads, else None."""
        return self.leader_id if self.leader_id != self.node_id else None

    async def wait_change(self, timeout: float) -> None:
        """Return after the next change, or after `timeout` seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout)
        finally:
            self._waiters.discard(waiter)

    async def wait_settled(self, timeout: float) -> None:
        """Return when this node serves or another leader is known, after `timeout` seconds at the latest."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while not self.ready and self.known_other is None and (rest := end - loop.time()) > 0:
            await self.wait_change(rest)

    def _changed(self) -> None:
        self.changes += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in self._listeners:
            listener()

"""Answers that peers have asked for and do not read, over all connections of the servers that share a budget.

Owns: their count, and which connection ends when they are too many. Must not: know frames.

A peer that opens large windows and does not read makes this side keep what it asked for. Windows bound that
for each stream only. The largest holder is not counted, so that one answer of any size can be sent. Beyond
`limit`, connections end that have taken nothing for UNREAD_S; beyond twice `limit`, those that have taken
nothing for the longest time.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from .wire_limits import CHECK_S, UNREAD_S

_REASON: Final = "the peer does not read its answers, and memory for answers is scarce"


class AnswerReader(Protocol):
    """A connection."""

    @property
    def unsent(self) -> int:
        """Bytes of messages that it holds, those in the transport's buffer included."""

    @property
    def moved_at(self) -> float:
        """The loop's time when the peer last took something."""

    def end_unread(self, reason: str) -> None:
        """End the connection, which holds nothing then."""


class UnsentMemory:
    """Budget of one or more servers. All methods are called on the loop's thread."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes."""
        self.limit = limit
        self.held = 0
        self._readers: dict[AnswerReader, None] = {}  # with unsent bytes
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0

    def on_change(self, reader: AnswerReader, change: int) -> None:
        """Note that a connection holds `change` bytes more."""
        self.held += change
        if reader.unsent:
            self._readers[reader] = None
        else:
            self._readers.pop(reader, None)
        if change > 0 and self.held > self.limit:
            self._look_within(CHECK_S if self.held <= 2 * self.limit else 0.0)

    def _look_within(self, delay: float) -> None:
        """Check soon, and not in the midst of a write, which an ended connection would disturb."""
        loop = asyncio.get_running_loop()
        at = loop.time() + delay
        if self._timer is not None:
            if self._look_at <= at:
                return
            self._timer.cancel()
        self._timer, self._look_at = loop.call_later(delay, self._look), at

    def _check(self) -> None:
        """End connections until the rest fits, those first that have not moved for the longest time."""
        largest = max(self._readers, key=lambda each: each.unsent, default=None)
        if largest is None or self.held - largest.unsent <= self.limit:
            return
        # Both orders are made once: there may be thousands, and this is the event loop.
        by_size = iter(sorted(self._readers, key=lambda each: each.unsent, reverse=True))
        now = asyncio.get_running_loop().time()
        for reader in sorted(self._readers, key=lambda each: each.moved_at):
            while largest is not None and not largest.unsent:  # it was ended, so the next one is not counted
                largest = next(by_size, None)
            counted = self.held - (largest.unsent if largest is not None else 0)
            if counted <= self.limit or (now - reader.moved_at < UNREAD_S and counted <= 2 * self.limit):
                return
            reader.end_unread(_REASON)

    def _look(self) -> None:
        self._timer = None
        self._check()
        if self.held > self.limit:
            self._look_within(CHECK_S)

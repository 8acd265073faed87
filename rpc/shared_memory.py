"""Received bytes that nobody has read yet, over all connections that share a budget.

Owns: their count, and which connections may go on when the budget is exhausted. Must not: know frames.

Windows bound each connection, not all of them: most peers never use theirs, so windows promise far more than
there is. Beyond `limit` a connection that holds more than SMALL_SHARE stops reading its socket, until others
have freed memory. So calls of ordinary size never wait for it, and three rules keep large ones from waiting
without end:

* One connection, the favoured, reads on until its messages are whole, whatever their size; what it holds
  does not count for the others. If they still wait after FAVOUR_S, it loses these messages.
* A connection that holds part of a message and sends less than MIN_RATE of it, although nothing but its peer
  keeps it from sending, loses that message. So peers that only take memory do not keep it.
* Beyond twice `limit` an incomplete message that does not belong to the favoured one is dropped when more of
  it comes.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Final, Protocol

from .turns import Turns
from .unsent_memory import UnsentMemory
from .wire_limits import CHECK_S, FAVOUR_S, MIN_RATE, READ_AHEAD, SMALL_SHARE, STALL_S, WireLimits

logger = logging.getLogger(__name__)

#: Seconds between two log lines.
_LOG_PAUSE_S: Final = 60.0


class MemoryUser(Protocol):
    """A connection."""

    @property
    def held(self) -> int:
        """Bytes that it holds."""

    @property
    def received(self) -> int:
        """Bytes of messages that were not whole when they came, since its begin."""

    @property
    def waits_for_reader(self) -> bool:
        """Whether there are whole messages that nobody has read."""

    @property
    def is_receiving(self) -> bool:
        """Whether part of a message is there."""

    def stop_reading(self) -> None:
        """Read nothing more from the socket."""

    def read_on(self) -> None:
        """Read from the socket again."""

    def drop_incomplete(self, reason: str) -> None:
        """End the calls of incomplete messages."""


class SharedMemory:
    """Budget of one or more servers, or of a channel. All methods are called on the loop's thread."""

    def __init__(self, limit: int, answers: UnsentMemory | None = None) -> None:
        """`limit`: bytes. `answers`: the budget for the other direction, of servers."""
        self.limit = limit
        self.answers = answers
        self.turns = Turns()
        self.held = 0
        self.incomplete = 0  # messages
        #: Connections that hold part of a message: (time, bytes received) of the last look at them.
        self._marks: dict[MemoryUser, tuple[float, int]] = {}
        self.stopped: dict[MemoryUser, None] = {}  # who does not read its socket, oldest first
        self._favoured: MemoryUser | None = None
        self._favoured_at = 0.0
        self._checked = self._logged = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of_servers(cls, limits: WireLimits) -> SharedMemory:
        """Return the budget of all servers that get it, in both directions."""
        return cls(limits.total_memory, UnsentMemory(limits.total_unsent))

    @property
    def is_exhausted(self) -> bool:
        """Whether large messages have to wait."""
        return self._counted > self.limit

    @property
    def _counted(self) -> int:
        return self.held - (self._favoured.held if self._favoured is not None else 0)

    def must_drop(self, user: MemoryUser) -> bool:
        """Whether there is no memory left for the incomplete message that `user` receives."""
        return self._counted > 2 * self.limit and user is not self._favoured

    def on_received(self, user: MemoryUser) -> None:
        """Look at a connection that has received DATA, as it holds part of a message or others hold much."""
        if user.is_receiving and user not in self._marks:
            self._mark(user)
        if not self.is_exhausted or user.held <= SMALL_SHARE:
            return
        self._end_stalled()
        if not self.is_exhausted or user is self._favoured:
            return
        if self._favoured is None and user.is_receiving:
            self._favour(user)
            return
        self.stopped[user] = None
        user.stop_reading()
        self._look_later()

    def on_freed(self, user: MemoryUser) -> None:
        """Note that a connection holds less, or nothing any more."""
        if not user.is_receiving:
            self._marks.pop(user, None)
        if user is self._favoured and not user.is_receiving:
            self._favour_next()
        if user in self.stopped and user.held <= SMALL_SHARE:
            self._resume(user)
        if self.stopped and not self.is_exhausted:
            self._let_read()

    def forget(self, user: MemoryUser) -> None:
        """Note that a connection holds nothing of this budget any more: it has ended, or uses another."""
        self.stopped.pop(user, None)
        self._marks.pop(user, None)
        if user is self._favoured:
            self._favour_next()
        if self.stopped and not self.is_exhausted:
            self._let_read()

    def _mark(self, user: MemoryUser) -> None:
        self._marks[user] = asyncio.get_running_loop().time(), user.received

    def _favour_next(self) -> None:
        self._favour(next((each for each in self.stopped if each.is_receiving), None))
        if self._favoured is not None:
            self._resume(self._favoured)

    def _favour(self, user: MemoryUser | None) -> None:
        self._favoured = user
        self._favoured_at = asyncio.get_running_loop().time()

    def _let_read(self) -> None:
        """Let as many connections read as there is room for what each may read in one turn."""
        for user in list(islice(self.stopped, max(1, (self.limit - self._counted) // READ_AHEAD))):
            self._resume(user)

    def _resume(self, user: MemoryUser) -> None:
        del self.stopped[user]
        if user.is_receiving:
            self._mark(user)
        user.read_on()

    def _end_stalled(self) -> None:
        """Drop incomplete messages of peers that do not go on with them."""
        now = asyncio.get_running_loop().time()
        if now - self._checked < CHECK_S:
            return
        self._checked = now
        if now - self._logged >= _LOG_PAUSE_S:
            self._logged = now
            logger.warning(
                "large requests wait for memory held=%d limit=%d connections=%d: those that come too slowly "
                "are dropped; look for clients that begin large requests and do not go on",
                self.held, self.limit, len(self._marks),
            )  # fmt: skip
        for user in list(self._marks):
            if not self.is_exhausted:
                return
            since, received = self._marks.get(user, (now, 0))  # the drop of another may have changed it
            if user in self.stopped or now - since < STALL_S:
                continue
            if user.received - received < MIN_RATE * (now - since) and not user.waits_for_reader:
                user.drop_incomplete("memory for requests is scarce, and this one came too slowly")
            else:
                self._mark(user)

    def _look_later(self) -> None:
        if self._timer is None and self.stopped:
            self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self._end_stalled()
        favoured_s = asyncio.get_running_loop().time() - self._favoured_at
        if self.stopped and self._favoured is not None and favoured_s >= FAVOUR_S:
            self._favoured.drop_incomplete("memory for requests is scarce, and others wait for this one")
        if self.stopped:
            if self._favoured is None:
                self._favour_next()
            if not self.is_exhausted:
                self._let_read()
        self._look_later()

"""The watch over one connection: a peer that never speaks HTTP/2, falls silent, or opens no stream.

Owns: the timer of a connection and what it looks at. Must not: read frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, Protocol

from . import http2_frames as h2
from .http2_output import Http2Output
from .wire_limits import WireLimits

_PING: Final = b"ledgermq"
_NOT_GREETED: Final = "no HTTP/2 within {:g} s: use a gRPC client; a health check has a port of its own"


class Watched(Protocol):
    """The connection."""

    def close(self, code: int, reason: str) -> None:
        """End when everything sent has left."""

    def abort(self, reason: str) -> None:
        """End at once."""


class Keepalive:
    """Timer of one connection. All methods are called on the loop's thread."""

    __slots__ = ("_is_server", "_limits", "_loop", "_open", "_output", "_timer", "_user", "asked",
                 "heard_at", "idle_since", "is_reading")  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: WireLimits,
        user: Watched,
        output: Http2Output,
        open_streams: Collection[int],
        is_server: bool,
    ) -> None:
        """`open_streams`: empty while there are none."""
        self.heard_at = 0.0  # when bytes came
        self.asked = False  # a PING waits for a sign of life
        self.idle_since = 0.0  # when the last stream was closed
        self.is_reading = True  # else silence means nothing
        self._loop = loop
        self._limits = limits
        self._user = user
        self._output = output
        self._open = open_streams
        self._is_server = is_server
        self._timer: asyncio.TimerHandle | None = None

    def await_greeting(self) -> None:
        """End the connection if `watch` is not called soon."""
        self.schedule(self._limits.handshake_s, self._end_not_greeted)

    def watch(self) -> None:
        """Begin to look for silence and idleness."""
        self.schedule(self._next_look(0.0, 0.0), self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def schedule(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` later, and nothing else that was scheduled; 0 s: never."""
        self.stop()
        self._timer = self._loop.call_later(delay_s, action) if delay_s else None

    def _end_not_greeted(self) -> None:
        self._user.abort(_NOT_GREETED.format(self._limits.handshake_s))

    def _next_look(self, idle_s: float, silent_s: float) -> float:
        """Return the time to the next look at a connection without a stream, or a frame, for so long."""
        limits = self._limits
        look_s = limits.keepalive_s
        if silent_s < look_s:
            look_s -= silent_s
        if not limits.max_idle_s or not self._is_server:
            return look_s
        return min(look_s or limits.max_idle_s, limits.max_idle_s - idle_s)

    def _look(self) -> None:
        """Ask a silent peer, end a connection that does not answer or has no streams."""
        limits = self._limits
        now = self._loop.time()
        idle_s = 0.0 if self._open else now - self.idle_since
        silent_s = now - self.heard_at
        if self._is_server and limits.max_idle_s and idle_s >= limits.max_idle_s:
            self._user.close(h2.NO_ERROR, "idle")
            return
        is_due = limits.keepalive_s and self.is_reading and silent_s >= limits.keepalive_s
        if not is_due or not (self._is_server or self._open):
            self.asked = False
            self.schedule(self._next_look(idle_s, silent_s), self._look)
        elif not self.asked:
            self.asked = True
            self._output.emit(h2.frame(h2.PING, 0, 0, _PING))
            self.schedule(limits.keepalive_timeout_s, self._look)
        else:
            self._user.abort(f"no answer to a PING within {limits.keepalive_timeout_s:g} s")

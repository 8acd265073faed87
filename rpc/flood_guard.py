"""Limits on what a peer sends to no purpose on one connection: frames that bring nothing, and resets.

Owns: the allowance for each, and which frames do not count. Must not: read frames.
"""

from __future__ import annotations

import asyncio

from . import http2_frames as h2
from .allowance import Allowance
from .http2_frames import Http2ConnectionError
from .http2_output import Http2Output
from .wire_limits import IDLE_FRAMES, IDLE_FRAMES_PER_S, RESETS, RESETS_PER_S


class FloodGuard:
    """Counters of one connection. All methods are called on the loop's thread."""

    __slots__ = ("_idle_frames", "_is_server", "_loop", "_output", "_resets")

    def __init__(self, loop: asyncio.AbstractEventLoop, output: Http2Output, is_server: bool) -> None:
        self._loop = loop
        self._output = output
        self._is_server = is_server
        self._idle_frames = Allowance(IDLE_FRAMES, IDLE_FRAMES_PER_S, loop.time())
        self._resets = Allowance(RESETS, RESETS_PER_S, loop.time())

    def spend_explained(self) -> bool:
        """Count a frame of the peer as an effect of our DATA. False: there was not enough of it."""
        if self._output.frames_due <= 0:
            return False
        self._output.frames_due -= 1
        return True

    def spend_idle(self, frames: int = 1) -> None:
        """Count a frame that brings nothing, or one that costs as much as `frames` of them.

        Raises: Http2ConnectionError.
        """
        if not self._idle_frames.spend(self._loop.time(), frames):
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def spend_reset(self) -> None:
        """Count a stream of the peer that was reset; a client opens its streams itself.

        Raises: Http2ConnectionError.
        """
        if self._is_server and not self._resets.spend(self._loop.time()):
            raise Http2ConnectionError(h2.ENHANCE_YOUR_CALM, "too many streams were reset")

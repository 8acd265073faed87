"""Connections with more frames to take than one turn of the loop allows.

Owns: their order. Must not: know frames.

One of them goes on in each turn, whatever their number: so many clients that send tiny calls at once hold up
the loop no longer than one does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """The order of connections that share a budget. All methods are called on the loop's thread."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn, after those that wait already."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()  # may wait again, as the last one
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)

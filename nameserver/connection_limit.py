"""How many connections a nameserver takes, and the line in its log when it is full.

gRPC enforces the limit and tells nobody; nearly every open file of a nameserver is a connection, so their number says it.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from typing import Final

logger = logging.getLogger(__name__)

#: Descriptors for what is no connection, where the limit of the process has room for so many.
RESERVE: Final = 100
#: The log says that it is full when so much of the limit is in use, and that it has room again below the other.
_FULL, _ROOM = 0.99, 0.9
_DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def connections_per_listener(wanted: int, listeners: int) -> int:
    """Return the limit of each listener: `wanted`, or what there are descriptors for once as many as may be are allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError) as error:
        logger.warning("the limit of open files stays at %d reason=%s", soft, error)
    if soft == resource.RLIM_INFINITY:
        return wanted
    limit = max(min(wanted, (soft - min(RESERVE, soft // 2)) // max(listeners, 1)), 1)
    if limit < wanted:
        logger.info(
            "each listener takes %d connections instead of %d: this process may open %d files; raise that limit "
            "(ulimit -n, LimitNOFILE) for more",
            limit, wanted, soft,
        )  # fmt: skip
    return limit


def open_descriptors() -> int:
    """Return how many files, connections included, this process has open; 0 where the system does not tell."""
    try:
        return len(os.listdir(_DESCRIPTORS))  # noqa: PTH208 (their number is wanted, not their paths)
    except OSError:
        return 0


class FullListeners:
    """Says in the log when all connections are in use. Call `look()` now and then."""

    def __init__(self, limit: int) -> None:
        """`limit`: connections of all listeners together."""
        self._limit = limit
        self._at_start: int | None = None
        self._is_full = False

    def look(self) -> None:
        """Count, and tell of a change."""
        found = open_descriptors()
        if self._at_start is None:
            self._at_start = found
        connections = found - self._at_start
        if not self._is_full and connections >= _FULL * self._limit:
            self._is_full = True
            logger.warning(
                "connections refused reason=limit open=%d limit=%d: as many are open as this nameserver takes; look for "
                "clients that open one per request",
                connections, self._limit,
            )  # fmt: skip
        elif self._is_full and connections < _ROOM * self._limit:
            self._is_full = False
            logger.info("connections taken again open=%d limit=%d", connections, self._limit)

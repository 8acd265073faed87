"""How many connections a nameserver takes, and the line in its log when it is full.

gRPC enforces the limit of each listener and tells nobody. No listener is full while the process has fewer open files than
one may have connections; only when it has more are they looked at one by one, in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Mapping
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


def connections_by_port() -> Counter[int]:
    """Return how many connections of this process have which local port. Takes 10 µs of an open file."""
    found: Counter[int] = Counter()
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        try:
            borrowed = socket.socket(fileno=int(name))
        except OSError:  # it is no socket, or was closed meanwhile
            continue
        try:
            if borrowed.family in (socket.AF_INET, socket.AF_INET6):
                borrowed.getpeername()  # one that listens has none
                found[borrowed.getsockname()[1]] += 1
        except OSError:
            continue
        finally:
            borrowed.detach()
    return found


class FullListeners:
    """Says in the log when all connections of a listener are in use. Call `look()` now and then."""

    def __init__(self, limit: int, ports: Mapping[str, int]) -> None:
        """`limit`: connections of each listener; `ports`: of the listeners, by name."""
        self._limit = limit
        self._ports = dict(ports)
        self._full: set[str] = set()

    async def look(self) -> None:
        """Count, and tell of a change. A count that fails is made again the next time."""
        if not self._full and open_descriptors() < _FULL * self._limit:
            return
        try:
            found = await asyncio.to_thread(connections_by_port)
        except OSError as error:  # no descriptor for the folder is left
            logger.info("connections not counted reason=%s", error)
            return
        for name, port in self._ports.items():
            self._note(name, found[port], self._limit * list(self._ports.values()).count(port))

    def _note(self, listener: str, connections: int, limit: int) -> None:
        if listener not in self._full and connections >= _FULL * limit:
            self._full.add(listener)
            logger.warning(
                "connections refused listener=%s reason=limit open=%d limit=%d: as many are open as this listener of the "
                "nameserver takes; look for clients that open one per request",
                listener, connections, limit,
            )  # fmt: skip
        elif listener in self._full and connections < _ROOM * limit:
            self._full.discard(listener)
            logger.info("connections taken again listener=%s open=%d limit=%d", listener, connections, limit)

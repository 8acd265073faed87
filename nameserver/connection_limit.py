"""Connection limit of a nameserver, and the log line when it is reached.

gRPC enforces the limit of each listener but does not report it. As long as the process has fewer open files
than one listener may have connections, no listener is full. Only beyond that are connections counted one by
one, in a thread.
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

#: Descriptors reserved for other uses, if the limit of the process leaves room for them.
RESERVE: Final = 100
#: A listener is logged as full above the first share of its limit, and as having room again below the second.
_FULL, _ROOM = 0.99, 0.9
_DESCRIPTORS: Final = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


def connections_per_listener(wanted: int, listeners: int) -> int:
    """Return the limit per listener: `wanted`, or what the descriptors allow.

    Sets the soft limit of descriptors to the hard one first.
    """
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
            "each listener takes %d connections instead of %d: this process may open %d files; raise that "
            "limit (ulimit -n, LimitNOFILE) for more",
            limit, wanted, soft,
        )  # fmt: skip
    return limit


def open_descriptors() -> int:
    """Return the number of open files of this process, including connections; 0 if the system does
    not tell.
    """
    try:
        return len(os.listdir(_DESCRIPTORS))  # noqa: PTH208 (their number is wanted, not their paths)
    except OSError:
        return 0


def connections_by_port() -> Counter[int]:
    """Return the number of connections per local port. Takes 10 µs per open file."""
    found: Counter[int] = Counter()
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        try:
            borrowed = socket.socket(fileno=int(name))
        except OSError:  # not a socket, or closed meanwhile
            continue
        try:
            if borrowed.family in (socket.AF_INET, socket.AF_INET6):
                borrowed.getpeername()  # fails for a listening socket
                found[borrowed.getsockname()[1]] += 1
        except OSError:
            continue
        finally:
            borrowed.detach()
    return found


class FullListeners:
    """Logs when all connections of a listener are in use. Call `look()` periodically."""

    def __init__(self, limit: int, ports: Mapping[str, int]) -> None:
        """`limit`: connections per listener. `ports`: port of each listener, by name."""
        self._limit = limit
        self._ports = dict(ports)
        self._full: set[str] = set()

    async def look(self) -> None:
        """Count connections and log a change. A failed count is repeated at the next call."""
        if not self._full and open_descriptors() < _FULL * self._limit:
            return
        try:
            found = await asyncio.to_thread(connections_by_port)
        except OSError as error:  # no descriptor left to open the folder
            logger.info("connections not counted reason=%s", error)
            return
        for name, port in self._ports.items():
            self._note(name, found[port], self._limit * list(self._ports.values()).count(port))

    def _note(self, listener: str, connections: int, limit: int) -> None:
        if listener not in self._full and connections >= _FULL * limit:
            self._full.add(listener)
            logger.warning(
                "connections refused listener=%s reason=limit open=%d limit=%d: as many are open as this "
                "listener of the nameserver takes; look for clients that open one per request",
                listener, connections, limit,
            )  # fmt: skip
        elif listener in self._full and connections < _ROOM * limit:
            self._full.discard(listener)
            logger.info("connections taken again listener=%s open=%d limit=%d", listener, connections, limit)

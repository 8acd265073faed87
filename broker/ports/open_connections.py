"""Counts of the connections on ports that gRPC accepts by itself, read from the kernel (Linux).

gRPC enforces the limit of such a port, but does not report that it is reached. Owns: the query to the kernel,
and the log line about a full port. Must not: block the event loop; a full port has thousands of connections
to count.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Mapping
from typing import Final

from ledgermq.raft.ports.counts import PortCounts

from ..background import BackgroundWork

logger = logging.getLogger(__name__)

#: Time between two counts, s.
PERIOD_S: Final = 5.0
#: A port is logged as full at the first share of its limit, and as having room again below the second.
_FULL, _ROOM = 0.99, 0.9

# A netlink header (length, type, flags, sequence, sender) and the kernel's sock_diag request: family,
# protocol, extensions, padding, states, then a socket's id: ports (network order), addresses, interface,
# cookie.
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBxI2s2s16s16sIII")
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST and NLM_F_DUMP: return all that match
_ERROR, _DONE = 2, 3
_ESTABLISHED, _CLOSE_WAIT = 1, 8
#: Errors after which the kernel will never answer. Others are temporary: no descriptor, no memory, a timeout.
_NEVER: Final = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EPERM, errno.EACCES, errno.ENOENT)
_STATES: Final = 1 << _ESTABLISHED | 1 << _CLOSE_WAIT


def count_connections(port: int) -> int | None:
    """Return the open connections to a local port; None where the kernel does not tell.

    May take milliseconds.
    """
    try:
        return sum(_count(family, port) for family in (socket.AF_INET, socket.AF_INET6))
    except AttributeError:  # not Linux
        return None
    except OSError as error:
        if error.errno in _NEVER:  # for example in a sandbox
            return None
        raise


def _count(family: int, port: int) -> int:
    wanted = _REQUEST.pack(
        family, socket.IPPROTO_TCP, 0, _STATES, port.to_bytes(2), bytes(2), bytes(16), bytes(16), 0, 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + wanted)
        found = 0
        while True:
            answer, at = kernel.recv(1 << 16), 0
            while at + _HEADER.size <= len(answer):
                size, kind, *_ = _HEADER.unpack_from(answer, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR or size < _HEADER.size:
                    raise OSError(errno.EACCES, "the kernel refuses to list sockets")
                found += kind == _SOCK_DIAG_BY_FAMILY
                at += size + 3 & ~3


class ConnectionWatch(BackgroundWork):
    """Counts the connections of some ports periodically. Use: `start()`, `await stop()`."""

    def __init__(self, ports: Mapping[int, PortCounts]) -> None:
        self._ports = {port: counts for port, counts in ports.items() if port}  # 0 would count every port
        self._full: set[int] = set()  # ports that were logged as full

    def start(self) -> None:
        """Start to count, if there are such ports."""
        if self._ports:
            super().start()

    async def _run(self) -> None:
        """Poll: no event announces these connections."""
        while await self.look():  # noqa: ASYNC110
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> bool:
        """Count once; return whether the kernel supports it."""
        for port, counts in self._ports.items():
            try:
                found = await asyncio.to_thread(count_connections, port)
            except OSError as error:
                logger.info("connections not counted port=%s reason=%s", counts.name, error)
                continue
            if found is None:
                return False
            self.note(port, counts, found)
        return True

    def note(self, port: int, counts: PortCounts, found: int) -> None:
        """Store a count, and log when a port becomes full or has room again."""
        counts.open = found
        if port not in self._full and found >= _FULL * counts.limit:
            self._full.add(port)
            logger.warning(
                "connections refused port=%s reason=limit open=%d limit=%d: as many connections are open as "
                "this port takes; look for clients that open one per message (runbook: too many connections)",
                counts.name, found, counts.limit,
            )  # fmt: skip
        elif port in self._full and found < _ROOM * counts.limit:
            self._full.discard(port)
            logger.info("connections taken again port=%s open=%d limit=%d", counts.name, found, counts.limit)

"""Sockets of connections between nodes: their options, and how one is opened.

Owns: the options that find a vanished peer. Must not: know what is spoken.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

#: A peer that acknowledges nothing for so many ms is gone. Idle ones are probed after 2 s.
_VANISHED_MS: Final = 3_500
_OPTIONS: Final = (
    ("IPPROTO_TCP", "TCP_NODELAY", 1),
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 2),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 1),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 2),
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", _VANISHED_MS),
)


def set_options(stream: socket.socket, options: Sequence[tuple[str, str, int]] = _OPTIONS) -> None:
    """Set options to send small frames at once and detect vanished peers. Accepted sockets inherit them."""
    for level, name, value in options:
        if hasattr(socket, name):  # some exist only on Linux
            stream.setsockopt(getattr(socket, level), getattr(socket, name), value)


async def connect(address: str, protocol: asyncio.BaseProtocol, timeout_s: float) -> None:
    """Open a connection to `host:port`. Raises: OSError (also gaierror and TimeoutError)."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        failed: OSError = OSError(f"{address} has no address")
        for family, kind, number, _, where in found:
            outgoing = socket.socket(family, kind, number)
            try:
                outgoing.setblocking(False)
                set_options(outgoing)
                await loop.sock_connect(outgoing, where)
                await loop.create_connection(lambda: protocol, sock=outgoing)
                return
            except OSError as error:
                outgoing.close()
                failed = error
            except BaseException:
                outgoing.close()
                raise
        raise failed

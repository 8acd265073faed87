"""Sockets of connections between nodes: their options, and how one is opened, with TLS or without.

Owns: the options that find a vanished peer. Must not: know what is spoken.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Final

from ..peer_tls import TlsFailedError, TlsFault, calling_failed

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


async def connect(
    address: str, protocol: asyncio.BaseProtocol, timeout_s: float, tls: ssl.SSLContext | None = None
) -> asyncio.Transport:
    """Open a connection to `host:port`. Raises: OSError (also gaierror and TimeoutError), TlsFailedError.

    With `tls` its handshake may take as long again.
    """
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    async with asyncio.timeout(timeout_s):
        outgoing = await _connected(host, int(port))
    try:
        if tls is None:
            return (await loop.create_connection(lambda: protocol, sock=outgoing))[0]
        return await _secured(outgoing, protocol, timeout_s, tls, host)
    except BaseException:
        outgoing.close()
        raise


async def _connected(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that accepts. Raises: OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed: OSError = OSError(f"{host}:{port} has no address")
    for family, kind, number, _, where in found:
        outgoing = socket.socket(family, kind, number)
        try:
            outgoing.setblocking(False)
            set_options(outgoing)
            await loop.sock_connect(outgoing, where)
            return outgoing
        except OSError as error:
            outgoing.close()
            failed = error
        except BaseException:
            outgoing.close()
            raise
    raise failed


async def _secured(
    outgoing: socket.socket, protocol: asyncio.BaseProtocol, timeout_s: float, tls: ssl.SSLContext, host: str
) -> asyncio.Transport:
    """Give a connection to `protocol` behind a handshake. Raises: TlsFailedError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: protocol, sock=outgoing, ssl=tls, server_hostname=host
            )
    except TimeoutError:
        raise TlsFailedError(TlsFault.SILENT, "no answer to the TLS hello") from None
    except OSError as error:
        raise calling_failed(error, host) from None
    return transport

"""HTTP port of a broker process: /livez, /startupz, /readyz, /healthz, /metrics.

GET and HEAD only, one answer per connection. The port opens before the node does, and stays open while a node
is replaced (a reset, a promotion). Must not: serve anything that changes state, or keep connections open. Few
connections are served at a time, each for a few seconds. What begins like no request is closed at once, and
the log says once per peer what to switch.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from typing import Final

from ledgermq.raft.ports.counts import Ended, PortCounts, Refused
from ledgermq.raft.ports.tls_records import HANDSHAKE
from ledgermq.rpc.foreign_client import refusal_of

from ..config import split_address
from .listeners import PortError, check_port
from .tls_judge import HTTP_WITHOUT_TLS, ONLY_HTTP, TlsJudge

Answer = tuple[int, str, bytes]
Routes = dict[str, Callable[[], Answer]]
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_READ_TIMEOUT: Final = 5.0  # seconds in which the request line and headers must arrive
_ANSWER_TIMEOUT: Final = 10.0  # seconds in which the client must take the answer
#: Most connections at a time, fewer when descriptors are scarce. Monitoring asks a few times a minute.
MAX_CONNECTIONS: Final = 64
TEXT: Final = "text/plain; charset=utf-8"


class _ForeignClientError(Exception):
    """It does not speak HTTP/1.1. The text says what to switch."""


class HttpServer:
    """Answers GET requests from a table of paths; `routes` returns the table in force."""

    def __init__(self, routes: Callable[[], Routes]) -> None:
        self._routes = routes
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.counts = PortCounts("http", limit=min(MAX_CONNECTIONS, descriptors // 16))
        self._judge = TlsJudge("http")
        self._server: asyncio.Server | None = None
        #: Connections that have sent no request yet, the oldest first.
        self._silent: dict[asyncio.WriteTransport, None] = {}

    async def start(self, address: str) -> int:
        """Listen on `address`; return the port. Raises: PortError."""
        check_port("http_bind", address)
        host, port = split_address(address)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=16 * 1024)
        except OSError as error:
            raise PortError("http_bind", address, os.strerror(error.errno or 0)) from None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts, transport = self.counts, writer.transport
        if counts.open >= counts.limit and not self._make_room():
            peer = writer.get_extra_info("peername")
            counts.refuse(Refused.LIMIT, str(peer[0]) if isinstance(peer, tuple) else "")
            transport.abort()
            return
        counts.open += 1
        self._silent[transport] = None
        try:
            head = await asyncio.wait_for(_read_head(reader), _READ_TIMEOUT)
            self._silent.pop(transport, None)
            transport.set_write_buffer_limits(0)  # makes `drain` wait until all is passed to the kernel
            writer.write(render(self.answer(head)))
            await asyncio.wait_for(writer.drain(), _ANSWER_TIMEOUT)
            writer.close()
        except TimeoutError:
            counts.ended[Ended.SILENT] += 1
            transport.abort()
        except _ForeignClientError as error:
            self._judge.tell(writer.get_extra_info("peername"), str(error))
            writer.close()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.close()  # not a request, or the caller left: there is nothing to answer
        finally:
            self._silent.pop(transport, None)
            counts.open -= 1

    def _make_room(self) -> bool:
        """Close the connection that has been silent longest: a probe asks at once, and must get through."""
        oldest = next(iter(self._silent), None)
        if oldest is None:
            return False
        del self._silent[oldest]
        self.counts.ended[Ended.MADE_ROOM] += 1
        oldest.abort()
        return True

    def answer(self, head: bytes) -> Answer:
        """Return the answer to a request with this head (request line and headers)."""
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"only GET\n"
        routes = self._routes()
        route = routes.get(path)
        if route is None:
            return 404, TEXT, f"no such path; there are {', '.join(routes)}\n".encode()
        status, kind, body = route()
        return status, kind, b"" if method == "HEAD" else body


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Return request line and headers.

    Raises: _ForeignClientError, and what StreamReader.readuntil raises.
    """
    begin, is_request = await reader.readexactly(1), False
    if begin[0] == HANDSHAKE:
        raise _ForeignClientError(HTTP_WITHOUT_TLS)
    while not is_request:
        reason, is_request = refusal_of(begin)
        if reason and not is_request:
            raise _ForeignClientError(ONLY_HTTP)
        begin += b"" if is_request else await reader.readexactly(1)
    return begin + await reader.readuntil(b"\r\n\r\n")


def render(answer: Answer) -> bytes:
    """Return the bytes of an HTTP/1.1 response."""
    status, kind, body = answer
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body

"""The HTTP port of a broker node: /livez, /readyz, /healthz, /metrics. GET only, one answer per connection.

Must not: serve anything that changes state, or keep connections open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

Answer = tuple[int, str, bytes]
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_READ_TIMEOUT: Final = 5.0  # seconds for a request line and headers
TEXT: Final = "text/plain; charset=utf-8"


class HttpServer:
    """Answers GET requests from a table of paths."""

    def __init__(self, routes: dict[str, Callable[[], Answer]]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port. Raises: OSError."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=16 * 1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_TIMEOUT)
            writer.write(render(self.answer(head)))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # not a request, or the caller left: nothing to answer
        finally:
            writer.close()

    def answer(self, head: bytes) -> Answer:
        """Return the answer to a request with this head."""
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"only GET\n"
        route = self._routes.get(path)
        if route is None:
            return 404, TEXT, f"no such path; there are {', '.join(self._routes)}\n".encode()
        status, kind, body = route()
        return status, kind, b"" if method == "HEAD" else body


def render(answer: Answer) -> bytes:
    """Return the bytes of an HTTP/1.1 response."""
    status, kind, body = answer
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body

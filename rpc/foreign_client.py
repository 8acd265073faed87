"""Clients that speak something else than HTTP/2: what their first bytes are, and what they are told.

Owns: the sentences for them and for the log, which say what to switch. Must not: know a connection.
"""

from __future__ import annotations

from typing import Final

_HTTP_1: Final = (
    "this port speaks gRPC over HTTP/2, not HTTP/1.1: use a gRPC client (gRPC-web needs a proxy that "
    "translates it)"
)
NO_ALPN: Final = (
    "this port speaks gRPC over HTTP/2, which the TLS client does not offer: use a gRPC client, or switch "
    "ALPN h2 on in it"
)
_TLS: Final = "TLS on a port without TLS: switch TLS off in the client, or use a port with TLS"
_NO_HTTP: Final = "this port speaks gRPC over HTTP/2, not what came: use a gRPC client, and check the port"
_HTTP_1_METHODS: Final = tuple(
    b"%s " % each
    for each in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH")
)


def refusal_of(begin: bytes) -> tuple[str, bool]:
    """Return (reason, whether the client speaks HTTP/1) for first bytes that are no begin of HTTP/2's.

    The reason is "" while they may become an HTTP/1 request.
    """
    if begin.startswith(b"\x16\x03"):
        return _TLS, False
    if begin.startswith(_HTTP_1_METHODS):
        return _HTTP_1, True
    if any(each.startswith(begin) for each in _HTTP_1_METHODS):
        return "", False
    return _NO_HTTP, False


def http_1_answer(reason: str) -> bytes:
    """Return an answer that a client of HTTP/1.1 can read."""
    text = reason.encode() + b"\n"
    return (
        b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-type: text/plain\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(text), text)
    )

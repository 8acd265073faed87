"""grpcio's channel arguments, as far as they have a meaning here: a service moves over with its own.

Owns: the translation. Must not: hold defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from .wire_limits import MAX_MESSAGE, WireLimits

_TIMES: Final = {
    "grpc.keepalive_time_ms": "keepalive_s",
    "grpc.keepalive_timeout_ms": "keepalive_timeout_s",
    "grpc.http2.ping_timeout_ms": "keepalive_timeout_s",
    "grpc.max_connection_idle_ms": "max_idle_s",
    "grpc.server_handshake_timeout_ms": "handshake_s",
}
_COUNTS: Final = {
    "grpc.max_concurrent_streams": "max_streams",
    "grpc.max_allowed_incoming_connections": "max_connections",
}


def limits_of(options: Iterable[tuple[str, Any]], limits: WireLimits) -> WireLimits:
    """Return `limits` with what grpcio's options say about them; other options are passed over."""
    changed: dict[str, Any] = {}
    for name, value in options:
        if name in _TIMES:
            changed[_TIMES[name]] = value / 1000
        elif name in _COUNTS:
            changed[_COUNTS[name]] = value
        elif name == "grpc.max_receive_message_length":
            changed["max_message"] = MAX_MESSAGE if value < 0 else value
    return replace(limits, **changed)

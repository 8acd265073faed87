"""Open gRPC channels by address, and the translation of gRPC errors.

Owns: channel options, one channel per address. Must not: choose addresses.
"""

from __future__ import annotations

from typing import Final

import grpc
from grpc import aio

from .errors import BrokerUnreachableError

#: Largest answer that is taken, bytes: sections are at most a quarter of a 64 MiB segment.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A client finds the next leader within a fraction of a second: the library's own pauses must be shorter.
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Clients of one process do not share connections: a slow fetch must not hold up a send.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class Channels:
    """The channels of one client object. Bound to the event loop of its first use."""

    def __init__(self) -> None:
        self._open: dict[str, aio.Channel] = {}

    def get(self, address: str) -> aio.Channel:
        """Return the channel to host:port, opened when first asked for."""
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = aio.insecure_channel(address, options=_OPTIONS)
        return channel

    async def close(self) -> None:
        """Close all channels; calls on them fail."""
        channels, self._open = list(self._open.values()), {}
        for channel in channels:
            await channel.close(None)


def unreachable(address: str, error: grpc.RpcError) -> BrokerUnreachableError:
    """Translate a failed call."""
    code = error.code() if isinstance(error, aio.AioRpcError) else None
    if code is grpc.StatusCode.UNAVAILABLE:
        reason = "Nothing listens there, or the connection broke"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = "It did not answer in time"
    else:
        details = error.details() if isinstance(error, aio.AioRpcError) else str(error)
        reason = f"{code.name if code else 'error'}: {details}"
    return BrokerUnreachableError(address, reason)

"""gRPC channels by address, and the translation of gRPC errors.

Owns: the bounds and times of the client's channels, one channel per address. Must not: choose addresses.
Channels run in the caller's event loop, without gRPC's threads.

Also tunes the C library's allocator for the large blocks that sections and requests pass through.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
from grpc import aio

from ledgermq.rpc.grpc_channel import GrpcChannel, Reconnects, was_not_sent
from ledgermq.rpc.wire_limits import WIDE_WINDOW, WireLimits

from ..errors import BrokerUnreachableError, ClosedError, UsageError

_KEPT_BYTES: Final = 8 * 1024 * 1024


def keep_freed_blocks() -> None:
    """Let malloc reuse freed blocks of some MiB instead of returning them to the kernel.

    Fresh pages cost more than the copies into them: half a page fault per message of 1 KiB took a quarter of
    a producer's CPU time. When glibc sees a large block freed, it raises its thresholds to that size, and
    then keeps up to twice as much free memory. Other allocators are not affected. The block is never written,
    so it costs no memory by itself.
    """
    bytearray(_KEPT_BYTES)


#: Largest accepted answer, bytes. Sections have at most a quarter of a 64 MiB segment.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
#: A client finds a new leader within a fraction of a second: attempts to connect must follow soon, and a call
#: must not wait long for a silent node.
_RECONNECTS: Final = Reconnects(first_s=0.02, most_s=0.5, patience_s=0.5, attempt_s=2.0)
#: Calls may be silent for long. Pings tell a server without news from one that is stopped or cut off. They
#: are sent while calls are open. Nameservers allow a ping every 5 s, brokers every second.
KEEPALIVE_S: Final = 10.0
KEEPALIVE_TIMEOUT_S: Final = 20.0
#: Shorter than for brokers, because there are other nameservers to watch.
WATCH_TIMEOUT_S: Final = 5.0


def open_channel(address: str, *, watch: bool = False) -> GrpcChannel:
    """Return a channel to host:port, in the running event loop; the caller closes it.

    Calls on it fail when the peer does not answer pings either; with `watch` soon.
    """
    limits = WireLimits(
        max_message=MAX_MESSAGE_BYTES,
        stream_window=WIDE_WINDOW,
        keepalive_s=KEEPALIVE_S,
        keepalive_timeout_s=WATCH_TIMEOUT_S if watch else KEEPALIVE_TIMEOUT_S,
    )
    return GrpcChannel(address, limits=limits, reconnects=_RECONNECTS)


class Channels:
    """The channels of one client object. Bound to the event loop of its first use. Unusable after `close`."""

    def __init__(self) -> None:
        keep_freed_blocks()
        self._open: dict[str, GrpcChannel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def check_loop(self) -> None:
        """Refuse any event loop other than that of the first use: awaited events would occur there.

        Raises: UsageError.
        """
        running = asyncio._get_running_loop()
        if running is None:
            raise UsageError(
                "a client of asyncio is used where no event loop runs",
                "",
                "Await it, or use ledgermq.client.sync",
            )
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise UsageError(
                "a client is used in another event loop than before",
                "Its connections and all that waits belong to the loop of its first use",
                "Make one client for each event loop, and close it there; "
                "those of ledgermq.client.sync may be shared",
            )

    def check(self) -> None:
        """Check that the channels can be used. Raises: UsageError (another event loop), ClosedError."""
        self.check_loop()
        if self._closed:
            raise ClosedError("client")

    def get(self, address: str, *, watch: bool = False) -> GrpcChannel:
        """Return the channel to host:port; open it on first use, as `open_channel` does."""
        self.check()
        channel = self._open.get(address)
        if channel is None:
            channel = self._open[address] = open_channel(address, watch=watch)
        return channel

    async def close(self) -> None:
        """Close all channels. Calls on them fail."""
        self._closed = True
        channels, self._open = list(self._open.values()), {}
        for channel in channels:
            await channel.close()


def unreachable(address: str, error: grpc.RpcError) -> BrokerUnreachableError:
    """Translate the gRPC error of a failed call."""
    code = error.code() if isinstance(error, aio.AioRpcError) else None
    if code is grpc.StatusCode.UNAVAILABLE:
        reason = "Nothing listens there, the connection broke, or the port is full"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = "It did not answer in time"
    else:
        details = error.details() if isinstance(error, aio.AioRpcError) else str(error)
        reason = f"{code.name if code else 'error'}: {details}"
    return BrokerUnreachableError(address, reason, not_sent=was_not_sent(error))

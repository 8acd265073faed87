"""Open gRPC channels by address, and the translation of gRPC errors.

Owns: channel options, one channel per address. Must not: choose addresses.

Also sets how the C library's allocator treats the large blocks that sections and requests pass through.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
from grpc import aio

from ..errors import BrokerUnreachableError, ClosedError, UsageError

_KEPT_BYTES: Final = 8 * 1024 * 1024


def keep_freed_blocks() -> None:
    """Let malloc keep freed blocks of some MiB for the next request instead of giving them back to the kernel.

    Fresh pages cost more than what is copied into them: half a page fault per message of 1 KiB was a quarter of a
    producer's CPU. glibc raises its limits to the size of a large block when it sees it freed, and from then on keeps up to
    twice as much free memory. Other allocators are not affected. Nothing is written, so this costs no memory by itself.
    """
    bytearray(_KEPT_BYTES)


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
#: gRPC says so when there was no connection, so that nothing was sent.
_NOT_CONNECTED: Final = "failed to connect to all addresses"
#: Calls may have nothing to say for long, so silence needs a question: pings tell a server that is stopped or cut off from
#: one without news. They are sent while calls are open. Nameservers allow a ping every 5 s, brokers every second.
KEEPALIVE_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000
#: There are other nameservers to watch.
WATCH_TIMEOUT_MS: Final = 5_000


class Channels:
    """The channels of one client object. Bound to the event loop of its first use, and of no use after `close`."""

    def __init__(self) -> None:
        keep_freed_blocks()
        self._open: dict[str, aio.Channel] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def check_loop(self) -> None:
        """Refuse another event loop than that of the first use: what it waited for would happen in the first one.

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
                "Make one client for each event loop, and close it there; those of ledgermq.client.sync may be shared",
            )

    def check(self) -> None:
        """Raises: UsageError (another event loop), ClosedError (after `close`)."""
        self.check_loop()
        if self._closed:
            raise ClosedError("client")

    def get(self, address: str, *, watch: bool = False) -> aio.Channel:
        """Return the channel to host:port, opened when first asked for.

        Calls on it fail when the other side answers nothing, not even pings; with `watch` soon.
        """
        self.check()
        channel = self._open.get(address)
        if channel is None:
            options = (*_OPTIONS, *_keepalive(WATCH_TIMEOUT_MS if watch else KEEPALIVE_TIMEOUT_MS))
            channel = self._open[address] = aio.insecure_channel(address, options=options)
        return channel

    async def close(self) -> None:
        """Close all channels; calls on them fail."""
        self._closed = True
        channels, self._open = list(self._open.values()), {}
        for channel in channels:
            await channel.close(None)


def _keepalive(timeout_ms: int) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        ("grpc.http2.ping_timeout_ms", timeout_ms),  # this one counts; its default is a minute
        ("grpc.http2.max_pings_without_data", 0),  # as many as the silence takes
    )


def unreachable(address: str, error: grpc.RpcError) -> BrokerUnreachableError:
    """Translate a failed call."""
    code = error.code() if isinstance(error, aio.AioRpcError) else None
    if code is grpc.StatusCode.UNAVAILABLE:
        reason = "Nothing listens there, the connection broke, or the port is full"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        reason = "It did not answer in time"
    else:
        details = error.details() if isinstance(error, aio.AioRpcError) else str(error)
        reason = f"{code.name if code else 'error'}: {details}"
    not_sent = isinstance(error, aio.AioRpcError) and _NOT_CONNECTED in (error.details() or "")
    return BrokerUnreachableError(address, reason, not_sent=not_sent)

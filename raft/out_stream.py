"""One outgoing stream to one peer: connect, greet, write frames, notice its end, connect again.

Owns: one gRPC channel of its own (its own TCP connection, D10) and a bounded queue. Must not: know Raft. Frames are
made when the stream is ready to take them, so nothing stale waits in buffers. While the stream is down everything is
dropped: Raft sends again. Invariant: nothing is written before the peer accepted the greeting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Frame = bytes
MakeFrame = Callable[["deque[Item]"], Frame]  # takes at least one item off the queue

END_OF_STREAM: Final[Any] = vars(grpc.aio)["EOF"]  # the type stubs do not know it
GREETING_TIMEOUT_S: Final = 2.0
RECONNECT_DELAY_S: Final = 0.02
RECONNECT_DELAY_MAX_S: Final = 0.08
REFUSED_DELAY_S: Final = 1.0  # after the peer refused the greeting: a person must act
LOST_HINT_DELAY_S: Final = 0.1  # without a new connection by then, the peer counts as gone (D10)

CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 1000),  # how long one connection attempt may take
    ("grpc.max_reconnect_backoff_ms", 80),
    ("grpc.keepalive_time_ms", 2000),  # finds a peer that vanished without a reset
    ("grpc.keepalive_timeout_ms", 1500),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


class StreamKind(Enum):
    """The two streams to a peer; the value is the RPC's name."""

    CONTROL = "Control"
    APPEND = "Append"


class StreamOwner(Protocol):
    """Told about the life of a stream, on the loop."""

    def greeting(self, kind: StreamKind) -> Frame:
        """Return the first frame to send."""

    async def on_accepted(self, kind: StreamKind, answer: Frame) -> bool:
        """The peer answered the greeting; return whether the stream may be used.

        Raises: OSError (what must be stored first cannot be), ValueError, DecodeError (the answer cannot be read).
        """

    def on_up(self, kind: StreamKind) -> None:
        """The stream takes items from now on."""

    def on_lost(self, kind: StreamKind, *, gone: bool) -> None:
        """The stream ended. `gone`: refused, unreachable, or not reconnected within 100 ms."""


@dataclass(slots=True)
class _Ended(Exception):
    """A session's end; `refused` when the peer's port does not take connections."""

    reason: str
    unreachable: bool = False
    not_wanted: bool = False  # the peer refused the greeting


class OutStream(Generic[Item]):
    """Use: `start()`, `put(item)`, `await close()`. All on the loop thread."""

    def __init__(
        self, kind: StreamKind, address: str, owner: StreamOwner, make_frame: MakeFrame[Item], limit: int
    ) -> None:
        self.kind = kind
        self.address = address
        self.connected = False
        self.dropped = 0
        self._owner = owner
        self._make_frame = make_frame
        self._queue: deque[Item] = deque(maxlen=limit)  # full: the oldest goes
        self._wakeup = asyncio.Event()
        self._channel: Any = None
        self._task: asyncio.Task[None] | None = None
        self._hint: asyncio.TimerHandle | None = None
        self._was_connected = False

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"{self.kind.value} {self.address}"
        )

    async def close(self) -> None:
        """Stop at once; what is queued is dropped."""
        self.silence()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._channel is not None:
            await self._channel.close(0)

    def silence(self) -> None:
        """End the stream for good; `close` must follow."""
        self.connected = False
        self._queue.clear()
        if self._hint is not None:
            self._hint.cancel()
        if self._task is not None:
            self._task.cancel()

    def put(self, item: Item) -> None:
        """Queue one item; dropped when the stream is down (Raft sends again)."""
        if not self.connected:
            self.dropped += 1
            return
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(item)
        self._wakeup.set()

    def __len__(self) -> int:
        return len(self._queue)

    async def _run(self) -> None:
        self._channel = grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        delay = RECONNECT_DELAY_S
        while True:
            try:
                await self._session()
            except _Ended as end:
                was = self.connected
                self._disconnected(end)
                delay = RECONNECT_DELAY_S if was else min(delay * 2, RECONNECT_DELAY_MAX_S)
                await asyncio.sleep(REFUSED_DELAY_S if end.not_wanted else delay)

    async def _session(self) -> None:
        """Open one stream and write until it ends. Raises: _Ended, always."""
        method = self._channel.stream_stream(f"/ledgermq.v1.RaftService/{self.kind.value}")
        call = method()
        try:
            await self._greet(call)
            await self._exchange(call)
        except grpc.aio.AioRpcError as error:
            raise _ended(error) from None
        except (TimeoutError, asyncio.InvalidStateError) as error:
            raise _Ended(f"no answer to the greeting ({type(error).__name__})") from None
        finally:
            call.cancel()

    async def _greet(self, call: Any) -> None:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            await call.write(self._owner.greeting(self.kind))
            answer = await call.read()
        if answer is END_OF_STREAM:
            raise _Ended("closed during the greeting")
        if not await self._is_wanted(answer):
            raise _Ended("the peer does not want this stream", not_wanted=True)
        self._queue.clear()
        self.connected = self._was_connected = True
        if self._hint is not None:
            self._hint.cancel()
            self._hint = None
        self._owner.on_up(self.kind)

    async def _is_wanted(self, answer: Frame) -> bool:
        try:
            return await self._owner.on_accepted(self.kind, answer)
        except (OSError, ValueError, DecodeError) as error:
            # A full disk, or the answer of a newer build: a stream that ended for good would be silent for good.
            logger.warning(
                "greeting not settled, trying again stream=%s peer=%s error=%s",
                self.kind.value,
                self.address,
                error,
            )
            return False

    async def _exchange(self, call: Any) -> None:
        """Write frames; the peer sends nothing more, so a finished read is the stream's end."""
        loop = asyncio.get_running_loop()
        reader = loop.create_task(call.read())
        writer = loop.create_task(self._write(call))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer):
                task.cancel()
            ended = await asyncio.gather(reader, writer, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        raise _Ended("closed by the peer")

    async def _write(self, call: Any) -> None:
        queue, wakeup = self._queue, self._wakeup
        while True:
            while queue:
                await call.write(self._make_frame(queue))
            wakeup.clear()
            await wakeup.wait()

    def _disconnected(self, end: _Ended) -> None:
        if self.connected:
            logger.info("stream lost stream=%s peer=%s reason=%r", self.kind.value, self.address, end.reason)
            self.connected = False
            self._queue.clear()
            self._owner.on_lost(self.kind, gone=False)
            loop = asyncio.get_running_loop()
            self._hint = loop.call_later(LOST_HINT_DELAY_S, self._gone)
        if end.unreachable and self._was_connected:
            self._gone()

    def _gone(self) -> None:
        if self._hint is not None:
            self._hint.cancel()
            self._hint = None
        if self._was_connected:  # told once per lost connection
            self._was_connected = False
            self._owner.on_lost(self.kind, gone=True)


def _ended(error: grpc.aio.AioRpcError) -> _Ended:
    details = error.details() or ""
    connecting = error.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in details.lower()
    return _Ended(f"{error.code().name}: {details}"[:200], unreachable=connecting)

"""One outgoing stream to one peer: connect, greet, write frames, notice its end, connect again.

Owns: one TCP connection (D10) and a bounded queue. Must not: know Raft. Frames are made when the stream is ready to
take them, so little that is stale waits in buffers. While the stream is down everything is dropped: Raft sends again.
Invariant: nothing is written before the peer accepted the greeting.

A connection may look healthy and carry nothing: something between the nodes swallows it. So the peer tells how many bytes
have arrived, whatever its disk does, and a stream that stands still while the peer talks is opened anew.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from ledgermq.proto.entry import Buffer

from ..errors import DamagedFrameError
from .frame_stream import FrameStream, connect
from .greeting import MAX_GREETING_SIZE
from .log_limit import LogLimit
from .stream_watch import StreamWatch

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
# Takes at least one item off the queue; parts of a frame
MakeFrame = Callable[["deque[Item]"], Sequence[Buffer]]

CONNECT_TIMEOUT_S: Final = 1.0
GREETING_TIMEOUT_S: Final = 2.0
RECONNECT_DELAY_S: Final = 0.02
RECONNECT_DELAY_MAX_S: Final = 0.08
REFUSED_DELAY_S: Final = 1.0  # after the peer refused the greeting: a person must act
LOST_HINT_DELAY_S: Final = 0.1  # without a new connection by then, the peer counts as gone (D10)
#: A peer that says nothing at all may be busy or stopped, which a new connection does not mend: it gets so many times longer.
SILENT_TIMES: Final = 3
#: After each new connection that stood still as well the next is given twice as long, up to so many times.
MAX_PATIENCE: Final = 8


class StreamKind(Enum):
    """The two streams to a peer."""

    CONTROL = "Control"
    APPEND = "Append"

    @property
    def preamble(self) -> bytes:
        """What a connection opens with: a name, the version of this framing, the kind."""
        return PREAMBLE + self.value[:1].encode()


#: Not how HTTP/2 begins, which gRPC speaks on the same port.
PREAMBLE: Final = b"LMQR\x01"


_STUCK: Final = "nothing of it arrives at the peer"


class StreamOwner(Protocol):
    """Told about the life of a stream, on the loop."""

    heard_at: float  # when anything of the peer arrived last, by the clock of the loop

    def greeting(self, kind: StreamKind) -> bytes:
        """Return the first frame to send."""

    async def on_accepted(self, kind: StreamKind, answer: Buffer) -> int | None:
        """The peer answered the greeting; return the frames that it reads, or None: the stream may not be used.

        Raises: OSError (what must be stored first cannot be), ValueError, DecodeError (the answer cannot be read),
        DamagedFrameError.
        """

    def on_up(self, kind: StreamKind) -> None:
        """The stream takes items from now on."""

    def on_lost(self, kind: StreamKind, *, gone: bool) -> None:
        """The stream ended. `gone`: refused, unreachable, or not reconnected within 100 ms."""

    def on_stuck(self, kind: StreamKind) -> None:
        """The stream stood still and was ended here: that says nothing about the peer."""

    def on_damaged(self, kind: StreamKind, reason: str) -> None:
        """What the peer sent on this stream was changed on the way."""


@dataclass(slots=True)
class _Ended(Exception):
    """A session's end; `refused` when the peer's port does not take connections."""

    reason: str
    unreachable: bool = False
    not_wanted: bool = False  # the peer refused the greeting
    is_stuck: bool = False


class OutStream(Generic[Item]):
    """Use: `start()`, `put(item)`, `await close()`. All on the loop thread."""

    def __init__(
        self,
        kind: StreamKind,
        address: str,
        owner: StreamOwner,
        make_frame: MakeFrame[Item],
        limit: int,
        stall_s: float,
    ) -> None:
        """`limit`: of the queue. `stall_s`: a stream that stands still for a shorter time is left alone."""
        self.kind = kind
        self.address = address
        self.connected = False
        self.is_closed_there = False  # the last try was refused, or nothing answered
        self.dropped = 0
        self._owner = owner
        self._make_frame = make_frame
        self._queue: deque[Item] = deque(maxlen=limit)  # full: the oldest goes
        self._stream: FrameStream | None = None  # greeted
        self._task: asyncio.Task[None] | None = None
        self._hint: asyncio.TimerHandle | None = None
        self._was_connected = False
        self._watch = StreamWatch(stall_s)
        self._watch_timer: asyncio.TimerHandle | None = None
        self._arrived = 0  # bytes of this connection, as the peer told
        self._patience = 1  # more: connections stood still, and nothing has arrived as it must since
        self._stuck_at = 0.0  # when the last of them was given up
        self._log_limit = LogLimit()

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

    def silence(self) -> None:
        """End the stream for good; `close` must follow."""
        self.connected = False
        self._queue.clear()
        if self._stream is not None:
            self._stream.abort("silenced")
        for timer in (self._hint, self._watch_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def put(self, item: Item) -> None:
        """Send one item, when the stream can take it; dropped when the stream is down (Raft sends again)."""
        stream = self._stream
        if not self.connected or stream is None or not stream.is_open:
            self.dropped += 1
            return
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(item)
        if stream.may_send:
            self._write()

    def __len__(self) -> int:
        return len(self._queue)

    def _write(self) -> None:
        queue, stream = self._queue, self._stream
        if self.connected and stream is not None:
            while queue and stream.may_send:
                stream.send(self._make_frame(queue))
            if self._watch_timer is None and stream.sent > self._arrived:
                self._look()

    async def _run(self) -> None:
        delay = 0.0
        while True:
            try:
                await self._session()
            except _Ended as end:
                was = self.connected
                self._disconnected(end)
                # A peer whose process ended refuses at once, and says so; one that cut a connection is back at once.
                delay = 0.0 if was else min(max(delay * 2, RECONNECT_DELAY_S), RECONNECT_DELAY_MAX_S)
                await asyncio.sleep(REFUSED_DELAY_S if end.not_wanted else delay)

    async def _session(self) -> None:
        """Open one stream, and return when it has ended. Raises: _Ended, always."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Buffer] = loop.create_future()
        lost: asyncio.Future[str] = loop.create_future()

        def on_frame(frame: Buffer) -> None:  # the answer to the greeting, then what has arrived
            if not answered.done():
                answered.set_result(frame)
            elif self._stream is not None:
                self._note_arrived(self._stream, frame)

        def on_lost(reason: str) -> None:
            if not lost.done():  # cancelled with the task that waited for it
                lost.set_result(reason)

        stream = FrameStream(on_frame, on_lost, MAX_GREETING_SIZE, self._write)
        try:
            await connect(self.address, stream, CONNECT_TIMEOUT_S)
        except socket.gaierror as error:
            raise _Ended(f"its name is not known: {error.strerror}") from None
        except OSError as error:  # refused, unreachable, no answer
            raise _Ended(str(error) or "no connection in time", unreachable=True) from None
        try:
            stream.send_preamble(self.kind.preamble)
            stream.send((self._owner.greeting(self.kind),))
            await self._greeted(stream, answered, lost)
            reason = await lost
            if stream.is_damaged:
                self._owner.on_damaged(self.kind, reason)
            raise _Ended(reason, is_stuck=reason == _STUCK)
        finally:
            self._stream = None
            stream.abort()

    async def _greeted(
        self, stream: FrameStream, answered: asyncio.Future[Buffer], lost: asyncio.Future[str]
    ) -> None:
        """Return when the stream may be used. Raises: _Ended."""
        await asyncio.wait((answered, lost), timeout=GREETING_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise _Ended(lost.result() if lost.done() else "no answer to the greeting")
        frames = await self._frames_wanted(answered.result())
        if frames is None:
            raise _Ended("the peer does not want this stream", not_wanted=True)
        if lost.done():
            raise _Ended(lost.result())
        if frames:
            stream.check_frames(reports=False)
        self._queue.clear()
        self._arrived = 0
        self._watch.begin()
        self._stream = stream
        self.connected = self._was_connected = True
        if self._hint is not None:
            self._hint.cancel()
            self._hint = None
        self._owner.on_up(self.kind)

    async def _frames_wanted(self, answer: Buffer) -> int | None:
        try:
            return await self._owner.on_accepted(self.kind, answer)
        except DamagedFrameError as error:
            self._owner.on_damaged(self.kind, str(error))
            raise _Ended(str(error)) from None
        except (OSError, ValueError, DecodeError) as error:
            # A full disk, or the answer of a newer build: a stream that ended for good would be silent for good.
            logger.warning(
                "greeting not settled, trying again stream=%s peer=%s error=%s",
                self.kind.value,
                self.address,
                error,
            )
            return None

    def _disconnected(self, end: _Ended) -> None:
        self.is_closed_there = end.unreachable
        if self.connected:
            loop = asyncio.get_running_loop()
            before = self._log_limit.passes(self.kind, loop.time())
            if before is not None:
                logger.info(
                    "stream lost stream=%s peer=%s reason=%r before=%d",
                    self.kind.value, self.address, end.reason, before,
                )  # fmt: skip
            self.connected = False
            self._queue.clear()
            if end.is_stuck:  # nobody is suspected for that: the peer may be starved, and lead
                self._owner.on_stuck(self.kind)
            else:
                self._owner.on_lost(self.kind, gone=False)
                self._hint = loop.call_later(LOST_HINT_DELAY_S, self._gone)
        if end.unreachable and self._was_connected:
            self._gone()

    # --- what has arrived ----------------------------------------------------------------------------------
    def _note_arrived(self, stream: FrameStream, report: Buffer) -> None:
        """The peer told how many bytes of this connection it has."""
        arrived = int.from_bytes(report, "little")
        if not self._arrived <= arrived <= stream.sent:
            stream.abort(f"the peer has {arrived} bytes of {stream.sent}, and had {self._arrived}")
            return
        self._arrived = arrived
        self._owner.heard_at = now = asyncio.get_running_loop().time()
        self._watch.moved(now, arrived)
        if self._watch.has_moved:
            self._patience = 1

    @property
    def _limit_s(self) -> float:
        return self._watch.limit_s * self._patience

    @property
    def was_stuck(self) -> bool:
        """A connection stood still and was given up, and nothing has moved since."""
        return self._patience > 1

    def is_stalled(self) -> bool:
        """Tell whether the connection that came after one that stood still does not help: it does, too, or is not made."""
        if not self.was_stuck:
            return False
        if self.connected:
            return self._watch.stood_s >= self._limit_s / 2
        return asyncio.get_running_loop().time() - self._stuck_at >= self._limit_s / 2

    def _look(self) -> None:
        """End a connection that stands still; come again while something is under way."""
        self._watch_timer = None
        stream, watch = self._stream, self._watch
        if stream is None or not stream.is_open or stream.sent <= self._arrived:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        stood_s = watch.look(now, stream.sent, self._arrived)
        if watch.has_moved:
            self._patience = 1
        limit_s = self._limit_s
        speaks = self._owner.heard_at > now - limit_s / 2
        if stood_s >= (limit_s if speaks else SILENT_TIMES * limit_s):
            self._patience, self._stuck_at = min(2 * self._patience, MAX_PATIENCE), now
            watch.begin()
            stream.abort(_STUCK)
        else:
            self._watch_timer = loop.call_later(watch.interval_s, self._look)

    def _gone(self) -> None:
        if self._hint is not None:
            self._hint.cancel()
            self._hint = None
        if self._was_connected:  # told once per lost connection
            self._was_connected = False
            self._owner.on_lost(self.kind, gone=True)

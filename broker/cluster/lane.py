"""One stream to another node for the small calls that are forwarded to it: what comes in while a message is written shares the next.

A call of its own costs both nodes more than most requests do; here that is paid per message of many calls. A lone call
goes at once. Owns: the stream, opened by the first call and again by the first one after it broke.
Bounded: `takes` says no, and the caller goes another way, when a request is large or much is under way.
Invariant: a call belongs to one opening of the stream (`_Opening`), which ends it when it ends itself, and touches no other's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.proto import peer_pb2

logger = logging.getLogger(__name__)

METHOD: Final = "/ledgermq.v1.PeerService/Forward"
#: A larger request would hold up those behind it, and gains nothing.
MAX_REQUEST: Final = 64 << 10  # bytes
MAX_CALLS: Final = 4096  # under way
MAX_BYTES: Final = 32 << 20  # of requests under way
_MAX_MESSAGE: Final = 1 << 20  # bytes of requests in a message; one more may start below it
_MAX_TIMEOUT_MS: Final = 2**32 - 1
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs

#: Fails the calls under way: (the stream's error, None when the other side ended it; was the call written?)
Failure = Callable[[grpc.aio.AioRpcError | None, bool], Exception]
#: Turns an answer that is no success into an error.
Refusal = Callable[[peer_pb2.ForwardedAnswer], Exception]
#: Takes the answer to a call that was served, when its caller is gone.
Unclaimed = Callable[[bytes], None]


def _drop(answer: bytes) -> None:
    """Most answers say only what the other node knows."""


class ForwardLane:
    """Use: `if lane.takes(size): await lane.call(…)`; `end(reason)`; `await close()`."""

    def __init__(
        self,
        open_stream: Callable[[], Any],
        failure: Failure,
        refusal: Refusal,
        unclaimed: Unclaimed = _drop,
    ) -> None:
        self._open_stream = open_stream
        self._failure = failure
        self._refusal = refusal
        self._unclaimed = unclaimed
        self._ids = itertools.count(1)
        self._calls = 0  # under way
        self._bytes = 0  # of their requests
        self._opening: _Opening | None = None
        self._unknown_there = False  # the other node is of a version without this stream

    def takes(self, size: int) -> bool:
        """Tell whether a request of so many bytes may come here."""
        return (
            size <= MAX_REQUEST
            and self._calls < MAX_CALLS
            and self._bytes + size <= MAX_BYTES
            and not self._unknown_there
        )

    async def call(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]], timeout: float
    ) -> bytes:
        """Return the answer's bytes. Raises: TimeoutError after `timeout` seconds; what `failure` and `refusal` give."""
        message = peer_pb2.ForwardedCall(
            call_id=next(self._ids),
            method=method,
            request=request,
            metadata=itertools.chain.from_iterable(metadata),
            timeout_ms=min(max(int(timeout * 1000), 1), _MAX_TIMEOUT_MS),
        )  # first: what cannot be written takes no place
        opening = self._opening
        if opening is None:
            opening = self._opening = _Opening(self._failure, self._refusal, self._unclaimed)
            opening.start(self._open_stream, self._on_over)
        self._calls += 1
        self._bytes += len(request)
        try:
            return await opening.call(message, timeout)
        finally:
            self._calls -= 1
            self._bytes -= len(request)

    def try_again(self) -> None:
        """The other node may be of another version by now."""
        self._unknown_there = False

    def end(self, error: Callable[[], Exception]) -> None:
        """Fail the calls under way with `error()` each, and close the stream: the next call opens another one."""
        self.try_again()
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.end(error)

    async def close(self) -> None:
        """Close the stream; calls under way fail as if it broke."""
        opening = self._opening
        self.end(lambda: self._failure(None, True))
        if opening is not None and opening.task is not None:
            await asyncio.gather(opening.task, return_exceptions=True)

    def _on_over(self, opening: _Opening, broken: grpc.aio.AioRpcError | None) -> None:
        """A stream ended by itself, or the other node ended it."""
        if self._opening is opening:
            self._opening = None
            self._unknown_there = broken is not None and broken.code() is grpc.StatusCode.UNIMPLEMENTED


class _Opening:
    """The stream from its opening to its end, and the calls that were made meanwhile."""

    def __init__(self, failure: Failure, refusal: Refusal, unclaimed: Unclaimed) -> None:
        self._failure = failure
        self._refusal = refusal
        self._unclaimed = unclaimed
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._unsent: dict[int, peer_pb2.ForwardedCall] = {}
        self._ended: list[int] = []  # written calls whose callers are gone, which the other node is to know
        self._wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def start(
        self,
        open_stream: Callable[[], Any],
        over: Callable[[_Opening, grpc.aio.AioRpcError | None], None],
    ) -> None:
        """Open the stream. `over` is told at its end, before the calls under way fail."""
        self.task = asyncio.create_task(self._run(open_stream, over), name="forward-lane")

    async def call(self, message: peer_pb2.ForwardedCall, timeout: float) -> bytes:
        call_id = message.call_id
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer
        self._unsent[call_id] = message
        self._wake.set()
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except (asyncio.CancelledError, TimeoutError):
            if _is_served(answer):  # in this very moment
                self._unclaimed(answer.result())
            raise
        finally:
            del self._waiting[call_id]
            unsent = self._unsent.pop(call_id, None) is not None
            if not (unsent or (answer.done() and not answer.cancelled())):
                self._ended.append(call_id)
                self._wake.set()

    def end(self, error: Callable[[], Exception]) -> None:
        """Close the stream; its calls fail with `error()` each."""
        if self.task is not None:
            self.task.cancel()
        self._fail(lambda _: error())

    async def _run(
        self,
        open_stream: Callable[[], Any],
        over: Callable[[_Opening, grpc.aio.AioRpcError | None], None],
    ) -> None:
        """Write and read until the stream ends, then fail what is under way."""
        this = asyncio.current_task()
        assert this is not None
        broken: grpc.aio.AioRpcError | None = None
        stream: Any = None
        writer: asyncio.Task[None] | None = None
        try:
            stream = open_stream()
            writer = asyncio.create_task(self._write(stream))
            writer.add_done_callback(lambda _: stream.cancel())  # who cannot ask is not answered
            while (raw := await stream.read()) is not _EOF:
                self._take(raw)
        except grpc.aio.AioRpcError as error:
            broken = error
        except asyncio.CancelledError:
            if this.cancelling():
                raise  # by `end`, which told those who wait; else the other node cancelled the stream
        except DecodeError:
            logger.warning("a forwarding stream ended: its answers cannot be decoded")
        except Exception:
            logger.exception("a forwarding stream failed")
        finally:
            over(self, broken)
            self._fail(lambda call_id: self._failure(broken, call_id not in self._unsent))
            if stream is not None:
                stream.cancel()
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, stream: Any) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._unsent or self._ended:
                    await stream.write(self._next_message().SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader meets the reason

    def _next_message(self) -> peer_pb2.ForwardedCalls:
        calls, size = [], 0
        while self._unsent and size < _MAX_MESSAGE:
            call = self._unsent.pop(next(iter(self._unsent)))
            calls.append(call)
            size += len(call.request)
        ended, self._ended = self._ended, []
        return peer_pb2.ForwardedCalls(calls=calls, ended=ended)

    def _take(self, raw: bytes) -> None:
        for answer in peer_pb2.ForwardedAnswers.FromString(raw).answers:
            waiting = self._waiting.get(answer.call_id)
            if waiting is None or waiting.cancelled():
                if not answer.status:  # it was on its way when the caller left
                    self._unclaimed(answer.answer)
            elif waiting.done():
                continue
            elif answer.status:
                waiting.set_exception(self._refusal(answer))
            else:
                waiting.set_result(answer.answer)

    def _fail(self, error: Callable[[int], Exception]) -> None:
        for call_id, waiting in self._waiting.items():
            if not waiting.done():
                waiting.set_exception(error(call_id))
        self._unsent.clear()
        self._ended.clear()


def _is_served(answer: asyncio.Future[bytes]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None

"""Lane: one stream to another node that batches the small calls forwarded to it.

A gRPC call costs both nodes more than most requests do; a lane pays that cost once per message of many calls.
Calls that arrive while a message is written go into the next message; a lone call is sent at once. Owns: the
stream. The first call opens it, and the first call after a break reopens it.
Bounded: `takes` returns False for a large request, or when much is under way; the caller then uses another
path.
Invariant: a call belongs to one opening of the stream (`_Opening`). An opening fails its own calls when it
ends, and no others.
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
from ledgermq.rpc.grpc_channel import was_not_sent

logger = logging.getLogger(__name__)

METHOD: Final = "/ledgermq.v1.PeerService/Forward"
#: A larger request would delay those behind it, and gains nothing from sharing.
MAX_REQUEST: Final = 64 << 10  # bytes
MAX_CALLS: Final = 4096  # calls under way
MAX_BYTES: Final = 32 << 20  # bytes of requests under way
_MAX_MESSAGE: Final = 1 << 20  # bytes of requests in a message; below it, one more request is added
_MAX_TIMEOUT_MS: Final = 2**32 - 1
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs

#: Trailing metadata of a refusal by a node that does not lead.
NOT_LEADER: Final = "x-ledgermq-not-leader"
#: Statuses of gRPC when the handler itself failed, or does not accept such a request.
_FAILED_THERE: Final = (
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

#: Takes the answer to a served call whose caller is gone.
Unclaimed = Callable[[bytes], None]


class ForwardError(Exception):
    """A forwarded call failed.

    Fields:
        definite: the other node refused it, or never got it; it had no effect there.
        repeatable: False when the other node is reachable and failed on this very call; it would fail again.
        unknown_there: with `repeatable` False, the other node does not know the method (an older version).
    """

    def __init__(
        self, definite: bool, reason: str, repeatable: bool = True, unknown_there: bool = False
    ) -> None:
        super().__init__(reason)
        self.definite = definite
        self.repeatable = repeatable
        self.unknown_there = unknown_there


class ForwardLane:
    """Use: `if lane.takes(size): await lane.call(…)`; `end()`; `await close()`."""

    def __init__(self, node_id: str, open_stream: Callable[[], Any], unclaimed: Unclaimed) -> None:
        self._node_id = node_id
        self._open_stream = open_stream
        self._unclaimed = unclaimed
        self._ids = itertools.count(1)
        self._calls = 0  # under way, at most MAX_CALLS
        self._bytes = 0  # of their requests, at most MAX_BYTES
        self._opening: _Opening | None = None  # None: the next call opens the stream
        self._unknown_there = False  # the other node's version lacks this stream

    def takes(self, size: int) -> bool:
        """Return whether a request of `size` bytes may use this lane."""
        return (
            size <= MAX_REQUEST
            and self._calls < MAX_CALLS
            and self._bytes + size <= MAX_BYTES
            and not self._unknown_there
        )

    async def call(
        self, method: str, request: bytes, metadata: Sequence[tuple[str, str]], timeout: float
    ) -> bytes:
        """Return the answer's bytes. Raises: ForwardError, at the latest after `timeout` seconds."""
        message = peer_pb2.ForwardedCall(
            call_id=next(self._ids),
            method=method,
            request=request,
            metadata=itertools.chain.from_iterable(metadata),
            timeout_ms=min(max(int(timeout * 1000), 1), _MAX_TIMEOUT_MS),
        )  # built first: a call that cannot be encoded must not be counted
        opening = self._opening
        if opening is None:
            opening = self._opening = _Opening(self._open_stream, self._on_over, self._unclaimed)
        self._calls += 1
        self._bytes += len(request)
        try:
            return await opening.call(message, timeout)
        except TimeoutError:
            raise ForwardError(False, f"{self._node_id} has not answered before the deadline") from None
        finally:
            self._calls -= 1
            self._bytes -= len(request)

    def try_again(self) -> None:
        """Use the stream again: the other node's version may have changed."""
        self._unknown_there = False

    def end(self) -> None:
        """Give up each call under way, and close the stream. The next call opens another one."""
        self._end(lambda: given_up(self._node_id))

    def _end(self, error: Callable[[], ForwardError]) -> _Opening | None:
        self.try_again()
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.end(error)
        return opening

    async def close(self) -> None:
        """Close the stream; calls under way fail as if it broke."""
        opening = self._end(lambda: _broken(None, written=True))
        if opening is not None:
            await asyncio.gather(opening.task, return_exceptions=True)

    def _on_over(self, opening: _Opening, broken: grpc.aio.AioRpcError | None) -> None:
        """Forget a stream that ended by itself, or that the other node ended."""
        if self._opening is opening:
            self._opening = None
            self._unknown_there = broken is not None and broken.code() is grpc.StatusCode.UNIMPLEMENTED


class _Opening:
    """One stream from its opening to its end, with the calls made on it."""

    def __init__(
        self,
        open_stream: Callable[[], Any],
        over: Callable[[_Opening, grpc.aio.AioRpcError | None], None],
        unclaimed: Unclaimed,
    ) -> None:
        """Open the stream. `over` is called at its end, before the calls under way fail."""
        self._unclaimed = unclaimed
        self._waiting: dict[int, asyncio.Future[bytes]] = {}  # by call id; each caller removes its own
        self._unsent: dict[int, peer_pb2.ForwardedCall] = {}  # not written yet; a subset of the waiting ones
        self._ended: list[int] = []  # written calls whose callers are gone; the other node is to cancel them
        self._wake = asyncio.Event()
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
            if _is_served(answer):  # the answer came at the same moment
                self._unclaimed(answer.result())
            raise
        finally:
            del self._waiting[call_id]
            unsent = self._unsent.pop(call_id, None) is not None
            if not (unsent or (answer.done() and not answer.cancelled())):
                self._ended.append(call_id)
                self._wake.set()

    def end(self, error: Callable[[], Exception]) -> None:
        """Close the stream, and fail each of its calls with `error()`."""
        self.task.cancel()
        self._fail(lambda _: error())

    async def _run(
        self,
        open_stream: Callable[[], Any],
        over: Callable[[_Opening, grpc.aio.AioRpcError | None], None],
    ) -> None:
        """Write and read until the stream ends, then fail the calls under way."""
        this = asyncio.current_task()
        assert this is not None
        broken: grpc.aio.AioRpcError | None = None
        stream: Any = None
        writer: asyncio.Task[None] | None = None
        try:
            stream = open_stream()
            writer = asyncio.create_task(self._write(stream))
            writer.add_done_callback(lambda _: stream.cancel())  # no answers come without a writer
            while (raw := await stream.read()) is not _EOF:
                self._take(raw)
        except grpc.aio.AioRpcError as error:
            broken = error
        except asyncio.CancelledError:
            if this.cancelling():
                raise  # cancelled by `end`, which failed the calls; otherwise the other node cancelled
        except DecodeError:
            logger.warning("a forwarding stream ended: its answers cannot be decoded")
        except Exception:
            logger.exception("a forwarding stream failed")
        finally:
            over(self, broken)
            self._fail(lambda call_id: _broken(broken, call_id not in self._unsent))
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
            pass  # the reader gets the reason

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
                if not answer.status:  # the answer was on its way when the caller left
                    self._unclaimed(answer.answer)
            elif waiting.done():
                continue
            elif answer.status:
                waiting.set_exception(_refused(answer))
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


def translated(error: grpc.aio.AioRpcError) -> ForwardError:
    """Return the error of a gRPC call that failed."""
    trailing: Any = error.trailing_metadata() or ()
    definite = any(key == NOT_LEADER for key, _ in trailing) or was_not_sent(error)
    return ForwardError(
        definite,
        f"{error.code().name}: {error.details()}",
        error.code() not in _FAILED_THERE,
        error.code() is grpc.StatusCode.UNIMPLEMENTED,
    )


def given_up(node_id: str) -> ForwardError:
    """Return the error of a call that is not waited for any longer, because another node leads."""
    return ForwardError(False, f"{node_id} leads no longer and has not answered")


def _broken(error: grpc.aio.AioRpcError | None, written: bool) -> ForwardError:
    """Return the error of a call whose stream broke.

    The call had no effect when it was not written, or when there was no connection.
    """
    if error is None:
        return ForwardError(not written, "the other node ended the stream")
    unserved = not written or error.code() is grpc.StatusCode.UNIMPLEMENTED
    return ForwardError(unserved or translated(error).definite, f"{error.code().name}: {error.details()}")


def _refused(answer: peer_pb2.ForwardedAnswer) -> ForwardError:
    code = _CODES.get(answer.status, grpc.StatusCode.UNKNOWN)
    return ForwardError(
        answer.not_leader,
        f"{code.name}: {answer.details}",
        code not in _FAILED_THERE,
        unknown_there=code is grpc.StatusCode.UNIMPLEMENTED,
    )

"""The leader's end of a ForwardLane: serves each call of a follower's stream like a gRPC call of its own.

Owns: a task per call, and the stream's answers, which are written together when they are ready together. What
an answer granted is taken back when the stream ends before the answer can have arrived (`unless_arrived`).
Must not: know services; `find` returns a method's handler, the same that the port serves.
Bounded: while too many calls of the stream are unanswered, no further message is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import peer_pb2
from ledgermq.proto.foreign_text import safe_text

from .lane import MAX_CALLS, NOT_LEADER
from .members import ON_THE_WAY_SECONDS

logger = logging.getLogger(__name__)

Find = Callable[[str], Any]

_UNKNOWN: Final = grpc.StatusCode.UNKNOWN
_MAX_DETAILS: Final = 4_000  # characters


class _AbortedError(Exception):
    def __init__(self, code: grpc.StatusCode, details: str, not_leader: bool) -> None:
        super().__init__(details)
        self.code, self.details, self.not_leader = code, details, not_leader


class ForwardedContext:
    """Stands in for gRPC's context towards the handler of one call of a lane."""

    def __init__(self, call: peer_pb2.ForwardedCall) -> None:
        words = iter(call.metadata)
        self._metadata = tuple(zip(words, words, strict=False))
        self._deadline = time.monotonic() + call.timeout_ms / 1000
        self.take_back: Callable[[], None] | None = None  # undoes what the answer grants; set by the handler

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the client's metadata and the marks of a forwarded call."""
        return self._metadata

    def time_remaining(self) -> float:
        """Return the seconds until the caller's deadline."""
        return max(self._deadline - time.monotonic(), 0)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, str]] = ()
    ) -> NoReturn:
        """End the call with a status."""
        raise _AbortedError(code, details, any(key == NOT_LEADER for key, _ in trailing_metadata))


def unless_arrived(context: Any, take_back: Callable[[], None]) -> None:
    """Call `take_back` later if the answer may not have reached the node that asked; in doubt, call it.

    Has no effect on a gRPC call of its own: its caller waits for the answer.
    """
    if isinstance(context, ForwardedContext):
        context.take_back = take_back


class _Stream:
    """The calls of one follower's stream."""

    def __init__(self, find: Find, grpc_context: Any) -> None:
        self._find = find
        self._context = grpc_context
        self._tasks: dict[int, asyncio.Task[None]] = {}  # call id to the task that serves it
        self._answers: list[peer_pb2.ForwardedAnswer] = []  # ready, not written yet
        self._take_backs: list[Callable[[], None]] = []  # of `_answers`
        # (write time, take-backs) per message written within ON_THE_WAY_SECONDS; inf while being written.
        self._on_the_way: deque[tuple[float, list[Callable[[], None]]]] = deque()
        self._ready = asyncio.Event()  # `_answers` has gained an answer
        self._room = asyncio.Event()  # a call ended, or answers were written

    async def serve(self, requests: AsyncIterator[bytes]) -> None:
        serving, writer = asyncio.current_task(), asyncio.create_task(self._write())
        assert serving is not None

        def unanswerable(_: asyncio.Task[None]) -> None:
            serving.cancel()

        writer.add_done_callback(unanswerable)
        try:
            async for raw in requests:
                message = await self._decoded(raw)
                for call in message.calls:
                    task = self._tasks[call.call_id] = asyncio.create_task(self._serve(call))
                    task.add_done_callback(partial(self._served, call.call_id))
                for call_id in message.ended:
                    if call_id in self._tasks:
                        self._tasks[call_id].cancel()
                while len(self._tasks) + len(self._answers) > 2 * MAX_CALLS:
                    self._room.clear()
                    await self._room.wait()
        finally:
            writer.remove_done_callback(unanswerable)
            ended = [writer, *self._tasks.values()]
            for task in ended:
                task.cancel()
            self._take_back()
            await asyncio.gather(*ended, return_exceptions=True)

    async def _decoded(self, raw: bytes) -> peer_pb2.ForwardedCalls:
        """Decode a message. End the stream if that fails, because its calls cannot be known."""
        try:
            message = peer_pb2.ForwardedCalls.FromString(raw)
        except DecodeError:
            problem = "a message of the stream is no ForwardedCalls"
        else:
            ids = [call.call_id for call in message.calls]
            if len(ids) > 2 * MAX_CALLS:  # a real node has at most MAX_CALLS under way
                problem = f"more than {2 * MAX_CALLS:,} calls in one message"
            elif len(set(ids)) == len(ids) and self._tasks.keys().isdisjoint(ids):
                return message
            else:
                problem = "two calls of the stream have one id"
        logger.warning("stream of forwarded calls refused reason=%s", problem)
        await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        raise AssertionError("abort raises")

    def _served(self, call_id: int, _: asyncio.Task[None]) -> None:
        del self._tasks[call_id]
        self._room.set()

    async def _serve(self, call: peer_pb2.ForwardedCall) -> None:
        try:
            context = ForwardedContext(call)
            async with asyncio.timeout(call.timeout_ms / 1000):
                served = await self._handle(call, context)
            answer = peer_pb2.ForwardedAnswer(call_id=call.call_id, answer=served)
            if context.take_back is not None:
                self._take_backs.append(context.take_back)
        except _AbortedError as error:
            answer = _refused(call, error.code, error.details, not_leader=error.not_leader)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            answer = _refused(call, grpc.StatusCode.UNAVAILABLE, "given up by this node")
        except TimeoutError:
            answer = _refused(call, grpc.StatusCode.DEADLINE_EXCEEDED, "not served before the deadline")
        except DecodeError:
            answer = _refused(call, _UNKNOWN, "the request cannot be decoded")
        except Exception as error:
            logger.exception("forwarded call failed method=%s", safe_text(call.method))
            answer = _refused(call, _UNKNOWN, f"{type(error).__name__}: {error}")
        self._answers.append(answer)
        self._ready.set()

    async def _handle(self, call: peer_pb2.ForwardedCall, context: ForwardedContext) -> bytes:
        if len(call.metadata) % 2:
            await context.abort(_UNKNOWN, "the call's metadata are no pairs of name and value")
        handler = self._find(call.method)
        if handler is None or handler.unary_unary is None:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"{safe_text(call.method)} is no unary method of this node"
            )
        request = call.request
        if handler.request_deserializer is not None:
            request = handler.request_deserializer(request)
        answer = await handler.unary_unary(request, context)
        return bytes(answer if handler.response_serializer is None else handler.response_serializer(answer))

    async def _write(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            answers, self._answers = self._answers, []
            take_backs, self._take_backs = self._take_backs, []
            self._on_the_way.append((math.inf, take_backs))
            await self._context.write(peer_pb2.ForwardedAnswers(answers=answers).SerializeToString())
            self._room.set()
            now = time.monotonic()
            self._on_the_way[-1] = (now, take_backs)
            while self._on_the_way and self._on_the_way[0][0] < now - ON_THE_WAY_SECONDS:
                self._on_the_way.popleft()

    def _take_back(self) -> None:
        """Take back what answers granted that are unwritten, or written so recently that they may be lost."""
        for take_backs in (*(each for _, each in self._on_the_way), self._take_backs):
            for take_back in take_backs:
                take_back()


def _refused(
    call: peer_pb2.ForwardedCall, code: grpc.StatusCode, details: str, *, not_leader: bool = False
) -> peer_pb2.ForwardedAnswer:
    return peer_pb2.ForwardedAnswer(
        call_id=call.call_id,
        status=code.value[0],
        details=safe_text(details, _MAX_DETAILS),  # an exception's text may not be valid in a protobuf string
        not_leader=not_leader,
    )


def forwarded_calls_handler(find: Find) -> Any:
    """Return the Raft port's handler of followers' streams; `find` returns a method's handler, or None."""

    async def forward(requests: AsyncIterator[bytes], grpc_context: Any) -> None:
        await grpc_context.send_initial_metadata(())
        await _Stream(find, grpc_context).serve(requests)

    method = grpc.stream_stream_rpc_method_handler(forward)
    return grpc.method_handlers_generic_handler("ledgermq.v1.PeerService", {"Forward": method})

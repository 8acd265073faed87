"""Section sender: the requests of one attempt, in order, to the leader of one broker group.

Owns: the Produce stream, the requests that are not acknowledged, and the order of repeats.
Must not: encode, choose queues.
Invariants: requests are sent in order, and again from the first unacknowledged one after any trouble. The
broker knows those that it has by their sequence. At most MAX_OPEN requests are held.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import route_pb2

from ..cluster.channels import Channels, unreachable
from ..cluster.leader_tracker import LeaderTracker
from ..cluster.topic_route import BrokerGroup
from ..errors import AttemptEndedError, LedgerMQError, SendTimeoutError, error_of
from ..event_loop import happens_anew
from ..pauses import ANSWER_TIMEOUT_MS, backoff_ms
from .row_packer import PackedRequest

logger = logging.getLogger(__name__)

#: Requests that are not acknowledged.
MAX_OPEN: Final = 8
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs
_PRODUCE: Final = "/ledgermq.v1.LogService/Produce"
#: Refusals after which another node leads.
_NOT_HERE: Final = frozenset(
    {route_pb2.NOT_LEADER, route_pb2.NO_QUORUM, route_pb2.SHUTTING_DOWN, route_pb2.OTHER_GROUP}
)
#: Refusals that a repeat heals besides those marked as retryable. The unknown outcome is decided by it.
_AGAIN: Final = frozenset(
    {*_NOT_HERE, route_pb2.OUTCOME_UNKNOWN, route_pb2.SLAVE_TIMEOUT, route_pb2.SLAVES_AWAY,
     route_pb2.SEQUENCE_GAP}
)  # fmt: skip


class _Repeat(Exception):
    """The stream must be left, and the unacknowledged requests are sent again."""


class SectionSender:
    """Sends requests. Call `put` for each, then `drain`, then `close`."""

    def __init__(
        self,
        broker_group: Callable[[], BrokerGroup],
        channels: Channels,
        refresh: Callable[[], Awaitable[object]],
        topic: str,
        timeout_s: float,
    ) -> None:
        """`broker_group`: as in the newest route; `refresh` fetches it. `timeout_s`: without an answer."""
        self._topic = topic
        self._group = broker_group
        self._channels = channels
        self._refresh = refresh
        self._timeout_s = timeout_s
        self._tracker = LeaderTracker(broker_group())
        self._open: deque[PackedRequest] = deque()
        self._sent = 0  # of `_open`, on this stream
        self._troubles = 0  # since the last acknowledgement
        self._moved_at = time.monotonic()  # last acknowledgement, or the first request that waits
        self._why = "no node has answered"  # the last trouble
        self._error: LedgerMQError | None = None
        self._wake = asyncio.Event()  # there is more to send
        self._news = asyncio.Event()  # a request was acknowledged, or the sender has failed
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-batch-{broker_group().name}")

    async def put(self, request: PackedRequest) -> None:
        """Send a request as soon as there is room for it. Raises: the error of this or an earlier one."""
        await self._until(lambda: len(self._open) < MAX_OPEN)
        if not self._open:
            self._moved_at = time.monotonic()
        self._open.append(request)
        self._wake.set()

    async def drain(self) -> None:
        """Wait until every request is stored on a majority. Raises: the error of the first that is not."""
        await self._until(lambda: not self._open)

    async def close(self) -> None:
        """Close the stream. What is not acknowledged may be stored."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _until(self, done: Callable[[], bool]) -> None:
        while self._error is None and not done():
            rest = self._moved_at + self._timeout_s - time.monotonic()
            if rest <= 0:
                self._error = self._timed_out()
                break
            await happens_anew(self._news, rest)
        if self._error is not None:
            raise self._error

    def _timed_out(self) -> LedgerMQError:
        return SendTimeoutError(self._topic, round(self._timeout_s * 1000), sent=True, reason=self._why)

    async def _run(self) -> None:
        try:
            while True:
                while not self._open:
                    await happens_anew(self._wake)
                self._tracker.update(self._group())
                address, pause_ms = self._tracker.next()
                if pause_ms:
                    await self._ask_for_route()
                    await asyncio.sleep(pause_ms / 1000)
                if address:
                    await self._use_stream(address)
        except LedgerMQError as error:
            self._error = error
        except Exception as error:  # a defect: whoever waits must learn of it
            logger.exception("section sender failed")
            self._error = LedgerMQError(f"the sender has failed: {type(error).__name__}: {error}")
        self._news.set()

    async def _ask_for_route(self) -> None:
        try:
            await self._refresh()
        except LedgerMQError as error:
            self._why = str(error)

    async def _use_stream(self, address: str) -> None:
        """Send over one stream until it breaks or must be left. Raises: LedgerMQError (a final refusal)."""
        produce: Any = self._channels.get(address).stream_stream(
            _PRODUCE, request_serializer=None, response_deserializer=pb.ProduceResponse.FromString
        )
        call = produce(metadata=self._group().metadata)
        self._sent = 0
        tasks = [asyncio.create_task(self._write(call)), asyncio.create_task(self._read(call))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        self._tracker.failed(address)
        for result in results:
            if isinstance(result, LedgerMQError):
                raise result
            if isinstance(result, grpc.RpcError):
                self._why = str(unreachable(address, result))
            elif isinstance(result, TimeoutError):
                self._why = f"the node at {address} did not answer for {ANSWER_TIMEOUT_MS} ms"
            elif isinstance(result, _Repeat):
                self._why = str(result)
            elif isinstance(result, Exception) and not isinstance(result, asyncio.InvalidStateError):
                raise result
        logger.info("produce stream of a batch ended address=%s reason=%s", address, self._why)

    async def _write(self, call: Any) -> None:
        while True:
            if self._sent == len(self._open):
                await happens_anew(self._wake)
                continue
            request = self._open[self._sent]
            self._sent += 1
            message = pb.ProduceRequest(
                request_id=request.first + 1,
                sections=b"".join(request.sections),
                section_count=len(request.sections),
            )
            await call.write(message.SerializeToString())

    async def _read(self, call: Any) -> None:
        while True:
            silence = ANSWER_TIMEOUT_MS / 1000
            answer = asyncio.ensure_future(call.read())
            try:
                while not (await asyncio.wait([answer], timeout=silence))[0]:
                    if self._sent:
                        raise TimeoutError
            finally:
                answer.cancel()
            response = answer.result()
            if response is _EOF or not self._open:
                return
            await self._on_response(response)

    async def _on_response(self, response: pb.ProduceResponse) -> None:
        """Take the answer to the oldest request. Raises: _Repeat, LedgerMQError (a final refusal)."""
        request = self._open[0]
        if response.request_id != request.first + 1:
            raise _Repeat(f"answer {response.request_id} does not belong to request {request.first + 1}")
        refusals = [each.refusal for each in response.results if each.HasField("refusal")]
        if response.HasField("refusal"):
            refusals = [response.refusal]
        elif not refusals and len(response.results) != len(request.sections):
            raise _Repeat(f"{len(response.results)} results for {len(request.sections)} sections")
        if refusals:
            await self._on_refusal(refusals[0])
        self._open.popleft()
        self._sent -= 1
        self._troubles = 0
        self._moved_at = time.monotonic()
        self._tracker.succeeded()
        self._news.set()

    async def _on_refusal(self, refusal: route_pb2.Refusal) -> NoReturn:
        if refusal.code == route_pb2.STALE_PRODUCER_EPOCH:
            raise AttemptEndedError(refusal.message)
        if not (refusal.retryable or refusal.code in _AGAIN):
            raise error_of(refusal)
        self._troubles += 1
        if refusal.code in _NOT_HERE:
            if refusal.leader_address:
                self._tracker.hint(refusal.leader_address)
        else:
            await asyncio.sleep(max(refusal.retry_after_ms, backoff_ms(self._troubles)) / 1000)
            self._tracker.succeeded()  # the node is the right one
        raise _Repeat(refusal.message)

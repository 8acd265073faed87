"""Produce stream of one producer to the leader of one broker group.

Owns: the stream, and the clock and timers around a `SendWindow`.
Must not: decide what is sent or what an answer means (`send_window` and `retry_policy` do).
Invariant: at most one stream is open. What was in flight on a broken stream is resent first, in order, on the
next one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
from grpc import aio

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.varint import varint

from ..cluster.channels import Channels, unreachable
from ..cluster.leader_question import who_leads
from ..cluster.leader_tracker import LeaderTracker
from ..cluster.topic_route import BrokerGroup, Node, TopicRoute
from ..event_loop import happens_anew
from ..pauses import ANSWER_TIMEOUT_MS, CHECK_S, FIRST_AVOID_MS, LONGEST_AVOID_MS, SUSPICION_MS
from .latency_fault import CallTimes
from .send_window import Failed, Outcome, Request, SendWindow

logger = logging.getLogger(__name__)

_PRODUCE: Final = "/ledgermq.v1.LogService/Produce"
#: Errors that end a stream without this client closing it.
_BROKEN: Final = (grpc.RpcError, TimeoutError)


def now_ms() -> int:
    """Return the time of the monotonic clock, ms."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class BrokerGroupCounts:
    """Message counts; see BrokerGroupStatistics."""

    stored: int = 0
    repeated: int = 0
    failed: int = 0
    moved: int = 0


class BrokerGroupConnection:
    """Drives one `SendWindow`: add to the window, then call `wake`."""

    def __init__(
        self,
        broker_group: BrokerGroup,
        channels: Channels,
        window: SendWindow,
        on_outcome: Callable[[BrokerGroupConnection, Outcome], None],
        on_flush: Callable[[int], None],
        calls: CallTimes | None = None,
    ) -> None:
        """Create the connection. It opens a stream when the window has something to send.

        `on_outcome` gets the outcome of every answer. `on_flush` gets the number of messages of every request
        that was cut. `calls`, if given, measures every request.
        """
        self.window = window
        self.calls = calls
        self.counts = BrokerGroupCounts()  # kept by the producer
        self.last_error = ""  # why the last stream broke, human-readable
        self._channels = channels
        self._on_outcome = on_outcome
        self._on_flush = on_flush
        self._tracker = LeaderTracker(broker_group)
        self._address = ""  # node of the open stream
        self._call: aio.StreamStreamCall[bytes, pb.ProduceResponse] | None = None
        self._wake = asyncio.Event()
        self._news = asyncio.Event()  # the route names a new leader
        self._avoid_ms = FIRST_AVOID_MS  # next pause when no node accepts messages, ms
        self._sent_at = 0  # when the oldest request in flight was sent, or the last answer came; ms
        self._task = asyncio.create_task(self._run(), name=f"ledgermq-produce-{broker_group.name}")

    @property
    def group(self) -> BrokerGroup:
        """The broker group in the newest route."""
        return self._tracker.group

    @property
    def connected(self) -> bool:
        return self._call is not None

    def wake(self) -> None:
        """Tell the writer that the window has something new."""
        self._wake.set()

    def update(self, broker_group: BrokerGroup) -> None:
        """Take a newer route. Close a stream to a node that no longer leads: it will not answer."""
        self._follow(self._tracker.update(broker_group))

    def _follow(self, leader: Node | None) -> None:
        """Switch to the new leader, if there is one."""
        if leader is None:
            return
        self.window.paused_until = self.window.avoid_until = 0  # of the previous leader, or of none
        if self.calls is not None:
            self.calls.forget()
        self._news.set()
        self._wake.set()
        if self._call is not None and leader.log_address != self._address:
            text = "leader moved group=%s term=%d leader=%s"
            logger.info(text, self.group.name, self._tracker.term, leader.node_id)
            self.last_error = f"the node at {self._address} leads no longer, {leader.node_id} does."
            self._call.cancel()

    def end(self) -> list[Failed]:
        """Stop, because another broker group has the name. Give up everything open. Call `close` next."""
        self._call = None  # ignore its answers
        self._task.cancel()
        return self.window.give_up_all()

    async def close(self) -> None:
        """Close the stream. The window keeps its open sections."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- stream life cycle --------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self.window.wants_to_send:
                await happens_anew(self._wake)
                continue
            address, pause_ms = self._tracker.next()
            if pause_ms > 0 or not address:
                self._give_way()
            pause_ms = max(pause_ms, self.window.paused_until - now_ms())
            if pause_ms > 0:
                await happens_anew(self._news, pause_ms / 1000)
                if self._tracker.has_hint:
                    continue  # ask again: a leader is known now
            if address:
                await self._use_stream(address)

    def _give_way(self) -> None:
        """No node takes messages now: let new and certainly unstored ones go to another broker group."""
        now = now_ms()
        if self.window.avoid_until <= now:
            self.window.avoid_until = now + self._avoid_ms
            self._avoid_ms = min(2 * self._avoid_ms, LONGEST_AVOID_MS)
        if self.calls is not None:
            self.calls.failed("", now)
        self._on_outcome(self, Outcome(try_other_broker_group=True))

    async def _use_stream(self, address: str) -> None:
        """Send over one stream until it breaks or its node does not lead."""
        produce: Any = self._channels.get(address).stream_stream(
            _PRODUCE, request_serializer=None, response_deserializer=pb.ProduceResponse.FromString
        )
        call: aio.StreamStreamCall[bytes, pb.ProduceResponse] = produce(metadata=self.group.metadata)
        self._call, self._address = call, address
        tasks = [
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._watch_answers()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._call = None
            call.cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self.window.on_disconnect(sent=not any(_never_connected(address, each) for each in results))
            if self.calls is not None:
                self.calls.ended(address, now_ms(), broken=any(isinstance(each, _BROKEN) for each in results))
        self._tracker.failed(address)
        self._note_end(address, results)
        if any(isinstance(each, TimeoutError) for each in results):
            self._give_way()  # a silent node may stay silent for long

    def _note_end(self, address: str, results: list[Any]) -> None:
        """Record why a stream ended. Any error other than a network error is a defect and is logged."""
        for result in results:
            if isinstance(result, grpc.RpcError):
                self.last_error = str(unreachable(address, result))
            elif isinstance(result, TimeoutError):
                self.last_error = f"the broker node at {address} did not answer for {ANSWER_TIMEOUT_MS} ms."
            elif isinstance(result, Exception) and not isinstance(result, asyncio.InvalidStateError):
                logger.error("produce stream failed address=%s", address, exc_info=result)
                self.last_error = f"{type(result).__name__}: {result}"
        logger.info("produce stream ended address=%s reason=%s", address, self.last_error)

    async def _write(self, call: aio.StreamStreamCall[bytes, pb.ProduceResponse]) -> None:
        while self._call is call:
            now = now_ms()
            request = self.window.next_request(now)
            if request is None:
                rest = self.window.paused_until - now
                await happens_anew(self._wake, rest / 1000 if rest > 0 else None)
                continue
            self._on_flush(request.count)
            if self.window.in_flight == 1:
                self._sent_at = now
            if self.calls is not None:
                self.calls.sent(now)
            await call.write(encoded(request))

    async def _read(self, call: aio.StreamStreamCall[bytes, pb.ProduceResponse]) -> None:
        while True:
            response = await call.read()
            if not isinstance(response, pb.ProduceResponse) or self._call is not call:
                return  # the end of the stream
            outcome = self.window.on_response(response, now_ms())
            self._sent_at = now_ms()
            self._note_call(outcome, self._sent_at)
            self._on_outcome(self, outcome)
            if outcome.find_leader:
                self.last_error = f"the node at {self._address} does not lead broker group {self.group.name}."
                if outcome.leader_hint != self._address:
                    self._tracker.hint(outcome.leader_hint)
                return
            self._tracker.succeeded()
            self._avoid_ms = FIRST_AVOID_MS
            self._wake.set()

    def _note_call(self, outcome: Outcome, now: int) -> None:
        """Measure the oldest call. NOT_LEADER and outdated routes say nothing about the broker group."""
        if self.calls is None:
            return
        if outcome.pause_ms and not outcome.refresh_topics:
            self.calls.refused(self._address, now)
        elif not outcome.find_leader:
            self.calls.answered(self._address, now)

    async def _watch_answers(self) -> None:
        """Watch for missing answers: ask the other nodes for the leader; in the end raise TimeoutError."""
        while True:
            await asyncio.sleep(CHECK_S)
            silent_ms = now_ms() - self._sent_at if self.window.in_flight else 0
            if silent_ms > ANSWER_TIMEOUT_MS:
                raise TimeoutError
            if silent_ms > SUSPICION_MS:
                others = [node.log_address for node in self.group.nodes if node.log_address != self._address]
                self._follow(self._tracker.learned(*await who_leads(self._channels, others)))


def _never_connected(address: str, result: object) -> bool:
    return isinstance(result, grpc.RpcError) and unreachable(address, result).not_sent


def encoded(request: Request) -> bytes:
    """Encode a `ProduceRequest` by hand: protobuf would copy the sections twice more."""
    size = sum(section.size for section in request.sections)
    head = b"\x08%b\x18%b\x12%b" % (
        varint(request.request_id), varint(len(request.sections)), varint(size),
    )  # fmt: skip
    return b"".join((head, *request.parts))


def removed(
    connections: Mapping[str, BrokerGroupConnection], routes: Iterable[TopicRoute | None]
) -> list[str]:
    """Return broker groups that were drained and then left every route: they do not come back by themselves.

    A connection with unanswered messages is kept until they are decided.
    """
    listed = {part.group.name for route in routes if route is not None for part in route.parts}
    return [
        name
        for name, each in connections.items()
        if each.group.draining and each.window.idle and name not in listed
    ]

"""Membership stream of one consumer in one consumer group, to one broker group.

Owns: the stream to the leader, the heartbeats, the time since the last contact.
Must not: decide what follows from an answer (its owner does).
Invariants: the member id is the same on every stream, so a member that returns in time keeps its queues. At
most one stream is open.

The leader is silent without news, so loss must be detected by asking: at every heartbeat the nodes are asked
who leads. Our queues cannot get another owner as long as no other node leads. A broker group without a leader
therefore is no loss of contact, except for a member that had lost contact before: there may have been a
leader meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import grpc

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc, route_pb2

from ..cluster.channels import Channels, unreachable
from ..cluster.leader_question import who_leads
from ..cluster.leader_tracker import LeaderTracker
from ..cluster.topic_route import BrokerGroup, Node
from ..errors import LedgerMQError, error_of
from ..event_loop import happens
from ..pauses import LEAVE_S, REFUSED_PAUSE_S
from .options import PushOptions

logger = logging.getLogger(__name__)

#: Refusals that are final for a call, but not for a new stream: another stream took this membership over.
_NOT_FINAL: Final = frozenset({route_pb2.FENCED})


class PushMembership:
    """Keeps one stream open until it is closed. `on_response` gets every answer."""

    def __init__(
        self,
        consumer_group: str,
        member_id: str,
        group: BrokerGroup,
        channels: Channels,
        options: PushOptions,
        *,
        orderly: bool,
        on_response: Callable[[pb.MembershipResponse], None],
        on_contact: Callable[[bool], None],
        on_leader: Callable[[int, str], None],
        on_refused: Callable[[LedgerMQError], None],
    ) -> None:
        """`on_contact(False)`: no contact for a session timeout. `on_contact(True)`: contact again.

        `on_leader(term, node id)`: the new leader. `on_refused(error)`: this consumer cannot be a member;
        there are no more attempts.
        """
        self._first = pb.MembershipRequest(
            group=consumer_group,
            member_id=member_id,
            allocation="" if options.allocation == "sticky" else options.allocation,
            zone=options.zone,
            session_timeout_ms=options.session_timeout_ms,
            release_ms=options.release_ms,
            orderly=orderly,
        )
        self._channels = channels
        self._on_response = on_response
        self._on_contact = on_contact
        self._on_leader = on_leader
        self._on_refused = on_refused
        self._session_s = options.session_timeout_ms / 1000
        self._beat_s = self._session_s / 3
        self._tracker = LeaderTracker(group)
        self._address = ""  # node of the open stream
        self._call: Any = None
        self._reading: asyncio.Task[route_pb2.Refusal | None] | None = None
        self._answered = False  # the open stream had an answer
        self._opened_at = 0.0
        self._heard_at = time.monotonic()
        self._in_contact = True
        self._released: list[pb.QueueOwnership] = []
        self._resubscribed = False
        self._joined = False  # a leader may know of this member
        self._leaving = False
        self._left = False
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def group(self) -> BrokerGroup:
        """The broker group in the newest route."""
        return self._tracker.group

    def start(self, topics: Collection[str], filters: str) -> None:
        """Join with these topics. `filters` is only compared with that of other members."""
        self._first.topics[:] = sorted(topics)
        self._first.filter = filters
        self._tasks = [
            asyncio.create_task(self._run(), name=f"ledgermq-membership-{self.group.name}"),
            asyncio.create_task(self._watch(), name=f"ledgermq-contact-{self.group.name}"),
        ]

    def subscribe(self, topics: Collection[str], filters: str) -> None:
        """Change the subscription of this member."""
        if (list(self._first.topics), self._first.filter) != (sorted(topics), filters):
            self._first.topics[:] = sorted(topics)
            self._first.filter = filters
            self._resubscribed = True
            self._wake.set()

    def release(self, ownerships: Iterable[pb.QueueOwnership]) -> None:
        """Report revoked queues as handed over. A lost report is asked for again on the next stream."""
        self._released.extend(ownerships)
        self._wake.set()

    def update(self, group: BrokerGroup) -> None:
        """Take a newer route."""
        self._follow(self._tracker.update(group))

    async def leave(self) -> None:
        """Leave at once if a leader hears it in time. Otherwise the session timeout frees the queues."""
        self._leaving = True
        self._wake.set()
        if self._tasks and self._joined:
            try:
                async with asyncio.timeout(LEAVE_S):
                    await asyncio.shield(self._tasks[0])
            except TimeoutError:
                logger.info("no leader heard the leave group=%s", self.group.name)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- stream life cycle ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._left:
            address, pause_ms = self._tracker.next()
            if pause_ms and await happens(self._news, pause_ms / 1000):
                self._news.clear()
                continue  # there is a leader now: ask again
            if not address:
                continue
            refusal = await self._use_stream(address)
            self._tracker.failed(address)
            if refusal is None:
                continue
            error = error_of(refusal)
            logger.info("membership refused address=%s reason=%s", address, error)
            if not error.retryable and refusal.code not in _NOT_FINAL:
                if not self._leaving:
                    self._on_refused(error)
                return
            if refusal.code == route_pb2.FENCED and error.retryable:
                self._on_response(pb.MembershipResponse())  # removed from the members: all queues are lost
            self._tracker.hint(refusal.leader_address)
            if refusal.retry_after_ms or refusal.code in _NOT_FINAL:
                await asyncio.sleep(refusal.retry_after_ms / 1000 or REFUSED_PAUSE_S)

    async def _use_stream(self, address: str) -> route_pb2.Refusal | None:
        """Be a member over one stream until it breaks. Return the refusal that ended it, if any."""
        stub = log_pb2_grpc.LogServiceStub(self._channels.get(address))
        call = stub.Membership(metadata=self.group.metadata)
        self._call, self._address, self._answered = call, address, False
        self._opened_at = time.monotonic()
        self._released.clear()
        self._resubscribed = False
        reading = self._reading = asyncio.create_task(self._read(call))
        writing = asyncio.create_task(self._write(call))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._call, self._reading, self._answered = None, None, False
            call.cancel()
            writing.cancel()
            reading.cancel()
            results = await asyncio.gather(reading, writing, return_exceptions=True)
        for result in results:
            if isinstance(result, grpc.RpcError):
                logger.info("membership ended address=%s reason=%s", address, unreachable(address, result))
            elif isinstance(result, Exception) and not isinstance(result, asyncio.InvalidStateError):
                logger.error("membership failed address=%s", address, exc_info=result)
        return results[0] if isinstance(results[0], route_pb2.Refusal) else None

    def _end_stream(self) -> None:
        # Do not cancel the gRPC call itself: if it is just being opened, a waiting task would wait for ever.
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, call: Any) -> route_pb2.Refusal | None:
        while isinstance(response := await call.read(), pb.MembershipResponse):
            if response.HasField("refusal"):
                return response.refusal
            if response.heartbeat_interval_ms:
                self._beat_s = response.heartbeat_interval_ms / 1000
            self._answered = True
            self._tracker.succeeded()
            self._heard()
            self._on_response(response)
        self._left = self._leaving  # the leader ends the stream; `_write` may not see it any more
        return None

    async def _write(self, call: Any) -> None:
        joined, self._joined = self._joined, True  # the leader may have it before the write returns
        try:
            await call.write(self._first)
        except Exception:
            self._joined = joined
            raise
        while not self._leaving:
            if await happens(self._wake, self._beat_s):
                self._wake.clear()
            request = pb.MembershipRequest(released=self._released)
            self._released.clear()
            if self._resubscribed:
                self._resubscribed = False
                request.topics.extend(self._first.topics)
                request.filter = self._first.filter
            await call.write(request)  # empty: a heartbeat
        await call.write(pb.MembershipRequest(leave=True))
        await call.done_writing()
        self._left = await call.code() is grpc.StatusCode.OK  # the leader ends the stream

    # --- contact --------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Ask repeatedly who leads: a silent leader may be gone."""
        while True:
            await asyncio.sleep(self._beat_s)
            addresses = [node.log_address for node in self.group.nodes]
            term, leader_id = await who_leads(self._channels, addresses)
            self._follow(self._tracker.learned(term, leader_id))
            leader = self.group.node(leader_id)
            ours = self._answered and leader is not None and leader.log_address == self._address
            now = time.monotonic()
            if term and (ours or (not leader_id and self._in_contact)):
                self._heard()
            elif self._in_contact and now - self._heard_at > self._session_s:
                self._in_contact = False
                self._on_contact(False)
            if self._call is not None and not self._answered and now - self._opened_at > self._session_s:
                logger.info("membership is not answered address=%s", self._address)
                self._end_stream()

    def _heard(self) -> None:
        self._heard_at = time.monotonic()
        if not self._in_contact:
            self._in_contact = True
            self._on_contact(True)

    def _follow(self, leader: Node | None) -> None:
        """Switch to the new leader, if there is one: the previous node will not answer."""
        if leader is None:
            return
        self._news.set()
        self._on_leader(self._tracker.term, leader.node_id)
        if self._call is not None and leader.log_address != self._address:
            text = "leader moved group=%s term=%d leader=%s"
            logger.info(text, self.group.name, self._tracker.term, leader.node_id)
            self._end_stream()

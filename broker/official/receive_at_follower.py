"""ReceiveMessage at a follower: the leader leases messages and locates them, this node reads them (D17).

Cold reads then use the disk and memory of the node that the consumer is connected to. The leader sends some
20 bytes per message instead of its body. If this node cannot read a message soon (it lags, is being rebuilt,
has a damaged copy, or its disk hangs), it fetches it from the leader. This node hands out only messages
that it has applied or got from the leader, and that the leader has granted.
Without `follower_reads`, or under a leader that knows no grants, the call is passed on whole.
Owns: grants from their arrival until the consumer has the messages. The rest is given back, however late the
grant arrived.
Must not: lease, or choose messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

from ledgermq.proto import peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import RecordView, decode_record
from ledgermq.raft.errors import NodeStoppedError, StorageError

from ..cluster.forwarding import Forwarder, Metadata, answer_of
from ..cluster.lane import ForwardError
from ..config import BrokerConfig
from ..leader.releases import LeaseReleases, release_rows
from ..leader.selection import Delivery
from ..metrics import Metrics
from ..reading.log_reader import LogReader
from ..reading.polls import CommitWatch, Polls, TooManyPollsError
from ..replica import Replica
from .give_backs import deliveries_of_peer, release_of_peer, to_peer
from .receive_at_leader import HandOut, RecordReader, count_out, first_frame, last_frame

logger = logging.getLogger(__name__)

RECEIVE: Final = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
GRANT: Final = "/ledgermq.v1.PeerService/Grant"
READ_GRANTED: Final = "/ledgermq.v1.PeerService/ReadGranted"

#: Most seconds for applying what was granted, and for reading it, before this node asks the leader for the
#: messages. Each ends earlier when half of the call's remaining time is over: the rest is for the leader.
APPLY_SECONDS: Final = 0.25
READ_SECONDS: Final = 2.0
#: Most seconds that a stop waits for the leader to take back what did not reach its consumers.
STOP_SECONDS: Final = 1.0

_Found = tuple[RecordView, int]  # a record, and the ms of log time when it was stored


class GrantedReceives:
    """Receives of consumers that talk to this node while another one leads."""

    def __init__(
        self,
        config: BrokerConfig,
        forwarder: Forwarder,
        releases: LeaseReleases,
        own: OwnLog,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._forwarder = forwarder
        self._releases = releases
        self._own = own
        self._metrics = metrics
        self._holding = 0  # receives that hold leases
        self._released = asyncio.Event()  # set when a receive stops holding leases
        self._from_log = metrics.granted_messages.labels("own_log")
        self._from_leader = metrics.granted_messages.labels("leader")

    async def receive(
        self, leader: str, topic: str, request: bytes, metadata: Metadata, timeout: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of one receive.

        Raises: ForwardError, only before the first frame; then no lease is left behind.
        """
        until = time.monotonic() + timeout
        answer = await self._grant(leader, request, metadata, timeout)
        if answer is None:
            async with aclosing(self._passed_on(leader, request, metadata, timeout)) as passed_on:
                async for frame in passed_on:
                    yield frame
            return
        if answer.status.code != v2.OK:
            yield v2.ReceiveMessageResponse(status=answer.status).SerializeToString()
            yield last_frame()
            return
        with self._held(answer.granted) as left:
            left[:], frames = await self._frames(leader, topic, answer, left, metadata, until)
            yield first_frame(answer.status, frames)
            for frame in frames:
                yield frame
                del left[0]
        count_out(self._metrics, frames)
        yield last_frame()

    @contextmanager
    def _held(self, granted: peer_pb2.GrantedMessages) -> Iterator[list[Delivery]]:
        """Give back what is left in the list at the end: a lost lease would hide its message."""
        left = deliveries_of_peer(granted)  # deliveries that may not have reached the consumer yet
        self._holding += 1
        try:
            yield left
        finally:
            self._holding -= 1
            self._released.set()
            if left:
                self._releases.give_back(release_rows(granted.group_id, granted.topic_id, left))

    async def _grant(
        self, leader: str, request: bytes, metadata: Metadata, timeout: float
    ) -> peer_pb2.GrantAnswer | None:
        """Ask for a grant; None: this leader grants none, or this node is configured not to read.

        Raises: ForwardError; TooManyPollsError (the consumer is told to repeat after a moment).
        """
        if not self._config.follower_reads:
            return None
        try:
            raw = await self._forwarder.poll(leader, GRANT, request, metadata, timeout)
        except ForwardError as error:
            if error.unknown_there:
                return None
            raise
        _count_bytes(self._metrics, "grant", raw)
        return cast(peer_pb2.GrantAnswer, answer_of(leader, peer_pb2.GrantAnswer, raw))

    async def _passed_on(
        self, leader: str, request: bytes, metadata: Metadata, timeout: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a receive that the leader serves itself."""
        async with aclosing(self._forwarder.stream(leader, RECEIVE, request, metadata, timeout)) as frames:
            async for frame in frames:
                _count_bytes(self._metrics, "messages", frame)
                yield frame

    # --- reading --------------------------------------------------------------------------------------------
    async def _frames(
        self,
        leader: str,
        topic: str,
        answer: peer_pb2.GrantAnswer,
        deliveries: Sequence[Delivery],
        metadata: Metadata,
        until: float,
    ) -> tuple[list[Delivery], list[bytes]]:
        """Return the deliveries of a grant that are still stored, in order, and their frames.

        Raises: ForwardError.
        """
        group_id, topic_id = answer.granted.group_id, answer.granted.topic_id
        found = await self._own.read(topic_id, deliveries, until)
        missing = [place for place, each in enumerate(found) if each is None]
        self._from_log.inc(len(found) - len(missing))
        if missing:
            wanted = to_peer(group_id, topic_id, (deliveries[place] for place in missing))
            from_leader = await self._of_leader(leader, wanted, metadata, until)
            for place, each in zip(missing, from_leader, strict=True):
                found[place] = each
            self._from_leader.inc(len(missing))
        hand_out = HandOut(self._config.group, answer.store_host, group_id, topic_id, topic)
        stored, frames = list[Delivery](), list[bytes]()
        for delivery, each in zip(deliveries, found, strict=True):
            if each is not None:  # None: retention deleted it first; the lease ends by itself
                stored.append(delivery)
                frames.append(hand_out.frame(delivery, *each))
        return stored, frames

    async def _of_leader(
        self, leader: str, wanted: peer_pb2.GrantedMessages, metadata: Metadata, until: float
    ) -> list[_Found | None]:
        """Read messages from the leader's log; None for each that it has deleted. Raises: ForwardError."""
        found: list[_Found | None] = []
        timeout = max(until - time.monotonic(), 0.0)
        async with aclosing(
            self._forwarder.stream(leader, READ_GRANTED, wanted.SerializeToString(), metadata, timeout)
        ) as frames:
            async for frame in frames:
                _count_bytes(self._metrics, "messages", frame)
                each = answer_of(leader, peer_pb2.GrantedRecord, frame)
                try:
                    found.append((decode_record(each.record), each.store_timestamp) if each.record else None)
                except LayoutError as error:
                    raise ForwardError(False, f"{leader} sent a damaged record: {error}") from None
        if len(found) != len(wanted.messages):
            raise ForwardError(
                False, f"{leader} sent {len(found)} of {len(wanted.messages)} granted messages"
            )
        return found

    # --- life -----------------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Give back what receives that just ended still held, and what else is to be given back.

        Takes STOP_SECONDS at most. The node must not serve receives any more.
        """
        until = time.monotonic() + STOP_SECONDS
        while self._holding and (remaining := until - time.monotonic()) > 0:
            self._released.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), remaining)
        await self._releases.stop(max(until - time.monotonic(), 0.0))


@dataclass(eq=False, repr=False)
class UnclaimedGrants:
    """Gives back grants that arrive after their receive has ended, was cancelled or missed its deadline."""

    _releases: LeaseReleases
    _metrics: Metrics

    def take(self, raw: bytes) -> None:
        """Take the answer to a `Grant` whose caller is gone."""
        _count_bytes(self._metrics, "grant", raw)
        try:
            answer = answer_of("the leader", peer_pb2.GrantAnswer, raw)
        except ForwardError as error:
            logger.warning("leases of a late answer end by time only reason=%s", error)
            return
        self._releases.give_back(release_of_peer(answer.granted))


@dataclass(eq=False, repr=False)
class OwnLog:
    """Reads granted messages from this node's own log."""

    _replica: Replica
    _reader: LogReader
    _polls: Polls
    _commits: CommitWatch

    async def read(self, topic_id: int, deliveries: Sequence[Delivery], until: float) -> list[_Found | None]:
        """Read granted messages from this node's log within its share of the time until `until`.

        The result has None for each message to be fetched from the leader.
        """
        found: list[_Found | None] = []
        if self._replica.rebuild is None:
            await self._wait_applied(topic_id, deliveries, until)
            records = RecordReader(self._reader)
            seconds = _share(READ_SECONDS, until)
            try:
                async with asyncio.timeout(seconds):
                    for delivery in deliveries:
                        found.append(await self._own_record(records, topic_id, delivery))
            except TimeoutError:
                logger.warning("granted messages not read in time seconds=%g", seconds)
        return found + [None] * (len(deliveries) - len(found))

    async def _own_record(self, records: RecordReader, topic_id: int, delivery: Delivery) -> _Found | None:
        if not self._has_applied(topic_id, delivery.queue_id, delivery.queue_offset):
            return None
        try:
            found = await records.read(delivery)
        except (StorageError, NodeStoppedError) as error:
            logger.info("granted message not read offset=%d reason=%s", delivery.physical_offset, error)
            return None
        if not records.is_at(delivery):
            logger.warning("granted message not found at its place offset=%d", delivery.physical_offset)
            return None
        return found

    def _has_applied(self, topic_id: int, queue_id: int, queue_offset: int) -> bool:
        queue = self._replica.state.queues.get(topic_id, queue_id)
        return queue is not None and queue_offset < queue.end

    async def _wait_applied(self, topic_id: int, deliveries: Sequence[Delivery], until: float) -> None:
        """Wait briefly until this node has applied all granted messages.

        Meanwhile the leader announces commits at once.
        """
        last: dict[int, int] = {}
        for each in deliveries:
            last[each.queue_id] = max(each.queue_offset, last.get(each.queue_id, 0))

        def is_applied() -> bool:
            return all(self._has_applied(topic_id, *each) for each in last.items())

        if is_applied():
            return
        enough = time.monotonic() + _share(APPLY_SECONDS, until)
        with self._commits.waiting():
            while (remaining := enough - time.monotonic()) > 0:
                try:
                    waiter = self._polls.open(("queue", topic_id, queue_id) for queue_id in last)
                except TooManyPollsError:
                    return
                try:
                    if is_applied():
                        return
                    await waiter.wait(remaining)
                finally:
                    waiter.close()


def _count_bytes(metrics: Metrics, kind: str, raw: bytes) -> None:
    metrics.bytes_from_leader.labels(kind).inc(len(raw))


def _share(seconds: float, until: float) -> float:
    """Return `seconds`, or half of the time until a deadline if that is less."""
    return min(seconds, max(until - time.monotonic(), 0.0) / 2)

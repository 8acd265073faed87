"""ReceiveMessage at a follower: the leader leases and says where the messages stand, this node hands them out (D17).

A consumer's cold reads so cost the disk and the memory of the node that it talks to, and the leader sends some 20 bytes for each
message instead of its body. What this node cannot read soon (it lags, is being rebuilt, its copy is damaged, its disk
hangs) comes from the leader. Nothing is handed out that this node has not applied, or that the leader has not granted.
Owns: the grants between their arrival and the consumer; what does not get there is given back, whenever it arrived.
Must not: lease, or choose messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import Final, cast

from ledgermq.proto import peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import RecordView, decode_record
from ledgermq.raft.errors import NodeStoppedError, StorageError

from ..cluster.forwarding import Forwarder, ForwardError, Metadata, answer_of
from ..config import BrokerConfig
from ..leader.leader_view import Delivery
from ..leader.recent_deliveries import release_rows
from ..leader.releases import LeaseReleases
from ..metrics import Metrics
from ..reading.commit_watch import CommitWatch
from ..reading.log_reader import LogReader
from ..reading.polls import Polls, TooManyPollsError
from ..replica import Replica
from .hand_out import HandOut, RecordReader, deliveries_of_peer, first_frame, release_of_peer, to_peer
from .receive_at_leader import count_out, last_frame

logger = logging.getLogger(__name__)

RECEIVE: Final = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
GRANT: Final = "/ledgermq.v1.PeerService/Grant"
READ_GRANTED: Final = "/ledgermq.v1.PeerService/ReadGranted"

#: How long a follower may take to apply what was granted, and to read it, before the leader is asked for the messages. Each
#: ends earlier when half of what is left of the call is over: the rest is the leader's.
APPLY_SECONDS: Final = 0.25
READ_SECONDS: Final = 2.0
#: A stop waits so long for the leader to take back what did not reach its consumers.
STOP_SECONDS: Final = 1.0

_Found = tuple[RecordView, int]  # and ms of log time when it was stored


class GrantedReceives:
    """The receives of consumers that talk to this node while another one leads."""

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
        self._released = asyncio.Event()  # one of them holds none any more
        self._from_log = metrics.granted_messages.labels("own_log")
        self._from_leader = metrics.granted_messages.labels("leader")

    async def receive(
        self, leader: str, topic: str, request: bytes, metadata: Metadata, timeout: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of one receive. Raises: ForwardError before the first of them; nothing is leased then."""
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
        """Give back what is left in the list at the end: a lease that nobody knows of keeps its message from everybody."""
        left = deliveries_of_peer(granted)  # what may not have reached the consumer yet
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
        """Ask for a grant; None: this leader gives none, or this node shall not read.

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
        """Yield the frames of a leader that reads the messages itself."""
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
        """Return what of a grant is still stored, in its order, and the frames. Raises: ForwardError."""
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
            if each is not None:  # else retention was quicker; the lease ends by itself
                stored.append(delivery)
                frames.append(hand_out.frame(delivery, *each))
        return stored, frames

    async def _of_leader(
        self, leader: str, wanted: peer_pb2.GrantedMessages, metadata: Metadata, until: float
    ) -> list[_Found | None]:
        """Get messages from the leader's log; None for each that it has deleted. Raises: ForwardError."""
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
        """Give back what the receives that ended just now held, and what is owed still, within a bound.

        Serve none any more.
        """
        until = time.monotonic() + STOP_SECONDS
        while self._holding and (remaining := until - time.monotonic()) > 0:
            self._released.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), remaining)
        await self._releases.stop(max(until - time.monotonic(), 0.0))


class UnclaimedGrants:
    """Gives back grants that arrive when their receive is over, cancelled or at its deadline."""

    def __init__(self, releases: LeaseReleases, metrics: Metrics) -> None:
        self._releases = releases
        self._metrics = metrics

    def take(self, raw: bytes) -> None:
        """Take the answer to a `Grant` whose caller is gone."""
        _count_bytes(self._metrics, "grant", raw)
        try:
            answer = answer_of("the leader", peer_pb2.GrantAnswer, raw)
        except ForwardError as error:
            logger.warning("leases of a late answer end by time only reason=%s", error)
            return
        self._releases.give_back(release_of_peer(answer.granted))


class OwnLog:
    """Granted messages as this node's own log has them."""

    def __init__(self, replica: Replica, reader: LogReader, polls: Polls, commits: CommitWatch) -> None:
        self._replica = replica
        self._reader = reader
        self._polls = polls
        self._commits = commits

    async def read(self, topic_id: int, deliveries: Sequence[Delivery], until: float) -> list[_Found | None]:
        """Read what this node's log has; None for each message that is to be had of the leader, in the time that is left."""
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
        """Wait until this node has applied all that was granted, not for long. The leader hurries meanwhile."""
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
    """Return so many seconds, or half of what is left until a deadline."""
    return min(seconds, max(until - time.monotonic(), 0.0) / 2)

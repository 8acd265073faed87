"""ReceiveMessage at the leader: select, lease, wait for apply, read, hand out; long poll when none is found.

Messages are sent only after their grant is applied (D14). Messages that were granted but not sent (the client
went away) are released. A follower gets only the grant, and hands the messages out itself
(`receive_at_follower.py`).
Owns: one receive from its request to its frames, and the form of frames on any node. Must not: choose
messages (the leader's view does).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ledgermq.proto import peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.foreign_text import safe_text
from ledgermq.proto.record import RecordView, hash_text
from ledgermq.raft.errors import LogCompactedError, NodeStoppedError, NotLeaderError
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.known_leader import Leadership
from ..cluster.leader_calls import Call
from ..cluster.members import Members
from ..config import BrokerConfig
from ..errors import ConsumeQueueError, QueueNotFoundError
from ..leader.pipeline import AppendPipeline, Flight, settle, settle_error
from ..leader.releases import LeaseHolders, LeaseReleases, RecentDeliveries, release_of
from ..leader.selection import Delivery, GrantPlan, ReceiveRequest
from ..metrics import Metrics
from ..reading.log_reader import LogReader, QueueReader, StoredSection
from ..reading.polls import Polls, TooManyPollsError
from ..replica import Replica
from ..service.creation import Creation
from ..service.sessions import session_of
from ..state.commands import ReleaseLeases, SetPositions, position_rows
from ..state.consumer_groups import ConsumerGroup
from ..state.effects import Effects, GrantResult
from ..state.machine import BrokerState
from ..state.topics import Topic
from ..wire import official as wire
from ..wire.receipt_handle import ReceiptHandle
from ..wire.status import StatusError, topic_not_found
from ..wire.validation import MAX_FILTER_LENGTH, check_consumer_group, check_topic, invisible_ms
from .give_backs import to_peer

logger = logging.getLogger(__name__)

MAX_BATCH: Final = 32
AUTO_RENEW_INVISIBLE_MS: Final = 60_000
MAX_POLLING: Final = 20.0  # seconds
#: Seconds before the client's deadline when the answer must leave; later, its leases would have no holder.
POLLING_MARGIN: Final = 0.5
#: Most bytes that a selection adds to an append turn: COMMAND_BYTES for both commands with MAX_PARKED
#: messages, MESSAGE_BYTES for each granted message, if each is of a different queue.

COMMAND_BYTES: Final = 512
MESSAGE_BYTES: Final = 40


class ReceiveWork:
    """One selection in an append turn. Once the grant is applied, the future holds (plan, deliveries)."""

    section_bound = 0
    essential = False
    filters: bool

    def __init__(
        self,
        request: ReceiveRequest,
        release: Callable[[list[Delivery]], None],
        tell: Callable[[GrantResult], None] = lambda result: None,
    ) -> None:
        """`release` gets messages whose receive has ended, `tell` the applied grant."""
        self._request = request
        self.size = COMMAND_BYTES + request.max_count * MESSAGE_BYTES
        self.filters = request.tags is not None
        self._release = release
        self._tell = tell
        self._plan: GrantPlan | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def place(self, flight: Flight, now: int) -> None:
        if self.future.done():  # the receive has ended
            return
        try:
            self._plan = flight.turn.grant(self._request, now)
        except ConsumeQueueError as error:  # concerns queue files, not the other work of this turn
            self.fail(error)
            return
        if not self._plan.is_decided_by_apply:
            settle(self.future, (self._plan, self._plan.repeats))

    def on_committed(self, flight: Flight) -> None:
        """Do nothing: messages are sent after apply."""

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        plan = self._plan
        if plan is not None and plan.is_decided_by_apply:
            deliveries = list(plan.repeats)
            if plan.slot is not None:
                result: Any = effects.results[plan.slot]
                self._tell(result)
                deliveries += plan.deliveries(result)
            if self.future.done():
                self._release(deliveries)
            else:
                self.future.set_result((plan, deliveries))

    def fail(self, error: Exception) -> None:
        settle_error(self.future, error)

    def give_back(self) -> None:
        """Release what was granted at the very moment when the receive ended."""
        if self.future.done() and not self.future.cancelled() and self.future.exception() is None:
            self._release(self.future.result()[1])


@dataclass(frozen=True, slots=True)
class CheckedReceive:
    """A validated request."""

    topic: Topic
    consumer_group: ConsumerGroup
    request: ReceiveRequest
    until: float  # monotonic seconds: end of the long poll
    notes: list[str] = field(default_factory=list)  # remarks that the answer's status carries

    @property
    def status(self) -> v2.Status:
        """The status that precedes the messages."""
        return v2.Status(code=v2.OK, message="; ".join(self.notes) or "OK")

    def note(self, result: GrantResult) -> None:
        """Note which messages retention deleted before the consumer group had consumed them."""
        for queue in result.queues:
            if queue.lost:
                self.notes.append(
                    f"retention deleted {queue.lost} messages of topic {self.topic.name} queue "
                    f"{queue.queue_id} before consumer group {self.consumer_group.name} had consumed them; "
                    f"the queue begins at offset {queue.begin} now"
                )


def tags_of(expression: v2.FilterExpression) -> frozenset[int] | None:
    """Return the tag hashes that a filter accepts; None: all. Raises: StatusError."""
    if expression.type == v2.SQL:
        raise StatusError(v2.NOT_IMPLEMENTED, "SQL filters are not built yet; filter by tags")
    text = expression.expression.strip()
    if text in ("", "*"):
        return None
    if len(text) > MAX_FILTER_LENGTH:
        raise StatusError(
            v2.ILLEGAL_FILTER_EXPRESSION, f"the filter is longer than {MAX_FILTER_LENGTH:,} characters"
        )
    tags = [tag.strip() for tag in text.split("||")]
    if not any(tags):
        raise StatusError(v2.ILLEGAL_FILTER_EXPRESSION, f'filter "{safe_text(text, 100)}" names no tag')
    return None if "*" in tags else frozenset(hash_text(tag) for tag in tags if tag)


def polling_seconds(request: v2.ReceiveMessageRequest, remaining: float) -> float:
    """Return how long a receive without messages may wait; `remaining`: seconds left for the whole call.

    A client that sets no time waits until its deadline; one that sets 0 wants the answer at once.
    """
    if request.HasField("long_polling_timeout"):
        wanted = request.long_polling_timeout.ToMilliseconds() / 1000
    else:
        wanted = remaining - 1.5
    return max(min(wanted, MAX_POLLING, remaining - POLLING_MARGIN), 0.0)


@dataclass(frozen=True, slots=True)
class HandOut:
    """Values that the messages of one receive share.

    The bytes of a record are equal on all nodes, and the grant contains what is added to them. So a consumer
    gets the same frame from whichever node reads the record.
    """

    broker_group: str
    store_host: str  # messaging address of the leader, on the caller's listener
    group_id: int  # consumer group
    topic_id: int
    topic: str

    def frame(self, delivery: Delivery, record: RecordView, store_timestamp: int) -> bytes:
        """Return the encoded answer frame of one message."""
        place = delivery.queue_id, delivery.queue_offset
        handle = ReceiptHandle(
            self.broker_group, self.group_id, self.topic_id, *place, delivery.lease_id, delivery.attempt
        )
        added = wire.OutgoingDelivery(
            *place, store_timestamp, self.store_host, handle.encode(), delivery.attempt, self.topic
        )
        return wire.message_frame(wire.delivered_message(record, added))


class RecordReader:
    """Reads the records of one receive from this node's log. Caches the section that was read last."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._section: StoredSection | None = None
        self._queue_id = -1

    async def read(self, delivery: Delivery) -> tuple[RecordView, int]:
        """Return a record and its store time (ms of log time). Raises: LogCompactedError, DamagedLogError."""
        section = self._section
        if section is None or self._queue_id != delivery.queue_id or not section.holds(delivery.queue_offset):
            section = self._section = await self._log.section_of(delivery.physical_offset)
            self._queue_id = delivery.queue_id
        return await self._log.record(delivery.physical_offset, delivery.size), section.store_timestamp

    def is_at(self, delivery: Delivery) -> bool:
        """Return whether the section that was read last contains this queue offset."""
        return self._section is not None and self._section.holds(delivery.queue_offset)


@dataclass(eq=False, repr=False)
class LeaderReceives:
    """Serves receives at the leader: with the messages, or with a grant for the follower that asks."""

    _config: BrokerConfig
    _replica: Replica
    _creation: Creation
    _selections: Selections
    _deliveries: RecentDeliveries
    _holders: LeaseHolders
    _reader: LogReader
    _members: Members
    _metrics: Metrics

    async def receive(self, request: v2.ReceiveMessageRequest, call: Call) -> AsyncGenerator[bytes, None]:
        """Yield the frames of one receive.

        Raises: StatusError, and what the pipeline raises; all before the first frame.
        """
        receiver, left = await self._lease(request, call)  # `left`: what may not have been sent yet
        try:
            left, frames = await self._frames(receiver, left, call)
            self._deliveries.add(time.monotonic(), call.via, receiver.request, left)
            yield first_frame(receiver.status, frames)
            for frame in frames:
                yield frame
                left = left[1:]
        except BaseException:  # for any reason: a lost lease of a live session would never end
            release(self._replica.releases, receiver.request, left)
            raise
        count_out(self._metrics, frames)
        yield last_frame()

    async def grant(
        self, request: v2.ReceiveMessageRequest, call: Call
    ) -> tuple[peer_pb2.GrantAnswer, ReleaseLeases | None]:
        """Serve one receive except for the messages, which the calling node reads.

        Raises: as `receive`. Release the leases with the returned command if the answer does not
        arrive; None: they end by themselves.
        """
        receiver, leased = await self._lease(request, call)
        noted = self._deliveries.add(time.monotonic(), call.via, receiver.request, leased)
        answer = peer_pb2.GrantAnswer(
            status=receiver.status,
            store_host=self._members.own_messaging_address(call.listener),
            granted=to_peer(receiver.consumer_group.group_id, receiver.topic.topic_id, leased),
        )
        return answer, noted

    async def _frames(
        self, receiver: CheckedReceive, deliveries: list[Delivery], call: Call
    ) -> tuple[list[Delivery], list[bytes]]:
        """Read the messages; return the deliveries that are still stored, and their frames."""
        hand_out = HandOut(
            self._config.group,
            self._members.own_messaging_address(call.listener),
            receiver.consumer_group.group_id,
            receiver.topic.topic_id,
            receiver.topic.name,
        )
        records = RecordReader(self._reader)
        stored, frames = list[Delivery](), list[bytes]()
        for delivery in deliveries:
            try:
                record, store_timestamp = await records.read(delivery)
            except LogCompactedError:
                continue  # retention deleted it first; the lease ends by itself, the position moves past it
            stored.append(delivery)
            frames.append(hand_out.frame(delivery, record, store_timestamp))
        return stored, frames

    async def _lease(
        self, request: v2.ReceiveMessageRequest, call: Call
    ) -> tuple[CheckedReceive, list[Delivery]]:
        """Lease messages for a consumer; wait for some until its poll ends.

        The leases of an earlier attempt of the same receive end. The caller must deliver or release the rest.
        """
        receiver = await self._checked(request, call)
        released = map(self._replica.releases.propose, self._deliveries.repeated(request.attempt_id))
        await asyncio.gather(*released)
        leased = await self._selections.granted(receiver)
        self._holders.granted(call.client_id, leased)
        return receiver, leased

    async def _checked(self, request: v2.ReceiveMessageRequest, call: Call) -> CheckedReceive:
        name, consumer_group_name = request.message_queue.topic.name, request.group.name
        check_topic(name)
        check_consumer_group(consumer_group_name)
        tags = tags_of(request.filter_expression)
        duration = AUTO_RENEW_INVISIBLE_MS
        if not request.auto_renew:
            duration = invisible_ms(request, self._config.min_invisible_ms)
        topic = await self._creation.ensure_topic(name)
        if topic is None:
            raise topic_not_found(name)
        consumer_group = await self._creation.ensure_consumer_group(consumer_group_name)
        check_not_exclusive(self._replica.state, consumer_group, name)
        wanted = ReceiveRequest(
            consumer_group.group_id,
            topic.topic_id,
            min(request.batch_size, MAX_BATCH) if request.batch_size > 0 else MAX_BATCH,
            duration,
            tags,
            session_of(call.client_id) if request.auto_renew else 0,
            request.attempt_id,
        )
        polling = polling_seconds(request, call.deadline - time.monotonic())
        receiver = CheckedReceive(topic, consumer_group, wanted, time.monotonic() + polling)
        self._selections.compare_filters(receiver, request.filter_expression.expression)
        return receiver


@dataclass(eq=False, repr=False)
class Selections:
    """Sends selections of the leader's view through the pipeline until one grants messages."""

    _raft: RaftNode
    _replica: Replica
    _pipeline: AppendPipeline
    _polls: Polls
    _leadership: Leadership
    _queues: QueueReader

    def compare_filters(self, receiver: CheckedReceive, expression: str) -> None:
        """Log, and note for this consumer, that consumers of its consumer group use different filters."""
        request, view = receiver.request, self._replica.view
        if view is None:
            return
        now = self._raft.next_timestamp()
        differing = view.filters.look(request.group_id, request.topic_id, request.tags, expression, now)
        if differing:
            text = (
                f'consumers of consumer group "{receiver.consumer_group.name}" filter topic '
                f'"{receiver.topic.name}" differently: by {", by ".join(differing)}. What one of them leaves '
                "out, the others never get: give each filter a consumer group of its own"
            )
            logger.warning("%s", text)
            receiver.notes.append(text)

    async def granted(self, receiver: CheckedReceive) -> list[Delivery]:
        """Return leased messages; wait for some until the poll ends.

        A node that lost its queue files refuses. Raises: StatusError, NodeStoppedError, and what the
        pipeline raises.
        """
        try:
            return await self._poll(receiver)
        except ConsumeQueueError as error:
            raise NodeStoppedError(str(error)) from None
        except QueueNotFoundError:  # deleted while a start position was looked up
            raise topic_not_found(receiver.topic.name) from None

    async def _poll(self, receiver: CheckedReceive) -> list[Delivery]:
        key = ("topic", receiver.topic.topic_id)
        while True:
            try:
                waiter = self._polls.open((key, "leader"))
            except TooManyPollsError as error:
                raise StatusError(v2.TOO_MANY_REQUESTS, f"polling full: {error}") from None
            try:
                deliveries = await self._select(receiver)
                remaining = receiver.until - time.monotonic()
                if deliveries or remaining <= 0:
                    return deliveries
                await waiter.wait(min(remaining, self._until_expiry(receiver)))
            finally:
                waiter.close()
            if not self._leadership.ready:
                raise NotLeaderError(self._leadership.leader_id)

    def _until_expiry(self, receiver: CheckedReceive) -> float:
        """Return the seconds until a lease of the consumer group may expire."""
        view = self._replica.view
        if view is None:
            return 0.0
        expiry = view.selector.next_expiry(receiver.consumer_group.group_id, receiver.topic.topic_id)
        if expiry is None:
            return MAX_POLLING
        return max((expiry - self._raft.next_timestamp()) / 1000, 0.001)

    async def _select(self, receiver: CheckedReceive) -> list[Delivery]:
        """Select once, after loading what the selection needs from disk or log."""
        request = receiver.request
        while True:
            view = self._replica.view
            if view is None:
                raise NotLeaderError(self._leadership.leader_id)
            if not view.selector.has_deliverable(request, self._raft.next_timestamp()):
                return []
            work = ReceiveWork(request, partial(release, self._replica.releases, request), receiver.note)
            self._pipeline.submit(work)
            try:
                plan, deliveries = await work.future
            except asyncio.CancelledError:
                work.give_back()
                raise
            except ConsumeQueueError as error:
                await self._replica.mended(error)
                continue
            found: list[Delivery] = deliveries
            if found:
                return found  # leased: deliver them, whatever other queues still need
            if plan.cold:
                await self._replica.warm(plan.cold)
            elif plan.unresolved:
                await self._resolve_start(request, plan.unresolved)
            elif (plan.unfinished or plan.parks) and time.monotonic() < receiver.until:
                # A filter scans a long queue turn by turn; behind parked messages there may be more.
                continue
            elif plan.slot is None or time.monotonic() >= receiver.until:
                return found  # else an entry was applied before the grant: select again from the new state

    async def _resolve_start(self, request: ReceiveRequest, queue_ids: Any) -> None:
        """Propose start positions in queues that a consumer group with a start time has not consumed from."""
        consumer_group = self._replica.state.groups.get(request.group_id)
        start = consumer_group.start.timestamp_ms if consumer_group is not None else None
        rows = []
        for queue_id in queue_ids:
            offset = await self._queues.offset_at_time(request.topic_id, int(queue_id), start or 0)
            rows.append((request.topic_id, int(queue_id), offset))
        await self._pipeline.run(SetPositions(request.group_id, position_rows(rows)))


def count_out(metrics: Metrics, frames: list[bytes]) -> None:
    """Count the messages that this node handed to a consumer."""
    metrics.messages_out.labels("messaging").inc(len(frames))
    metrics.bytes_out.labels("messaging").inc(sum(map(len, frames)))


def first_frame(status: v2.Status, frames: list[bytes]) -> bytes:
    """Return the status frame that precedes the messages; without messages it keeps the status's text."""
    if not frames:
        told = status.message if status.message != "OK" else "no new message"
        status = v2.Status(code=v2.MESSAGE_NOT_FOUND, message=told)
    return v2.ReceiveMessageResponse(status=status).SerializeToString()


def last_frame() -> bytes:
    """Return the frame that ends every receive."""
    frame = v2.ReceiveMessageResponse()
    frame.delivery_timestamp.FromMilliseconds(time.time_ns() // 1_000_000)
    return frame.SerializeToString()


def check_not_exclusive(state: BrokerState, consumer_group: ConsumerGroup, topic: str) -> None:
    """Refuse leases on a topic whose queues the consumer group's members own. Raises: StatusError."""
    membership = state.memberships.get(consumer_group.group_id)
    if membership is not None and topic in membership.subscribed:
        raise StatusError(
            v2.ILLEGAL_CONSUMER_GROUP,
            f'the members of consumer group "{consumer_group.name}" consume topic {topic} queue by queue; '
            "use another consumer group, or stop them first",
        )


def release(releases: LeaseReleases, request: ReceiveRequest, deliveries: list[Delivery]) -> None:
    """Release what a client that went away did not get: visible at once, without counting an attempt."""
    if deliveries:
        releases.propose(release_of(request, deliveries))

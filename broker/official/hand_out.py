"""Granted messages: their encoding between leader and follower, and the frames that a consumer gets (D17).

The bytes of a record are equal on all nodes, and the grant contains what is added to them. So a consumer gets
the same frame from whichever node reads the record.
Owns: nothing. Must not: lease, or decide which node reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.proto import peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import RecordView

from ..leader.selection import Delivery
from ..reading.log_reader import LogReader, StoredSection
from ..state.commands import ReleaseLeases, lease_rows
from ..wire import official as wire
from ..wire.receipt_handle import ReceiptHandle


@dataclass(frozen=True, slots=True)
class HandOut:
    """Values that the messages of one receive share."""

    broker_group: str
    store_host: str  # messaging address of the leader, on the caller's listener
    group_id: int  # consumer group
    topic_id: int
    topic: str

    def frame(self, delivery: Delivery, record: RecordView, store_timestamp: int) -> bytes:
        """Return the encoded answer frame of one message."""
        handle = ReceiptHandle(
            self.broker_group,
            self.group_id,
            self.topic_id,
            delivery.queue_id,
            delivery.queue_offset,
            delivery.lease_id,
            delivery.attempt,
        )
        added = wire.OutgoingDelivery(
            delivery.queue_id,
            delivery.queue_offset,
            store_timestamp,
            self.store_host,
            handle.encode(),
            delivery.attempt,
            self.topic,
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


def first_frame(status: v2.Status, frames: list[bytes]) -> bytes:
    """Return the status frame that precedes the messages; without messages it keeps the status's text."""
    if not frames:
        told = status.message if status.message != "OK" else "no new message"
        status = v2.Status(code=v2.MESSAGE_NOT_FOUND, message=told)
    return v2.ReceiveMessageResponse(status=status).SerializeToString()


def to_peer(group_id: int, topic_id: int, deliveries: Iterable[Delivery]) -> peer_pb2.GrantedMessages:
    """Encode deliveries for another node."""
    granted = peer_pb2.GrantedMessages(group_id=group_id, topic_id=topic_id)
    for each in deliveries:
        granted.messages.add(
            queue_id=each.queue_id,
            queue_offset=each.queue_offset,
            physical_offset=each.physical_offset,
            size=each.size,
            attempt=each.attempt,
            lease_id=each.lease_id,
        )
    return granted


def deliveries_of_peer(granted: peer_pb2.GrantedMessages) -> list[Delivery]:
    """Decode the deliveries that `to_peer` encoded."""
    return [
        Delivery(
            each.queue_id, each.queue_offset, each.physical_offset, each.size, 0, each.attempt, each.lease_id
        )
        for each in granted.messages
    ]


def peer_of_release(command: ReleaseLeases) -> peer_pb2.GrantedMessages:
    """Encode leases to give back; `release_of_peer` decodes them."""
    granted = peer_pb2.GrantedMessages(group_id=command.group_id, topic_id=command.topic_id)
    for queue_id, offset, lease_id in command.rows.tolist():
        granted.messages.add(queue_id=queue_id, queue_offset=offset, lease_id=lease_id)
    return granted


def release_of_peer(granted: peer_pb2.GrantedMessages) -> ReleaseLeases:
    """Decode the command that ends the leases of undelivered messages."""
    rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in granted.messages]
    return ReleaseLeases(granted.group_id, granted.topic_id, lease_rows(rows))

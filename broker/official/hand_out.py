"""Granted messages: their words on the way between leader and follower, and the frames that a consumer gets of them (D17).

The bytes of a record are equal on all nodes, and what is added to them is in the grant, so a consumer gets the same frame
from whichever node reads the record.
Owns: nothing. Must not: lease, or decide who reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.proto import peer_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import RecordView

from ..leader.leader_view import Delivery
from ..reading.log_reader import LogReader, StoredSection
from ..state.commands import ReleaseLeases, lease_rows
from ..wire import official as wire
from ..wire.receipt_handle import ReceiptHandle


@dataclass(frozen=True, slots=True)
class HandOut:
    """What the messages of one receive have in common."""

    broker_group: str
    store_host: str
    group_id: int
    topic_id: int
    topic: str

    def frame(self, delivery: Delivery, record: RecordView, store_timestamp: int) -> bytes:
        """Return the frame of one message."""
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
    """Reads the records of one receive from this node's log; those of one section share a look at it."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._section: StoredSection | None = None
        self._queue_id = -1

    async def read(self, delivery: Delivery) -> tuple[RecordView, int]:
        """Return a record and when it was stored (ms of log time). Raises: LogCompactedError, DamagedLogError."""
        section = self._section
        if section is None or self._queue_id != delivery.queue_id or not section.holds(delivery.queue_offset):
            section = self._section = await self._log.section_of(delivery.physical_offset)
            self._queue_id = delivery.queue_id
        return await self._log.record(delivery.physical_offset, delivery.size), section.store_timestamp

    def is_at(self, delivery: Delivery) -> bool:
        """Tell whether the section that was read last is the one of this queue offset."""
        return self._section is not None and self._section.holds(delivery.queue_offset)


def first_frame(status: v2.Status, frames: list[bytes]) -> bytes:
    """Return the status, which comes before the messages; what it has to say it says without them, too."""
    if not frames:
        told = status.message if status.message != "OK" else "no new message"
        status = v2.Status(code=v2.MESSAGE_NOT_FOUND, message=told)
    return v2.ReceiveMessageResponse(status=status).SerializeToString()


def to_peer(group_id: int, topic_id: int, deliveries: Iterable[Delivery]) -> peer_pb2.GrantedMessages:
    """Return deliveries as nodes tell them to each other."""
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
    """Return the deliveries that `to_peer` wrote down."""
    return [
        Delivery(
            each.queue_id, each.queue_offset, each.physical_offset, each.size, 0, each.attempt, each.lease_id
        )
        for each in granted.messages
    ]


def peer_of_release(command: ReleaseLeases) -> peer_pb2.GrantedMessages:
    """Return leases that are given back, as `release_of_peer` reads them."""
    granted = peer_pb2.GrantedMessages(group_id=command.group_id, topic_id=command.topic_id)
    for queue_id, offset, lease_id in command.rows.tolist():
        granted.messages.add(queue_id=queue_id, queue_offset=offset, lease_id=lease_id)
    return granted


def release_of_peer(granted: peer_pb2.GrantedMessages) -> ReleaseLeases:
    """Return the command that ends the leases of messages that did not leave."""
    rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in granted.messages]
    return ReleaseLeases(granted.group_id, granted.topic_id, lease_rows(rows))

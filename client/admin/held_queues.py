"""Holds of a topic as their holders see them. Pure.

Owns: `Hold`, and the requests that set one in several broker groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledgermq.proto import admin_pb2 as pb

from ..arguments import check_offset, check_queue, wrong
from ..errors import UsageError
from ..message import MessageQueue


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold in one queue: retention waits for its messages from `offset` on.

    `overridden`: it did not wait. `lost` messages that the holder needed were deleted, because of a limit of
    the brokers, by hand, or before it was set. That is told until the advance after the one that was told it
    first, for the answer to that may have been lost.
    """

    name: str
    queue: MessageQueue
    offset: int  # messages from here on are needed
    advanced_ms: int  # when its holder last named it: log time, ms since the epoch
    overridden: bool
    lost: int = 0
    expired: bool = (
        False  # its holder was silent for too long (hold_expires_hours): retention waits no longer
    )


def holds_of(topic: str, broker_group: str, infos: Iterable[pb.HoldInfo]) -> list[Hold]:
    """Return the holds in an answer of a broker group."""
    return [
        Hold(
            each.name,
            MessageQueue(topic, broker_group, each.queue_id),
            each.offset,
            each.advanced_ms,
            each.lost > 0,
            each.lost,
            each.expired,
        )
        for each in infos
    ]


def held_offsets(name: str, value: object) -> None:
    """Check offsets by queue. Raises: UsageError."""
    if not isinstance(value, Mapping) or not value:
        raise wrong(name, value, "a mapping with at least one MessageQueue and its offset")
    for queue, offset in value.items():
        check_queue(queue)
        check_offset(offset)


def hold_requests(topic: str, name: str, offsets: Mapping[MessageQueue, int]) -> dict[str, pb.SetHoldRequest]:
    """Return the request for each broker group that has one of the queues. Raises: UsageError."""
    requests: dict[str, pb.SetHoldRequest] = {}
    for queue, offset in sorted((check_queue(queue), offset) for queue, offset in offsets.items()):
        if queue.topic != topic:
            raise UsageError(
                f"{queue} is no queue of topic {topic}", "Nothing was changed", "A hold belongs to one topic"
            )
        request = requests.setdefault(queue.broker_group, pb.SetHoldRequest(topic=topic, name=name))
        request.queues.add(queue_id=queue.queue_id, offset=offset)
    return requests

"""Parked messages of topics, as the brokers name them. Runs on the driver.

Owns: the calls. A parked message was delivered as often as its consumer group allows, or was given up by a
consumer; it stays in its queue, and nobody gets it until it is released. They are what LedgerMQ has of dead
letters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ledgermq.proto import admin_pb2

#: Parked messages of a consumer group and topic that a broker group is asked to name; it names no more.
MAX_LISTED: Final = 10_000


class ParkedLook(Protocol):
    """The part of Admin that is needed."""

    def topic_losses(self, topic: str) -> list[tuple[str, admin_pb2.TopicProgress]]: ...

    def deliveries(
        self, name: str, topic: str = "", *, max_parked: int = 0
    ) -> list[tuple[str, admin_pb2.GetDeliveriesResponse]]: ...


@dataclass(slots=True)
class ParkedPlaces:
    """Where parked messages are: (topic, broker group, queue id, queue offset) -> how many consumer groups
    have parked the message there. `unlisted`: how many more there are that the brokers did not name.
    """

    places: dict[tuple[str, str, int, int], int] = field(default_factory=dict)
    unlisted: int = 0


def find_parked(admin: ParkedLook, topics: Iterable[str]) -> ParkedPlaces:
    """Ask all broker groups. Raises: LedgerMQError (one does not answer, or a topic does not exist)."""
    found = ParkedPlaces()
    for topic in topics:
        told: dict[str, int] = {}
        for _, progress in admin.topic_losses(topic):
            if progress.parked:
                told[progress.group] = told.get(progress.group, 0) + progress.parked
        for consumer_group, count in sorted(told.items()):
            listed = 0
            for broker_group, answer in admin.deliveries(consumer_group, topic, max_parked=MAX_LISTED):
                for each in answer.parked:
                    place = (topic, broker_group, each.queue_id, each.queue_offset)
                    found.places[place] = found.places.get(place, 0) + 1
                listed += len(answer.parked)
            found.unlisted += max(0, count - listed)
    return found


def as_rows(found: ParkedPlaces) -> list[dict[str, Any]]:
    """Return them as rows with the names of the source's columns."""
    return [
        {"topic": topic, "queue_group": group, "queue": queue, "offset": offset, "parked": count}
        for (topic, group, queue, offset), count in found.places.items()
    ]

"""What a producer says of itself: figures of one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .produce_stream import GroupConnection


class ProducerStatistics(NamedTuple):
    """Messages since the start, of those that were taken. `stored` and `failed` count the one-way ones, too; some of what
    failed may be stored.
    """

    group: str
    stored: int
    failed: int
    one_way_stored: int
    one_way_failed: int
    one_way_dropped: int


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """One broker group as a producer sees it. Counts are messages, since the producer began with the group."""

    broker_group: str
    stored: int  # acknowledged by it
    repeated: int  # of them recognised as stored before, when they were sent again
    failed: int  # given up; some may be stored
    moved: int  # refused for good, and handed to another group
    waiting: int  # not decided yet
    connected: bool
    avoided: bool  # new messages go elsewhere for a moment: it asked for a pause, or nobody in it answers
    draining: bool  # it takes no new messages until somebody takes it back
    leader_id: str  # "" while there is none, or none is known
    latency_ms: float | None  # of its calls; None: nobody measures it (send_latency_fault_enable)
    last_error: str  # why its last stream ended, for people


def statistics_of(connection: GroupConnection, now: int) -> GroupStatistics:
    """Return the figures of a broker group. `now`: ms of the connection's clock."""
    group, counts = connection.group, connection.counts
    return GroupStatistics(
        group.name,
        counts.stored,
        counts.repeated,
        counts.failed,
        counts.moved,
        connection.window.open_messages,
        connection.connected,
        connection.window.avoid_until > now,
        group.draining,
        group.leader_id,
        connection.calls.latency(now) if connection.calls is not None else None,
        connection.last_error,
    )

"""Statistics of a producer: counters and state at one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .produce_stream import BrokerGroupConnection


class ProducerStatistics(NamedTuple):
    """Counts of accepted messages since the start; messages.

    `stored` and `failed` include one-way messages. Some failed messages may be stored.
    `one_way_dropped` counts messages that were not accepted.
    """

    group: str
    stored: int
    failed: int
    one_way_stored: int
    one_way_failed: int
    one_way_dropped: int


@dataclass(frozen=True, slots=True)
class BrokerGroupStatistics:
    """One broker group as a producer sees it. Counts are messages since the producer first used it."""

    broker_group: str
    stored: int  # acknowledged by the broker group
    repeated: int  # of these, detected as duplicates after a resend
    failed: int  # given up; some may be stored
    moved: int  # definitely refused, and handed to another broker group
    waiting: int  # not decided yet
    connected: bool
    avoided: bool  # gets no new messages for now: it asked for a pause, or no node answers
    draining: bool  # takes no new messages until an operator ends the draining
    leader_id: str  # "" while there is none, or none is known
    latency_ms: float | None  # expected latency of a call; None: not measured (send_latency_fault_enable)
    last_error: str  # why its last stream ended, human-readable


def statistics_of(connection: BrokerGroupConnection, now: int) -> BrokerGroupStatistics:
    """Return the statistics of a broker group. `now`: ms of the connection's clock."""
    broker_group, counts = connection.group, connection.counts
    return BrokerGroupStatistics(
        broker_group.name,
        counts.stored,
        counts.repeated,
        counts.failed,
        counts.moved,
        connection.window.open_messages,
        connection.connected,
        connection.window.avoid_until > now,
        broker_group.draining,
        broker_group.leader_id,
        connection.calls.latency(now) if connection.calls is not None else None,
        connection.last_error,
    )

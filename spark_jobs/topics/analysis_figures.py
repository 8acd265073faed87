"""MessageFigures of an analysis: what was counted of topics, their tags and their hours. Pure.

Owns: the figures, their names in JSON, and the sentences about what could not be counted. Where something is
not known it is None, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

FORMAT: Final = "ledgermq-analysis"
FORMAT_VERSION: Final = 1
NO_TRACE_TOPIC: Final = (
    "The brokers keep no traces (trace_topic = true would), so end-to-end delays, redeliveries and given-up "
    "messages are not known."
)


@dataclass(frozen=True, slots=True)
class Delays:
    """Percentiles of a delay, ms. Negative ones come of clocks that differ."""

    p50: int
    p90: int
    p99: int
    most: int


@dataclass(frozen=True, slots=True)
class MessageFigures:
    """What was counted of some messages."""

    messages: int
    size: int  # of the bodies as producers gave them, bytes
    distinct_keys: int  # estimated
    parked: int  # (message, consumer group) pairs parked now
    queueing: Delays | None  # store time - born time; None: no message has both
    # What traces tell. None: there are none of these messages.
    traced: int | None = None  # (message, consumer group) pairs that a trace tells of
    end_to_end: Delays | None = None  # end of the first successful consumption - born time
    redeliveries: int | None = None  # deliveries after a message's first one to a consumer group
    given_up: int | None = None  # skipped by a push consumer after the last attempt

    def fields(self) -> dict[str, Any]:
        """Return them for JSON."""
        found = asdict(self)
        found["bytes"] = found.pop("size")
        for name in ("queueing", "end_to_end"):
            found[f"{name}_ms"] = found.pop(name)
        return found


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """The figures of one topic."""

    name: str
    totals: MessageFigures
    tags: Sequence[tuple[str | None, MessageFigures]]  # those with most messages first; None: without a tag
    hours: Sequence[
        tuple[int, MessageFigures]
    ]  # the latest ones, ascending; begin of the hour, ms since the epoch
    tag_count: int  # of all, including those not in `tags`
    hour_count: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of an analysis."""

    topics: Sequence[TopicFigures]
    from_ms: int  # 0: from the first message
    to_ms: int  # messages stored before; 0: up to the last one
    has_trace_topic: bool
    unlisted_parked: int = 0  # parked, and not named by the brokers: not counted
    unreadable_traces: int = 0  # messages of the trace topic that are no traces, or of a newer version
    made_ms: int = 0  # when it was begun, ms since the epoch
    seconds: float = 0.0
    software: str = ""
    command: str = ""

    @property
    def messages(self) -> int:
        return sum(each.totals.messages for each in self.topics)

    @property
    def size(self) -> int:
        return sum(each.totals.size for each in self.topics)

    def notes(self) -> list[str]:
        """Return what a reader must know of what was not counted."""
        found = []
        untraced = [each.name for each in self.topics if each.totals.messages and not each.totals.traced]
        if not self.has_trace_topic:
            found.append(NO_TRACE_TOPIC)
        elif untraced:
            found.append(
                f"No trace tells of messages of {', '.join(untraced)} being consumed (consumers with "
                "trace=True write them), so end-to-end delays, redeliveries and given-up messages are not "
                "known there."
            )
        if self.unreadable_traces:
            found.append(
                f"{self.unreadable_traces:,} messages of the trace topic were left out: they are no traces "
                "that this version can read."
            )
        if self.unlisted_parked:
            found.append(
                f"{self.unlisted_parked:,} parked messages are not in the figures: the brokers name only a "
                "part of them. See: ledgermq group describe"
            )
        return found

    def fields(self) -> dict[str, Any]:
        """Return the content of report.json."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "from_ms": self.from_ms or None,
            "to_ms": self.to_ms or None,
            "messages": self.messages,
            "bytes": self.size,
            "notes": self.notes(),
            "topics": [
                {
                    "topic": topic.name,
                    **topic.totals.fields(),
                    "tags": [{"tag": tag, **each.fields()} for tag, each in topic.tags],
                    "tag_count": topic.tag_count,
                    "hours": [{"hour_ms": hour, **each.fields()} for hour, each in topic.hours],
                    "hour_count": topic.hour_count,
                }
                for topic in self.topics
            ],
            "made_ms": self.made_ms,
            "seconds": round(self.seconds, 3),
            "software": self.software,
            "command": self.command,
        }

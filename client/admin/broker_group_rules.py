"""Rules for joining and leaving broker groups. Pure.

A broker group that joins a cluster gets the topics and consumer groups of the others, compared by name.
Nothing that exists is changed: the same name with other settings is a conflict for the operator to resolve.

Also decides whether a broker group can be spared: finds topics for which no other one would take messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ledgermq.proto.admin_pb2 import ConsumerGroupInfo
from ledgermq.proto.route_pb2 import FIFO, MIXED, TopicInfo, TopicMessageType

from ..cluster.topic_route import BrokerGroup
from ..errors import UsageError

#: Topic types whose messages may have an order.
ORDERED_TYPES = (FIFO, MIXED)


class Named(Protocol):
    """What both messages have in common."""

    name: str


T = TypeVar("T", bound=Named)


@dataclass(slots=True)
class RuleComparison(Generic[T]):
    """Comparison by name. `missing`: to be created. `existing`: same settings. `conflicts`: sentences."""

    missing: list[T] = field(default_factory=list)
    existing: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


def compare_topics(
    target: str,
    there: Sequence[TopicInfo],
    sources: Mapping[str, Sequence[TopicInfo]],
    wanted: Iterable[str] = (),
) -> RuleComparison[TopicInfo]:
    """Compare the topics of broker groups (by name) with those of the target. `wanted`: only these."""
    names = set(wanted)
    kept = {
        name: [info for info in infos if not names or info.name in names] for name, infos in sources.items()
    }
    return _compare(target, there, kept, "topic", _topic_settings)


def compare_consumer_groups(
    target: str, there: Sequence[ConsumerGroupInfo], sources: Mapping[str, Sequence[ConsumerGroupInfo]]
) -> RuleComparison[ConsumerGroupInfo]:
    """Compare the consumer groups of broker groups with those of the target."""
    return _compare(target, there, sources, "consumer group", _group_settings)


def check_kept(topic: str, answers: Iterable[tuple[BrokerGroup, TopicInfo]]) -> None:
    """Check that each broker group keeps the unread messages of a topic. `answers`: its settings there.

    Raises: UsageError.
    """
    if lacking := [broker_group.name for broker_group, info in answers if not info.keep_unread]:
        raise UsageError(
            f"topic {topic} does not keep what is unread in {', '.join(lacking)}",
            "It was there before, or the broker group has nodes of an older version",
            f"When every node has this version: ledgermq topic update {topic} --keep-unread",
        )


def _compare(
    target: str,
    there: Sequence[T],
    sources: Mapping[str, Sequence[T]],
    what: str,
    settings: Callable[[T], str],
) -> RuleComparison[T]:
    found: RuleComparison[T] = RuleComparison()
    known = {info.name: info for info in there}
    wanted: dict[str, dict[str, T]] = {}
    for source in sorted(sources):
        for info in sources[source]:
            wanted.setdefault(info.name, {})[source] = info
    for name in sorted(wanted):
        texts: dict[str, list[str]] = {}
        for source, info in wanted[name].items():
            texts.setdefault(settings(info), []).append(source)
        own = known.get(name)
        if own is not None and set(texts) == {settings(own)}:
            found.existing.append(name)
        elif own is None and len(texts) == 1:
            found.missing.append(next(iter(wanted[name].values())))
        else:
            if own is not None:
                texts.setdefault(settings(own), []).append(target)
            differing = "; ".join(f"{', '.join(groups)}: {text}" for text, groups in texts.items())
            found.conflicts.append(f'{what} "{name}" differs ({differing})')
    return found


def _topic_settings(info: TopicInfo) -> str:
    kind = TopicMessageType.Name(info.message_type).lower()
    kept = f", kept {info.retention_ms / 3_600_000:g} h" if info.retention_ms else ""
    unread = ", unread kept" if info.keep_unread else ""
    return f"{info.queue_count} queues, {kind}{kept}{unread}"


def _group_settings(info: ConsumerGroupInfo) -> str:
    fifo = ", fifo" if info.fifo else ""
    return f"from {info.start_position}, {info.max_attempts} attempts{fifo}"


@dataclass(frozen=True, slots=True)
class OtherBrokerGroup:
    """Another broker group, as it reports itself now."""

    name: str
    why_not: str = ""  # why it takes no messages of any topic, as text after its name; "": it takes them
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)  # by name

    def why_not_of(self, info: TopicInfo) -> str:
        """Return why it takes no messages of a topic with these settings; "": it does."""
        own = self.topics.get(info.name)
        if self.why_not:
            return self.why_not
        if own is None:
            return "does not have it"
        if own.message_type not in (info.message_type, MIXED):
            return f"takes it as {_kind(own)}, not as {_kind(info)}"
        return ""


def left_alone(topics: Iterable[TopicInfo], others: Sequence[OtherBrokerGroup]) -> dict[str, str]:
    """Return the topics for which no other broker group takes messages, with the reasons."""
    found = {}
    for info in topics:
        reasons = [(each.name, each.why_not_of(info)) for each in others]
        if all(reason for _, reason in reasons):
            found[info.name] = "; ".join(f"{name} {reason}" for name, reason in reasons)
    return found


def _kind(info: TopicInfo) -> str:
    return TopicMessageType.Name(info.message_type).lower()

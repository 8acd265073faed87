"""Whether a broker group can be spared: which of its topics no other group would take messages of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq.proto.route_pb2 import MIXED, TopicInfo, TopicMessageType


@dataclass(frozen=True, slots=True)
class OtherGroup:
    """Another broker group, as it says itself now."""

    name: str
    why_not: str = ""  # it takes no messages of any topic, as it stands behind its name; "" = it does
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)

    def why_not_of(self, info: TopicInfo) -> str:
        """Return why it takes no messages of a topic as another group has it, "" when it does."""
        own = self.topics.get(info.name)
        if self.why_not:
            return self.why_not
        if own is None:
            return "does not have it"
        if own.message_type not in (info.message_type, MIXED):
            return f"takes it as {_kind(own)}, not as {_kind(info)}"
        return ""


def left_alone(topics: Iterable[TopicInfo], others: Sequence[OtherGroup]) -> dict[str, str]:
    """Return the topics that none of the other groups takes messages of, each with why they do not."""
    found = {}
    for info in topics:
        reasons = [(each.name, each.why_not_of(info)) for each in others]
        if all(reason for _, reason in reasons):
            found[info.name] = "; ".join(f"{name} {reason}" for name, reason in reasons)
    return found


def _kind(info: TopicInfo) -> str:
    return TopicMessageType.Name(info.message_type).lower()

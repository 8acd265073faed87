"""Gone broker groups: remembered by a nameserver after their last node left without being removed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.proto import nameserver_pb2 as ns

from ..durations import duration
from ..errors import BrokerGroupsGoneError
from .topic_route import BrokerGroup, group_of


@dataclass(frozen=True, slots=True)
class GoneBrokerGroup:
    """A broker group without any running node."""

    group: BrokerGroup  # as its last node knew it
    silent_ms: int | None = None  # since the last contact; None: an older nameserver does not tell
    topics: tuple[str, ...] = ()  # its topics at that time, if they were asked for

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def since(self) -> dict[str, str]:
        """Time of the last contact by name; empty when unknown."""
        return {} if self.silent_ms is None else {self.name: f"{duration(self.silent_ms)} ago"}

    @property
    def error(self) -> BrokerGroupsGoneError:
        """Reason why its part of an answer is missing."""
        return BrokerGroupsGoneError([self.name], self.since, "What it holds is missing here")

    @property
    def refusal(self) -> BrokerGroupsGoneError:
        """Reason why a call about this broker group alone was not made."""
        return BrokerGroupsGoneError([self.name], self.since, "It is down, not removed. Nothing was changed")


def gone_of(listed: ns.ListGroupsResponse, every: ns.ListGroupsResponse) -> list[GoneBrokerGroup]:
    """Return the broker groups only in `every`, the later answer of the same nameserver with `gone_too`."""
    known = {view.group for view in listed.groups}
    told = {(each.cluster, each.group): each for each in every.gone}
    found = []
    for view in every.groups:
        if view.group in known or any(node.alive for node in view.nodes):  # it may just have come back
            continue
        each = told.get((view.cluster, view.group))
        silent_ms = each.silent_ms if each is not None else None
        topics = tuple(sorted(info.name for info in each.topics)) if each is not None else ()
        found.append(GoneBrokerGroup(group_of(view), silent_ms, topics))
    return found


def groups_gone_error(gone: Sequence[GoneBrokerGroup]) -> BrokerGroupsGoneError:
    """Return the error of an operation that also needs these broker groups."""
    since = {name: text for each in gone for name, text in each.since.items()}
    return BrokerGroupsGoneError([each.name for each in gone], since)

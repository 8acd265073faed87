"""What a nameserver remembers of broker groups whose last node has left without being removed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.proto import nameserver_pb2 as ns

from ..durations import duration
from ..errors import BrokerGroupsGoneError
from .topic_route import BrokerGroup, group_of


@dataclass(frozen=True, slots=True)
class GoneGroup:
    """A broker group that no node of is up."""

    group: BrokerGroup  # as its last node knew it
    silent_ms: int | None = None  # since that one was heard; None: an older nameserver does not tell
    topics: tuple[str, ...] = ()  # that it had then, where that was asked for

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def since(self) -> dict[str, str]:
        """When it was heard last, by its name; empty when that is not known."""
        return {} if self.silent_ms is None else {self.name: f"{duration(self.silent_ms)} ago"}

    @property
    def error(self) -> BrokerGroupsGoneError:
        """Why its part of an answer is missing."""
        return BrokerGroupsGoneError([self.name], self.since, "What it holds is missing here")

    @property
    def refusal(self) -> BrokerGroupsGoneError:
        """Why a call that is about this group alone was not made."""
        return BrokerGroupsGoneError([self.name], self.since, "It is down, not removed. Nothing was changed")


def gone_of(listed: ns.ListGroupsResponse, every: ns.ListGroupsResponse) -> list[GoneGroup]:
    """Return the groups that are only in `every`, the later answer of the same nameserver with `gone_too`."""
    known = {view.group for view in listed.groups}
    told = {(each.cluster, each.group): each for each in every.gone}
    found = []
    for view in every.groups:
        if view.group in known or any(node.alive for node in view.nodes):  # it may just be back
            continue
        each = told.get((view.cluster, view.group))
        silent_ms = each.silent_ms if each is not None else None
        topics = tuple(sorted(info.name for info in each.topics)) if each is not None else ()
        found.append(GoneGroup(group_of(view), silent_ms, topics))
    return found


def groups_gone_error(gone: Sequence[GoneGroup]) -> BrokerGroupsGoneError:
    """Return the error of what needs these groups, too."""
    since = {name: text for each in gone for name, text in each.since.items()}
    return BrokerGroupsGoneError([each.name for each in gone], since)

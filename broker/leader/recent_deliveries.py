"""Deliveries that may not have arrived, so that their leases do not wait for ever.

A lease that is renewed with its client's session never ends while the client lives. If the node on the way dies between
grant and arrival, the client knows nothing of it: the leader (or the next one) must release it. Releasing what did arrive
costs a second delivery, keeping what did not costs the message; so in doubt a lease is released.
Pure: time comes in as monotonic seconds, grants as log indexes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..cluster.members import ON_THE_WAY_SECONDS
from ..state.commands import ReleaseLeases, lease_rows
from ..state.leases import Consumption
from .leader_view import Delivery, ReceiveRequest

#: How long a repeated attempt is recognised.
REMEMBERED_SECONDS: Final = 60.0
#: Of the last leader, like ON_THE_WAY_SECONDS, in log time (ms) before its last entry.
LAST_LEADER_MS: Final = 2000
#: Leases (20 bytes each) that one command releases: it must fit into the smallest entry that a group may have.
ROWS_MAX: Final = 4096
#: Leases, and clients, whose names a leader remembers.
HOLDERS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    at: float
    via: str  # node that passed it on; "" = this node itself
    attempt_id: str
    command: ReleaseLeases


def release_of(request: ReceiveRequest, deliveries: Iterable[Delivery]) -> ReleaseLeases:
    """Return the command that releases these leases."""
    return release_rows(request.group_id, request.topic_id, deliveries)


def release_rows(group_id: int, topic_id: int, deliveries: Iterable[Delivery]) -> ReleaseLeases:
    """Return the command that releases these leases of a group and a topic."""
    rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in deliveries]
    return ReleaseLeases(group_id, topic_id, lease_rows(rows))


class RecentDeliveries:
    """What this leader handed out under a session of late."""

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()

    def __len__(self) -> int:
        return len(self._sent)

    def add(
        self, now: float, via: str, request: ReceiveRequest, deliveries: Sequence[Delivery]
    ) -> ReleaseLeases | None:
        """Note a delivery; return how to release it. None: leases by time are not noted, they end by themselves."""
        noted = None
        if request.session and deliveries:
            noted = release_of(request, deliveries)
            self._sent.append(_Sent(now, via, request.attempt_id, noted))
        while self._sent and self._sent[0].at < now - REMEMBERED_SECONDS:
            self._sent.popleft()
        return noted

    def repeated(self, attempt_id: str) -> list[ReleaseLeases]:
        """A client asks again with an attempt that was answered: the answer did not arrive. Return its leases."""
        if not attempt_id:
            return []
        return self._take([each for each in self._sent if each.attempt_id == attempt_id])

    def node_lost(self, node_id: str, now: float) -> list[ReleaseLeases]:
        """A node is gone: return the leases of what it may not have passed on."""
        since = now - ON_THE_WAY_SECONDS
        return self._take([each for each in self._sent if each.via == node_id and each.at >= since])

    def _take(self, found: list[_Sent]) -> list[ReleaseLeases]:
        if found:
            taken = set(map(id, found))
            self._sent = deque(each for each in self._sent if id(each) not in taken)
        return [each.command for each in found]


class LeaseHolders:
    """Which client holds a lease, as far as this leader remembers: for people, nothing is decided by it."""

    def __init__(self) -> None:
        self._by_lease: OrderedDict[int, str] = OrderedDict()
        self._by_session: OrderedDict[int, str] = OrderedDict()

    def granted(self, client_id: str, deliveries: Iterable[Delivery]) -> None:
        """A client was given these."""
        for lease_id in {each.lease_id for each in deliveries}:
            _note(self._by_lease, lease_id, client_id)

    def moved(self, client_id: str, lease_id: int) -> None:
        """A client moved the end of a lease, which has a new id since."""
        _note(self._by_lease, lease_id, client_id)

    def seen(self, client_id: str, session: int) -> None:
        """A client lives."""
        _note(self._by_session, session, client_id)

    def name(self, lease_id: int, session: int) -> str:
        """Return the client that holds a lease, "" when it is not known."""
        return (self._by_session.get(session, "") if session else "") or self._by_lease.get(lease_id, "")


def _note(names: OrderedDict[int, str], key: int, client_id: str) -> None:
    names[key] = client_id
    names.move_to_end(key)
    if len(names) > HOLDERS_MAX:
        names.popitem(last=False)


def granted_since(
    consumption: Mapping[tuple[int, int, int], Consumption], first_index: int
) -> list[ReleaseLeases]:
    """Return the release of all session leases that were granted at or after a log index, for a new leader."""
    commands = []
    for (group_id, topic_id, queue_id), found in sorted(consumption.items(), key=lambda item: item[0]):
        young = found.leases[(found.leases["session"] != 0) & (found.leases["lease_id"] >= first_index)]
        for start in range(0, len(young), ROWS_MAX):
            part = young[start : start + ROWS_MAX]
            pairs = zip(part["offset"].tolist(), part["lease_id"].tolist(), strict=True)
            rows = [(queue_id, offset, lease_id) for offset, lease_id in pairs]
            commands.append(ReleaseLeases(group_id, topic_id, lease_rows(rows)))
    return commands

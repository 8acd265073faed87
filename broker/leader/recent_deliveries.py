"""Recent deliveries that may not have reached their client, so that their leases can be released.

A lease bound to a session does not end while the client lives. If the node that forwards a delivery fails
between grant and arrival, the client does not know of the lease: the leader, or the next one, must release
it. Releasing a lease whose message did arrive costs a second delivery. Keeping one whose message did not
arrive withholds the message. In doubt, the lease is released.
Pure: time comes in as monotonic seconds, grants as log indexes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..cluster.members import ON_THE_WAY_SECONDS
from ..state.commands import ReleaseLeases, lease_rows
from ..state.consumption import Consumption
from .leader_view import Delivery, ReceiveRequest

#: Time for which a repeated attempt is recognised.
REMEMBERED_SECONDS: Final = 60.0
#: Counterpart of ON_THE_WAY_SECONDS for the previous leader: log time (ms) before its last entry.
LAST_LEADER_MS: Final = 2000
#: Maximum of leases (20 bytes each) in one command: it must fit into the smallest entry size of a broker
#: group.
ROWS_MAX: Final = 4096
#: Maximum of leases, and of sessions, whose client a leader remembers.
HOLDERS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    at: float  # monotonic seconds
    via: str  # node that forwarded it; "": this node itself
    attempt_id: str
    command: ReleaseLeases  # releases its leases


def release_of(request: ReceiveRequest, deliveries: Iterable[Delivery]) -> ReleaseLeases:
    """Return the command that releases these leases."""
    return release_rows(request.group_id, request.topic_id, deliveries)


def release_rows(group_id: int, topic_id: int, deliveries: Iterable[Delivery]) -> ReleaseLeases:
    """Return the command that releases these leases of a consumer group in a topic."""
    rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in deliveries]
    return ReleaseLeases(group_id, topic_id, lease_rows(rows))


class RecentDeliveries:
    """Deliveries of this leader under a session within REMEMBERED_SECONDS."""

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()  # oldest first

    def __len__(self) -> int:
        return len(self._sent)

    def add(
        self, now: float, via: str, request: ReceiveRequest, deliveries: Sequence[Delivery]
    ) -> ReleaseLeases | None:
        """Record a delivery; return the command that releases it.

        None: it has no session. Its leases end by time and are not recorded.
        """
        noted = None
        if request.session and deliveries:
            noted = release_of(request, deliveries)
            self._sent.append(_Sent(now, via, request.attempt_id, noted))
        while self._sent and self._sent[0].at < now - REMEMBERED_SECONDS:
            self._sent.popleft()
        return noted

    def repeated(self, attempt_id: str) -> list[ReleaseLeases]:
        """Return the releases for an attempt id that a client repeats: its answer did not arrive."""
        if not attempt_id:
            return []
        return self._take([each for each in self._sent if each.attempt_id == attempt_id])

    def node_lost(self, node_id: str, now: float) -> list[ReleaseLeases]:
        """Return the releases of deliveries that a lost node may not have forwarded."""
        since = now - ON_THE_WAY_SECONDS
        return self._take([each for each in self._sent if each.via == node_id and each.at >= since])

    def _take(self, found: list[_Sent]) -> list[ReleaseLeases]:
        if found:
            taken = set(map(id, found))
            self._sent = deque(each for each in self._sent if id(each) not in taken)
        return [each.command for each in found]


class LeaseHolders:
    """Clients that hold leases, as far as this leader remembers. For display only."""

    def __init__(self) -> None:
        self._by_lease: OrderedDict[int, str] = OrderedDict()  # lease id -> client id, oldest first
        self._by_session: OrderedDict[int, str] = OrderedDict()  # session -> client id, oldest first

    def granted(self, client_id: str, deliveries: Iterable[Delivery]) -> None:
        """Record that a client got these deliveries."""
        for lease_id in {each.lease_id for each in deliveries}:
            _note(self._by_lease, lease_id, client_id)

    def moved(self, client_id: str, lease_id: int) -> None:
        """Record that a client moved the deadline of a lease, which gave it a new id."""
        _note(self._by_lease, lease_id, client_id)

    def seen(self, client_id: str, session: int) -> None:
        """Record the client of a live session."""
        _note(self._by_session, session, client_id)

    def name(self, lease_id: int, session: int) -> str:
        """Return the client that holds a lease; "": unknown."""
        return (self._by_session.get(session, "") if session else "") or self._by_lease.get(lease_id, "")


def _note(names: OrderedDict[int, str], key: int, client_id: str) -> None:
    names[key] = client_id
    names.move_to_end(key)
    if len(names) > HOLDERS_MAX:
        names.popitem(last=False)


def granted_since(
    consumption: Mapping[tuple[int, int, int], Consumption], first_index: int
) -> list[ReleaseLeases]:
    """Return the releases of all session leases granted at or after a log index. For a new leader."""
    commands = []
    for (group_id, topic_id, queue_id), found in sorted(consumption.items(), key=lambda item: item[0]):
        young = found.leases[(found.leases["session"] != 0) & (found.leases["lease_id"] >= first_index)]
        for start in range(0, len(young), ROWS_MAX):
            part = young[start : start + ROWS_MAX]
            pairs = zip(part["offset"].tolist(), part["lease_id"].tolist(), strict=True)
            rows = [(queue_id, offset, lease_id) for offset, lease_id in pairs]
            commands.append(ReleaseLeases(group_id, topic_id, lease_rows(rows)))
    return commands

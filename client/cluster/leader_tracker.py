"""Leader tracker: the known leader of a broker group, and the node to ask next. Pure.

Order: the node last named as leader, then the leader of the route, then every other node in turn. When all
have failed, a new round begins after a pause.
Owns: the newest known term and leader, the nodes that failed in this round, the rounds since the last
success.
Must not: do I/O, read clocks, pause.
Invariant: the known term never falls, unless another broker group gets the name: its terms are unrelated.
"""

from __future__ import annotations

from typing import Final, Literal

from ..pauses import LONGEST_SEARCH_PAUSE_MS, SEARCH_PAUSE_MS, backoff_ms
from .topic_route import BrokerGroup, Node

#: After this many rounds, a quick return of a node is unlikely, and news of the route end the pause. The
#: pause then doubles every few rounds.
_PATIENT_ROUNDS: Final = 50
_ROUNDS_PER_STEP: Final = 4

#: The address of a node to call.
Port = Literal["log_address", "messaging_address"]


class LeaderTracker:
    """Leader search of one stream or call to one broker group. Call `next`, then `failed` or `succeeded`."""

    def __init__(self, broker_group: BrokerGroup, port: Port = "log_address") -> None:
        self.group = broker_group  # the newest route
        self._port = port
        # The newest known; leader "": not known yet
        self._known = (broker_group.term, broker_group.leader_id)
        self._hint = ""  # address to try next, "" for none
        self._hops = 0  # hints followed since the last pause
        self._failed: set[str] = set()  # addresses that failed since the last success or pause
        self._rounds = 0  # failed rounds since the last success

    @property
    def term(self) -> int:
        """The newest known term."""
        return self._known[0]

    @property
    def has_hint(self) -> bool:
        """Whether a named leader was not tried yet."""
        return bool(self._hint)

    @property
    def addresses(self) -> list[str]:
        """Addresses of all nodes: the route's leader first, then live nodes, then the rest."""
        addresses = (getattr(node, self._port) for node in self.group.by_preference)
        return [each for each in addresses if each]

    def update(self, broker_group: BrokerGroup) -> Node | None:
        """Take a newer route; return its leader if that is news."""
        if broker_group.is_another(self.group):
            self.succeeded()
            self._known = (0, "")
        self.group = broker_group
        return self.learned(broker_group.term, broker_group.leader_id)

    def learned(self, term: int, leader_id: str) -> Node | None:
        """Take a leader named by a route or a node; return it if that is news.

        It is tried next. A term may be known before its leader. A term has at most one leader.
        """
        leader = self.group.node(leader_id)
        if leader is None or term < self._known[0] or (term, leader_id) == self._known:
            return None
        self._known = (term, leader_id)
        self._hops = 0
        self.hint(getattr(leader, self._port))
        return leader

    def hint(self, address: str) -> None:
        """Next, try the leader named by a refusal ("": none), even if it failed before."""
        if address:
            self._hint = address
            self._failed.discard(address)

    def failed(self, address: str) -> None:
        """The node at `address` is unreachable, broke off, or does not lead."""
        self._failed.add(address)
        if self._hint == address:
            self._hint = ""

    def succeeded(self) -> None:
        """A request was answered: the next search starts afresh."""
        self._failed.clear()
        self._hint, self._hops, self._rounds = "", 0, 0

    def next(self) -> tuple[str, int]:
        """Return (address, pause in ms before trying it); ("", pause) when the route has no node.

        The pause is 0 until every node has failed once, or nodes have named each other more often than there
        are nodes.
        """
        candidates = self.addresses
        if self._hint:
            self._hops += 1
            if self._hops <= max(len(candidates), 1):
                return self._hint, 0
        else:
            for address in candidates:
                if address not in self._failed:
                    return address, 0
        self._failed.clear()
        self._hops = 0
        self._rounds += 1
        return self._hint or next(iter(candidates), ""), _search_pause_ms(self._rounds)


def _search_pause_ms(rounds: int) -> int:
    if rounds <= _PATIENT_ROUNDS:
        return min(backoff_ms(rounds + 1), SEARCH_PAUSE_MS)
    steps = min((rounds - _PATIENT_ROUNDS) // _ROUNDS_PER_STEP + 1, 16)
    return min(SEARCH_PAUSE_MS << steps, LONGEST_SEARCH_PAUSE_MS)

"""Who leads a broker group, and which of its nodes is asked next. Pure.

The order: the node that was named last as the leader, then the route's leader, then every other node in
turn. When all have failed, a new round begins after a pause.
Owns: the newest term and leader that anybody named, the nodes that failed in this round, the rounds since
the last success.
Must not: do I/O, read clocks, pause.
Invariant: the known term never falls, except when another broker group gets the name: its terms say nothing
of the former's.
"""

from __future__ import annotations

from typing import Final, Literal

from ..pauses import LONGEST_SEARCH_PAUSE_MS, SEARCH_PAUSE_MS, backoff_ms
from .topic_route import BrokerGroup, Node

#: After so many rounds no node will be back soon, and news of the route end the pause: it doubles with every
#: few rounds.
_PATIENT_ROUNDS: Final = 50
_ROUNDS_PER_STEP: Final = 4

#: Which address of a node is called.
Port = Literal["log_address", "messaging_address"]


class LeaderTracker:
    """Of one broker group, for one stream or call. Ask `next`, then tell `failed` or `succeeded`."""

    def __init__(self, group: BrokerGroup, port: Port = "log_address") -> None:
        self.group = group  # the newest route
        self._port = port
        self._known = (
            group.term,
            group.leader_id,
        )  # the newest that anybody named; the leader "" while nobody has
        self._hint = ""
        self._hops = 0  # hints followed since the last pause
        self._failed: set[str] = set()  # addresses tried since the last success or pause
        self._rounds = 0  # that failed since the last success

    @property
    def term(self) -> int:
        """The newest term that anybody named."""
        return self._known[0]

    @property
    def has_hint(self) -> bool:
        """Whether a leader was named that was not tried since."""
        return bool(self._hint)

    @property
    def addresses(self) -> list[str]:
        """The addresses of all nodes: the route's leader, then the living ones, then the rest."""
        addresses = (getattr(node, self._port) for node in self.group.by_preference)
        return [each for each in addresses if each]

    def update(self, group: BrokerGroup) -> Node | None:
        """Take a newer route; return its leader when that is news."""
        if group.is_another(self.group):
            self.succeeded()
            self._known = (0, "")
        self.group = group
        return self.learned(group.term, group.leader_id)

    def learned(self, term: int, leader_id: str) -> Node | None:
        """Take in who leads, as a route or a node says; return the leader when that is news.

        It is tried next. A term may be known before its leader is; once it is known, a term has no other leader.
        """
        leader = self.group.node(leader_id)
        if leader is None or term < self._known[0] or (term, leader_id) == self._known:
            return None
        self._known = (term, leader_id)
        self._hops = 0
        self.hint(getattr(leader, self._port))
        return leader

    def hint(self, address: str) -> None:
        """Try the leader next that a refusal names ("": it names none), even if it failed."""
        if address:
            self._hint = address
            self._failed.discard(address)

    def failed(self, address: str) -> None:
        """The node at `address` cannot be reached, broke off, or does not lead."""
        self._failed.add(address)
        if self._hint == address:
            self._hint = ""

    def succeeded(self) -> None:
        """A request was answered: the next search starts afresh."""
        self._failed.clear()
        self._hint, self._hops, self._rounds = "", 0, 0

    def next(self) -> tuple[str, int]:
        """Return (address, pause in ms before trying it); ("", pause) when the route has no node at all.

        The pause is 0 until every node has failed once, or nodes have named one another more often than there
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

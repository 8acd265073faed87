"""What to do with a section that was not stored, or may not have been. Pure.

The rules:
    stored or not unknown     the same bytes again, to the same group: its brokers recognise the sequence
    a definite no             the leader's hint, another group, or a pause and the same group, as the reason says
    message group set         never another group: order holds per queue; a group that is drained fails it
    the caller must change    fail at once; repeating cannot help
One deadline per message bounds all of it; it is kept by `batching`, not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ledgermq.proto import route_pb2 as pb

_FIRST_PAUSE_MS: Final = 10
_LONGEST_PAUSE_MS: Final = 500
_SEARCH_PAUSE_MS: Final = 100  # an election takes a few hundred ms: look often
#: After so many rounds nobody is coming back soon, and news of the route end the pause: it doubles with every few rounds.
_PATIENT_ROUNDS: Final = 50
_ROUNDS_PER_STEP: Final = 4
_LONGEST_SEARCH_PAUSE_MS: Final = 2_000


class Action(Enum):
    """What happens to a section after a refusal."""

    RESEND = "same bytes, same group, after a pause"
    FIND_LEADER = "same bytes, same group, on a stream to its new leader"
    NEW_SESSION = "same records, numbered anew: the broker does not know the sequence any more"
    REFRESH_ROUTE = "same records to the topic as it is now"
    FAIL = "tell the caller"


@dataclass(frozen=True, slots=True)
class Decision:
    """`definite`: it is certain that this copy was not stored. `pause_ms` holds for the whole group.

    `unseen`: the node refused before it looked whether it has the section. Of an earlier copy, without an answer, that says
    nothing.
    """

    action: Action
    definite: bool
    unseen: bool = False
    pause_ms: int = 0
    try_other_group: bool = False
    refresh_route: bool = False  # besides: where the topic is now must be asked


#: Reasons that concern the node or the group, not the message: another group may take it.
_ELSEWHERE: Final = frozenset({pb.NO_QUORUM, pb.DISK_FULL, pb.TOO_MANY_REQUESTS, pb.SHUTTING_DOWN})


def decide(refusal: pb.Refusal, attempt: int, *, first_of_queue: bool, fifo: bool) -> Decision:
    """Decide about a refused section. `attempt` counts its sends so far; `first_of_queue`: nothing before it is open."""
    code = refusal.code
    pause = refusal.retry_after_ms or backoff_ms(attempt)
    if code in (pb.OUTCOME_UNKNOWN, pb.SLAVE_TIMEOUT, pb.SLAVES_AWAY):  # the last two: stored, by the master
        return Decision(Action.RESEND, definite=False, pause_ms=pause)
    if code == pb.NOT_LEADER:
        return Decision(Action.FIND_LEADER, definite=True, unseen=True)
    if code == pb.SEQUENCE_GAP:
        # A gap behind a section that is still open heals when that one is stored. With nothing before it, the
        # broker has forgotten this producer (or a section was given up): number the records anew.
        action = Action.NEW_SESSION if first_of_queue else Action.RESEND
        return Decision(action, definite=True)
    if code == pb.STALE_PRODUCER_EPOCH:
        return Decision(Action.NEW_SESSION, definite=True)
    if code in (pb.STALE_ROUTE, pb.QUEUE_NOT_FOUND):
        return Decision(Action.REFRESH_ROUTE, definite=True, pause_ms=pause)
    if code == pb.OTHER_GROUP:
        # Another group has come under the name: of what the one before may have stored this one knows nothing
        return Decision(Action.FIND_LEADER, definite=True, unseen=True, pause_ms=pause, refresh_route=True)
    if code == pb.GROUP_DRAINING:
        # Looked up first, so certain. Messages of a message group must not change their queue unseen: the caller sends
        # them again, to the queue that the group has from now on.
        action = Action.FAIL if fifo else Action.REFRESH_ROUTE
        return Decision(action, definite=True, pause_ms=pause, try_other_group=not fifo)
    if code in _ELSEWHERE:
        action = Action.FIND_LEADER if code in (pb.NO_QUORUM, pb.SHUTTING_DOWN) else Action.RESEND
        return Decision(action, definite=True, unseen=True, pause_ms=pause, try_other_group=not fifo)
    if refusal.retryable:
        return Decision(Action.RESEND, definite=True, unseen=True, pause_ms=pause)
    return Decision(Action.FAIL, definite=True)


def backoff_ms(attempt: int) -> int:
    """Return the pause before the next attempt: doubling from 10 ms, at most 500 ms. `attempt` counts from 1."""
    return min(_FIRST_PAUSE_MS << min(max(attempt - 1, 0), 16), _LONGEST_PAUSE_MS)


class LeaderSearch:
    """Where to open the next stream of a group: hints first, then the route's leader, then every node in turn."""

    def __init__(self) -> None:
        self._hint = ""
        self._failed: set[str] = set()  # tried since the last success
        self._rounds = 0

    @property
    def has_hint(self) -> bool:
        """Somebody named a leader that was not tried since."""
        return bool(self._hint)

    def hint(self, address: str) -> None:
        """A node named the leader. It is tried next, even if it failed before."""
        if address:
            self._hint = address
            self._failed.discard(address)

    def failed(self, address: str) -> None:
        """A stream to `address` could not be opened, broke, or met a node that does not lead."""
        self._failed.add(address)
        if self._hint == address:
            self._hint = ""

    def succeeded(self) -> None:
        """A request was answered: the next search starts afresh."""
        self._failed.clear()
        self._hint = ""
        self._rounds = 0

    def next(self, leader: str, nodes: list[str]) -> tuple[str, int]:
        """Return (address, pause in ms before trying it); ("", pause) when the route has no node at all.

        `leader` is the route's leader address ("" while unknown), `nodes` all known addresses. The pause is 0 until
        every candidate failed once; then a new round begins.
        """
        if self._hint:
            return self._hint, 0
        candidates = [leader] * bool(leader) + [node for node in nodes if node != leader]
        for address in candidates:
            if address not in self._failed:
                return address, 0
        self._failed.clear()
        self._rounds += 1
        return (candidates[0] if candidates else ""), _search_pause_ms(self._rounds)


def _search_pause_ms(rounds: int) -> int:
    if rounds <= _PATIENT_ROUNDS:
        return min(backoff_ms(rounds + 1), _SEARCH_PAUSE_MS)
    steps = min((rounds - _PATIENT_ROUNDS) // _ROUNDS_PER_STEP + 1, 16)
    return min(_SEARCH_PAUSE_MS << steps, _LONGEST_SEARCH_PAUSE_MS)

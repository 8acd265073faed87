"""Retry policy: decides about a section that was not stored, or may not have been. Pure.

Rules:
    outcome unknown or stored     resend the same bytes to the same broker group, which detects the sequence
    definitely not stored         the leader's hint, another broker group, or a pause and the same broker
                                  group, depending on the reason
    message group set             never another broker group: order holds per queue; if the
                                  broker group is draining, the send fails
    the caller must change        fail at once: a retry cannot help
A pause is as long as the leader asks for, else `backoff_ms` in `client/pauses.py` (10 ms, doubling, at most
500); a new leader, a gap in the sequence or a stale epoch are dealt with at once. The deadline of a message
bounds all retries: the producer sets it, `send_window.py` gives up expired sections.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ledgermq.proto import route_pb2 as pb

from ..pauses import backoff_ms


class Action(Enum):
    """Fate of a section after a refusal."""

    RESEND = "same bytes, same broker group, after a pause"
    FIND_LEADER = "same bytes, same broker group, on a stream to its new leader"
    NEW_SESSION = "same records, numbered anew: the broker does not know the sequence any more"
    REFRESH_ROUTE = "same records to the topic as it is now"
    FAIL = "tell the caller"


@dataclass(frozen=True, slots=True)
class Decision:
    """`definite`: this copy was certainly not stored. `pause_ms` applies to the whole broker group.

    `unseen`: the node refused before it checked whether it has the section. The refusal therefore says
    nothing about an earlier, unanswered copy.
    """

    action: Action
    definite: bool
    unseen: bool = False
    pause_ms: int = 0
    try_other_broker_group: bool = False
    refresh_route: bool = False  # in addition: fetch the route of the topic again


#: Reasons that concern the node or the broker group, not the message: another broker group may take it.
_ELSEWHERE: Final = frozenset({pb.NO_QUORUM, pb.DISK_FULL, pb.TOO_MANY_REQUESTS, pb.SHUTTING_DOWN})


def decide(refusal: pb.Refusal, attempt: int, *, first_of_queue: bool, fifo: bool) -> Decision:
    """Decide about a refused section.

    `attempt`: its sends so far. `first_of_queue`: no section before it is open.
    """
    code = refusal.code
    pause = refusal.retry_after_ms or backoff_ms(attempt)
    if code in (pb.OUTCOME_UNKNOWN, pb.SLAVE_TIMEOUT, pb.SLAVES_AWAY):  # the last two: stored on the master
        return Decision(Action.RESEND, definite=False, pause_ms=pause)
    if code == pb.NOT_LEADER:
        return Decision(Action.FIND_LEADER, definite=True, unseen=True)
    if code == pb.SEQUENCE_GAP:
        # Behind an open section, the gap closes when that section is stored. Without one, the broker has
        # forgotten this producer, or a section was given up: number the records anew.
        action = Action.NEW_SESSION if first_of_queue else Action.RESEND
        return Decision(action, definite=True)
    if code == pb.STALE_PRODUCER_EPOCH:
        return Decision(Action.NEW_SESSION, definite=True)
    if code in (pb.STALE_ROUTE, pb.QUEUE_NOT_FOUND):
        return Decision(Action.REFRESH_ROUTE, definite=True, pause_ms=pause)
    if code == pb.OTHER_GROUP:
        # A new broker group has the name. It does not know what the previous one may have stored.
        return Decision(Action.FIND_LEADER, definite=True, unseen=True, pause_ms=pause, refresh_route=True)
    if code == pb.GROUP_DRAINING:
        # The broker looked the section up first, so this is certain. A message group must not change its
        # queue silently: the caller sends again, to the queue that the message group has from now on.
        action = Action.FAIL if fifo else Action.REFRESH_ROUTE
        return Decision(action, definite=True, pause_ms=pause, try_other_broker_group=not fifo)
    if code in _ELSEWHERE:
        action = Action.FIND_LEADER if code in (pb.NO_QUORUM, pb.SHUTTING_DOWN) else Action.RESEND
        return Decision(action, definite=True, unseen=True, pause_ms=pause, try_other_broker_group=not fifo)
    if refusal.retryable:
        return Decision(Action.RESEND, definite=True, unseen=True, pause_ms=pause)
    return Decision(Action.FAIL, definite=True)

"""What to do with a section that was not stored, or may not have been. Pure.

The rules:
    stored or not unknown     the same bytes again, to the same group: its brokers recognise the sequence
    a definite no             the leader's hint, another group, or a pause and the same group, as the reason says
    message group set         never another group: order holds per queue; a group that is drained fails it
    the caller must change    fail at once; repeating cannot help
How long a pause is: `backoff_ms` in `client/pauses.py`. One deadline per message bounds all of it: the producer sets
it, `send_window.py` gives up what is over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ledgermq.proto import route_pb2 as pb

from ..pauses import backoff_ms


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

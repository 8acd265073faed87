"""Refusals of `ledgermq.v1`: code, retry advice, and a text with the remedy.

Pure. One table maps every error of LogService and AdminService.
"""

from __future__ import annotations

from typing import Final

from ledgermq.proto import route_pb2
from ledgermq.proto.route_pb2 import ListenerAddresses, Refusal, RefusalCode
from ledgermq.raft.errors import (
    BusyError,
    DiskFullError,
    EntryTooLargeError,
    LogCompactedError,
    NodeStoppedError,
    NotLeaderError,
    ProposalLostError,
    StorageError,
    TransferFailedError,
    TransferringError,
)

from .cluster.leader_calls import LeaderUnavailableError
from .cluster.slaves import SlavesAwayError, SlaveTimeoutError
from .errors import (
    ConsumeQueueError,
    ConsumerGroupNotFoundError,
    LimitReachedError,
    QueueNotFoundError,
    TopicNotFoundError,
)
from .leader.pipeline import TooManyRequestsError, TurnFailedError

RETRY_AFTER_MS: Final = 50
#: While slaves are away: only their return helps.
AWAY_RETRY_AFTER_MS: Final = 500
#: After the loss of the leader: the node itself lets the next attempt wait for the next leader.
LOST_RETRY_AFTER_MS: Final = 1
#: A drained broker group accepts messages again only by an operator's command; others accept them at once.
DRAINING_PAUSE_MS: Final = 1000
DRAINING_TEXT: Final = (
    "broker group {group} takes no new messages: it is being drained, or was removed. Nothing was stored. "
    "Send to another broker group (the route names those that take messages), or take it back: ledgermq "
    "cluster undrain {group}"
)


class RefusedError(Exception):
    """Failure of a call, answered with this refusal."""

    def __init__(
        self, code: RefusalCode, message: str, *, retryable: bool = False, retry_after_ms: int = 0
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(code=code, message=message, retryable=retryable, retry_after_ms=retry_after_ms)


#: Error class, code, retryable. The first match counts.
_TABLE: Final[tuple[tuple[type[Exception], RefusalCode, bool], ...]] = (
    (NotLeaderError, route_pb2.NOT_LEADER, True),
    (TransferringError, route_pb2.NOT_LEADER, True),
    (NodeStoppedError, route_pb2.SHUTTING_DOWN, True),
    (ProposalLostError, route_pb2.OUTCOME_UNKNOWN, True),
    (TurnFailedError, route_pb2.INTERNAL, True),
    (SlaveTimeoutError, route_pb2.SLAVE_TIMEOUT, True),
    (SlavesAwayError, route_pb2.SLAVES_AWAY, True),
    (BusyError, route_pb2.TOO_MANY_REQUESTS, True),
    (TooManyRequestsError, route_pb2.TOO_MANY_REQUESTS, True),
    (DiskFullError, route_pb2.DISK_FULL, True),
    (EntryTooLargeError, route_pb2.MESSAGE_TOO_LARGE, False),
    (TopicNotFoundError, route_pb2.TOPIC_NOT_FOUND, False),
    (QueueNotFoundError, route_pb2.QUEUE_NOT_FOUND, False),
    (ConsumerGroupNotFoundError, route_pb2.GROUP_NOT_FOUND, False),
    (LimitReachedError, route_pb2.NOT_SUPPORTED, False),  # not TOO_MANY_REQUESTS: clients repeat that
    (LogCompactedError, route_pb2.OFFSET_OUT_OF_RANGE, False),
    (TransferFailedError, route_pb2.NO_QUORUM, True),
    (StorageError, route_pb2.INTERNAL, False),
    (ConsumeQueueError, route_pb2.INTERNAL, True),  # the node stops; the others have the queue
)

#: Errors that `refusal_of` knows. Any other error is a bug and is not hidden.
REFUSABLE: Final[tuple[type[Exception], ...]] = (
    RefusedError,
    LeaderUnavailableError,
    *(kind for kind, _, _ in _TABLE),
)


def refusal_of(
    error: Exception, leader_id: str | None = None, leader: ListenerAddresses | None = None
) -> Refusal:
    """Return the refusal for an error of REFUSABLE. `leader`: its addresses in the caller's network."""
    if isinstance(error, RefusedError):
        return error.refusal
    if isinstance(error, LeaderUnavailableError):
        code = route_pb2.OUTCOME_UNKNOWN if error.unknown else route_pb2.NO_QUORUM
        return Refusal(code=code, message=str(error), retryable=True, retry_after_ms=RETRY_AFTER_MS)
    row = next((row for row in _TABLE if isinstance(error, row[0])), None)
    if row is None:
        raise error
    _, code, retryable = row
    if code == route_pb2.NOT_LEADER:
        return not_leader(leader_id, leader)
    message = str(error)
    if code == route_pb2.OUTCOME_UNKNOWN:
        message += ". It may or may not have been stored; send the same again, a repeat is recognised"
        return Refusal(code=code, message=message, retryable=True, retry_after_ms=LOST_RETRY_AFTER_MS)
    pause = AWAY_RETRY_AFTER_MS if code == route_pb2.SLAVES_AWAY else RETRY_AFTER_MS
    return Refusal(code=code, message=message, retryable=retryable, retry_after_ms=pause if retryable else 0)


def not_leader(leader_id: str | None, leader: ListenerAddresses | None) -> Refusal:
    """Return the refusal of a node that does not lead: NO_QUORUM without a known leader."""
    if not leader_id:
        return Refusal(
            code=route_pb2.NO_QUORUM,
            message=str(LeaderUnavailableError(unknown=False)),
            retryable=True,
            retry_after_ms=RETRY_AFTER_MS,
        )
    return Refusal(
        code=route_pb2.NOT_LEADER,
        message=f"this node does not lead; {leader_id} does. Nothing was stored",
        retryable=True,
        leader_id=leader_id,
        leader_address=leader.log_address if leader is not None else "",
    )

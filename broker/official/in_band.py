"""Errors as statuses inside the answers to official clients."""

from __future__ import annotations

from typing import Final

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.raft.errors import BusyError, DiskFullError, StorageError

from ..cluster.leader_calls import LeaderUnavailableError
from ..errors import InvalidReceiptHandleError, LimitReachedError
from ..leader.pipeline import TooManyRequestsError
from ..reading.polls import TooManyPollsError
from ..service.answers import Refusals
from ..service.sessions import TooManyClientsError
from ..wire.status import StatusError

#: Limits that were reached; the caller may repeat the call later.
_LIMITS: Final = (TooManyRequestsError, TooManyPollsError, TooManyClientsError, BusyError, DiskFullError)
#: Errors that are answered in-band.
IN_BAND: Final = (
    StatusError,
    LeaderUnavailableError,
    LimitReachedError,
    InvalidReceiptHandleError,
    *_LIMITS,
    StorageError,
)


def in_band_status(refusals: Refusals, error: Exception) -> v2.Status:
    """Return the status for an error, and count it."""
    if isinstance(error, LeaderUnavailableError):
        if error.unknown:
            error = StatusError(v2.MASTER_PERSISTENCE_TIMEOUT, str(error))
        else:
            error = StatusError(v2.HA_NOT_AVAILABLE, refusals.without_master() or str(error))
    elif isinstance(error, LimitReachedError):
        error = StatusError(v2.FORBIDDEN, str(error))  # a repeat would not help, so the code asks for none
    elif isinstance(error, InvalidReceiptHandleError):
        error = StatusError(v2.INVALID_RECEIPT_HANDLE, str(error))
    elif not isinstance(error, StatusError):
        code = v2.TOO_MANY_REQUESTS if isinstance(error, _LIMITS) else v2.INTERNAL_SERVER_ERROR
        error = StatusError(code, str(error))
    refusals.count(v2.Code.Name(error.code))
    return error.status()

"""Clear errors: how errors of the client reach the users of Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from ledgermq.client.errors import BrokerUnreachableError, LedgerMQError

from ..errors import SparkJobError

#: What most often is wrong when a node is reached from elsewhere.
_OTHER_NETWORK: Final = (
    "If the node runs and this address is of another network, set log_advertise of the brokers' listener, or "
    "give nameservers an address of a listener in this network"
)

P = ParamSpec("P")
T = TypeVar("T")


def with_clear_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Let errors leave as one sentence: Spark prints the trace, too, and this one is short.

    Raises: SparkJobError.
    """

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(*arguments, **named)
        except BrokerUnreachableError as error:
            raise SparkJobError(f"{str(error).rstrip('.')}. {_OTHER_NETWORK}") from None
        except (LedgerMQError, SparkJobError) as error:
            raise SparkJobError(str(error)) from None

    return call

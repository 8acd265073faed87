"""Clear errors: how errors of the client reach the users of Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ledgermq.client.errors import LedgerMQError

from ..errors import SparkJobError

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
        except (LedgerMQError, SparkJobError) as error:
            raise SparkJobError(str(error)) from None

    return call

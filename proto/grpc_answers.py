"""Check of gRPC answers: one that cannot be decoded becomes an error like that of any failed call.

If the bytes of an answer are not a message of its type, grpc.aio logs the exception and returns None. A
caller that uses it fails with AttributeError or, where only the end of the call matters, assumes success.
"""

from __future__ import annotations

from typing import TypeVar

import grpc
import grpc.aio

T = TypeVar("T")


class UndecodableAnswerError(grpc.aio.AioRpcError):
    """The bytes of an answer are not a message of the call's type. The call may have taken effect."""

    def __init__(self) -> None:
        super().__init__(
            grpc.StatusCode.INTERNAL,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(),
            details="the answer cannot be decoded",
            debug_error_string="",
        )


def decoded(answer: T | None) -> T:
    """Return the result of a unary call or of one read from a stream. Raises: UndecodableAnswerError."""
    if answer is None:
        raise UndecodableAnswerError
    return answer

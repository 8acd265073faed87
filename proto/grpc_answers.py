"""Answers of gRPC calls that cannot be decoded: an error like any other failed call.

grpc.aio gives None where the bytes of an answer are no message of its type (it logs the exception). Whoever takes that for
an answer fails by AttributeError, or, where only the end of the call counts, believes that it succeeded.
"""

from __future__ import annotations

from typing import TypeVar

import grpc
import grpc.aio

T = TypeVar("T")


class UndecodableAnswerError(grpc.aio.AioRpcError):
    """Something answered, and the bytes are no message of the type that the call has. What was asked may have been done."""

    def __init__(self) -> None:
        super().__init__(
            grpc.StatusCode.INTERNAL,
            grpc.aio.Metadata(),
            grpc.aio.Metadata(),
            details="the answer cannot be decoded",
            debug_error_string="",
        )


def decoded(answer: T | None) -> T:
    """Return what a unary call, or one read of a stream, gave. Raises: UndecodableAnswerError."""
    if answer is None:
        raise UndecodableAnswerError
    return answer

"""Unary calls to the nodes of a broker group: the leader first, then the others, within one deadline.

Owns: the retry loop of unary calls, the translation of refusals and gRPC errors.
Used for calls that are safe to repeat.
Must not: choose nodes (`LeaderTracker` does).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from ledgermq.proto import log_pb2_grpc
from ledgermq.proto import route_pb2 as pb

from ..errors import (
    BrokerUnreachableError,
    ClosedError,
    LedgerMQError,
    OutcomeUnknownError,
    RefusedError,
    RouteError,
    UsageError,
    error_of,
)
from ..pauses import ATTEMPT_TIMEOUT_S, CALL_TIMEOUT_S, REFUSED_PAUSE_S
from .channels import Channels, unreachable
from .leader_tracker import LeaderTracker, Port
from .topic_route import BrokerGroup

T = TypeVar("T")


def being_cancelled() -> bool:
    """Tell whether the running task is being cancelled. If so, a CancelledError is meant for it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_if_closed() -> None:
    """Call this on a CancelledError, to tell the end of the call from the end of its caller.

    Raises: ClosedError (the client's channels were closed; the running task is not being cancelled).
    """
    if not being_cancelled():
        raise ClosedError("client") from None


def raise_if_final(refusal: pb.Refusal) -> None:
    """Raise the refusal, unless another node or a later attempt may help."""
    error = error_of(refusal)
    if not error.retryable:
        raise error


def _none_asked(tracker: LeaderTracker, timeout_s: float) -> LedgerMQError:
    addresses = tracker.addresses
    if not addresses:
        return RouteError(
            f'broker group "{tracker.group.name}" has no node with an address for this network',
            "Its nodes have not registered for the nameserver's listener that was asked",
            "See: ledgermq cluster status",
        )
    if timeout_s <= 0:
        return UsageError(f"the timeout is {timeout_s:g} s: no node was asked", "", "Give more than 0")
    return BrokerUnreachableError(", ".join(addresses), f"it could not be asked within {timeout_s:g} s")


async def call_broker_group(
    broker_group: Callable[[], BrokerGroup],
    channels: Channels,
    call: Callable[[Any, float], Awaitable[T]],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    attempt_s: float = ATTEMPT_TIMEOUT_S,
    port: Port = "log_address",
    once: bool = False,
    after_round: Callable[[], Awaitable[None]] | None = None,
    on_unknown: Callable[[], None] = lambda: None,
) -> T:
    """Call nodes of a broker group until one answers, in rounds.

    `call(channel, timeout_s)` makes the call on a channel. It may raise a LedgerMQError instead of
    returning a refusal. `attempt_s`: limit per node, s. `once`: stop after the first round.
    `after_round()` is called after a failed round, before the pause. `on_unknown()` is called when an attempt
    without an answer may have taken effect.

    Raises: the refusal as an error, if it is not retryable. After the deadline, the last refusal, or
    BrokerUnreachableError if no node answered. RouteError if no node has an address. ClosedError if the
    channels are closed.
    The error's `perhaps_done` tells whether an attempt may have taken effect.
    """
    end = time.monotonic() + timeout_s
    tracker = LeaderTracker(broker_group(), port)
    last: LedgerMQError | None = None
    # Refusals of this and the previous round. A node that answered knows more than silent ones.
    refused: LedgerMQError | None = None
    earlier: LedgerMQError | None = None
    perhaps_done = False
    while True:
        tracker.update(broker_group())
        address, pause_ms = tracker.next()
        rest = end - time.monotonic()
        if pause_ms or rest <= 0:
            pause_s = min(pause_ms / 1000, REFUSED_PAUSE_S)  # the caller waits, and has a deadline
            if once or pause_s >= rest:
                last = refused or earlier or last or _none_asked(tracker, timeout_s)
                last.perhaps_done = perhaps_done
                raise last
            refused, earlier = None, refused
            if after_round is not None:
                await after_round()
            await asyncio.sleep(pause_s)
            continue
        try:
            return await _answer_of(call(channels.get(address), min(rest, attempt_s)))
        except grpc.RpcError as error:
            last = silent = unreachable(address, error)
            is_unknown = not silent.not_sent
        except LedgerMQError as error:
            last = refused = error
            is_unknown = isinstance(error, OutcomeUnknownError)
        if is_unknown:
            perhaps_done = True
            on_unknown()
        last.perhaps_done = perhaps_done
        if not last.retryable:
            raise last
        tracker.failed(address)
        if isinstance(last, RefusedError) and last.leader_address != address:
            tracker.hint(last.leader_address)


async def _answer_of(attempt: Awaitable[T]) -> T:
    """Await an answer. Raises: a refusal as an error, ClosedError (channels are closed), grpc.RpcError."""
    try:
        answer = await attempt
    except asyncio.CancelledError:
        raise_if_closed()
        raise
    refusal: pb.Refusal | None = getattr(answer, "refusal", None)
    if refusal is not None and refusal.code:
        raise error_of(refusal)
    return answer


async def call_log_service(
    broker_group: Callable[[], BrokerGroup],
    channels: Channels,
    method: Callable[[log_pb2_grpc.LogServiceStub], Callable[..., Awaitable[T]]],
    request: Message,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> T:
    """Call LogService as `call_broker_group` does, and name the intended broker group. Raises: as that."""

    def send(channel: Any, attempt_s: float) -> Awaitable[T]:
        stub = log_pb2_grpc.LogServiceStub(channel)
        return method(stub)(request, timeout=attempt_s, metadata=broker_group().metadata)

    return await call_broker_group(broker_group, channels, send, timeout_s=timeout_s)

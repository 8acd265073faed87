"""Unary calls to the nodes of a broker group: the leader first, then the others, within one deadline.

Owns: which node is asked next, the translation of refusals and gRPC errors. Used for calls that are safe to repeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc

from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.grpc_answers import decoded

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
from .channels import Channels, unreachable
from .topic_route import BrokerGroup

CALL_TIMEOUT_S: Final = 5.0
_ATTEMPT_TIMEOUT_S: Final = 2.5
_PAUSE_S: Final = 0.05

T = TypeVar("T")


def being_cancelled() -> bool:
    """Tell whether somebody cancels the running task: then a CancelledError is meant for it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def raise_if_closed() -> None:
    """Tell apart, of a CancelledError, the end of a call from the end of its caller.

    Raises: ClosedError (the client's channels were closed, nobody cancelled the running task).
    """
    if not being_cancelled():
        raise ClosedError("client") from None


def raise_if_final(refusal: pb.Refusal) -> None:
    """Raise the refusal unless another node or a later attempt may help."""
    error = error_of(refusal)
    if not error.retryable:
        raise error


def _no_address(group: BrokerGroup) -> LedgerMQError:
    return RouteError(
        f'broker group "{group.name}" has no node with an address for this network',
        "Its nodes have not registered for the nameserver's listener that was asked",
        "See: ledgermq cluster status",
    )


def _nobody_asked(group: BrokerGroup, timeout_s: float) -> LedgerMQError:
    addresses = [node.log_address for node in group.by_preference]
    if not addresses:
        return _no_address(group)
    if timeout_s <= 0:
        return UsageError(f"the timeout is {timeout_s:g} s: no node was asked", "", "Give more than 0")
    return BrokerUnreachableError(", ".join(addresses), f"it could not be asked within {timeout_s:g} s")


async def call_group(
    group: Callable[[], BrokerGroup],
    channels: Channels,
    call: Callable[[Any, float], Awaitable[T]],
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    on_unknown: Callable[[], None] = lambda: None,
) -> T:
    """Call nodes of a group until one answers. `call(channel, timeout_s)` makes the call on a channel.

    `on_unknown()` is called when an attempt may have taken effect although it brought no answer.

    Raises: the refusal as an error when it is not retryable; the last refusal, or BrokerUnreachableError when no node answered,
    when the time is over; RouteError when the group has no node that could be asked; ClosedError when the channels are closed.
    The error's `perhaps_done` says that an attempt may have taken effect.
    """
    end = time.monotonic() + timeout_s
    last: LedgerMQError | None = None
    # By a node that answered: it knows more than the silence of the others
    refused: LedgerMQError | None = None
    hint, perhaps_done = "", False
    while True:
        refused, earlier = None, refused
        addresses = [hint] * bool(hint) + [node.log_address for node in group().by_preference]
        for address in addresses:
            rest = end - time.monotonic()
            if rest <= 0:
                break
            try:
                answer = decoded(await call(channels.get(address), min(rest, _ATTEMPT_TIMEOUT_S)))
            except asyncio.CancelledError:
                raise_if_closed()
                raise
            except grpc.RpcError as error:
                last = unreachable(address, error)
                if not last.not_sent:
                    perhaps_done = True
                    on_unknown()
                continue
            refusal: pb.Refusal | None = getattr(answer, "refusal", None)
            if refusal is None or not refusal.code:
                return answer
            failure = error_of(refusal)
            perhaps_done = perhaps_done or isinstance(failure, OutcomeUnknownError)
            failure.perhaps_done = perhaps_done
            if not failure.retryable:
                raise failure
            last = refused = failure
            if refusal.code == pb.OUTCOME_UNKNOWN:
                on_unknown()
            hint = failure.leader_address if isinstance(failure, RefusedError) else ""
            if hint and hint != address:
                break
        if time.monotonic() + _PAUSE_S >= end:
            last = refused or earlier or last or _nobody_asked(group(), timeout_s)
            last.perhaps_done = perhaps_done
            raise last
        await asyncio.sleep(_PAUSE_S)

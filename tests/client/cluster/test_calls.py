"""Which error a call ends with when no node of a group can serve it in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from ledgermq.client.cluster.calls import call_broker_group
from ledgermq.client.cluster.leader_tracker import Port
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.errors import (
    BrokerUnreachableError,
    ConsumerGroupNotFoundError,
    LedgerMQError,
    NoQuorumError,
    RouteError,
    TooManyRequestsError,
    UsageError,
)
from ledgermq.proto import route_pb2 as pb

NODES = tuple(Node(f"n{i}", f"host{i}:1", "", alive=True) for i in (1, 2, 3))
GROUP = BrokerGroup("local", "g0", 1, "n1", NODES, writable=True)


def failure(living: str) -> LedgerMQError:
    """Call a group of which only `living` answers, with a refusal; return the error."""

    async def call(address: Any, timeout_s: float) -> Any:
        if address != living:
            raise AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "refused", "")
        return SimpleNamespace(refusal=pb.Refusal(code=pb.NO_QUORUM, message="no leader", retryable=True))

    channels: Any = SimpleNamespace(get=lambda address: address)
    with pytest.raises(LedgerMQError) as failed:
        asyncio.run(call_broker_group(lambda: GROUP, channels, call, timeout_s=0.1))
    return failed.value


@pytest.mark.parametrize("living", ["host1:1", "host2:1", "host3:1"])
def test_what_a_living_node_says_counts_more_than_the_silence_of_the_others(living: str) -> None:
    error = failure(living)
    assert isinstance(error, NoQuorumError)
    assert error.retryable


def test_when_no_node_answers_one_of_them_is_named() -> None:
    assert isinstance(failure(""), BrokerUnreachableError)


def test_a_call_without_time_blames_the_timeout_and_not_the_route() -> None:
    async def call(address: Any, timeout_s: float) -> Any:
        raise AssertionError("no node is asked")

    channels: Any = SimpleNamespace(get=lambda address: address)
    for timeout_s in (0, -1):
        with pytest.raises(UsageError, match="the timeout is"):
            asyncio.run(call_broker_group(lambda: GROUP, channels, call, timeout_s=timeout_s))


def answering(
    answers: dict[str, list[Any]],
    *,
    timeout_s: float = 20.0,
    once: bool = False,
    port: Port = "log_address",
    after_round: Callable[[], Awaitable[None]] | None = None,
) -> tuple[Any, list[str]]:
    """Call a broker group whose nodes give these answers; return the answer or error, and who was asked."""
    asked: list[str] = []

    async def call(address: Any, timeout_s: float) -> Any:
        asked.append(address)
        answer = answers[address].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario() -> Any:
        channels: Any = SimpleNamespace(get=lambda address: address)
        try:
            return await call_broker_group(
                lambda: GROUP,
                channels,
                call,
                timeout_s=timeout_s,
                once=once,
                port=port,
                after_round=after_round,
            )
        except LedgerMQError as error:
            return error

    return asyncio.run(scenario()), asked


def not_leader(address: str) -> Any:
    refusal = pb.Refusal(code=pb.NOT_LEADER, message="no", retryable=True, leader_address=address)
    return SimpleNamespace(refusal=refusal)


def down() -> AioRpcError:
    return AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), "refused", "")


def test_the_node_that_a_refusal_names_is_asked_next() -> None:
    answer, asked = answering({"host1:1": [not_leader("host3:1")], "host3:1": ["done"]})
    assert (answer, asked) == ("done", ["host1:1", "host3:1"])


def test_after_a_round_without_success_the_route_is_asked_for_and_a_new_round_begins() -> None:
    rounds: list[int] = []

    async def after_round() -> None:
        rounds.append(1)

    answers: dict[str, list[Any]] = {"host1:1": [down(), "done"], "host2:1": [down()], "host3:1": [down()]}
    answer, asked = answering(answers, after_round=after_round)
    assert (answer, len(asked), len(rounds)) == ("done", 4, 1)


def test_a_call_that_is_made_once_ends_with_the_first_round() -> None:
    busy = TooManyRequestsError("TOO_MANY_REQUESTS", "busy")
    answers: dict[str, list[Any]] = {"host1:1": [busy], "host2:1": [down()], "host3:1": [down()]}
    answer, asked = answering(answers, once=True)
    assert (answer, asked) == (busy, ["host1:1", "host2:1", "host3:1"])


def test_what_is_raised_instead_of_returned_ends_the_call_when_it_is_not_retryable() -> None:
    gone = ConsumerGroupNotFoundError("GROUP_NOT_FOUND", "no such consumer group")
    assert answering({"host1:1": [gone]}) == (gone, ["host1:1"])


def test_a_broker_group_without_an_address_on_the_port_cannot_be_called() -> None:
    answer, asked = answering({}, port="messaging_address", once=True)
    assert isinstance(answer, RouteError)
    assert "no node with an address" in str(answer)
    assert asked == []

"""Which error a call ends with when no node of a group can serve it in time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from ledgermq.client.cluster.calls import call_group
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.errors import BrokerUnreachableError, LedgerMQError, NoQuorumError, UsageError
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
        asyncio.run(call_group(lambda: GROUP, channels, call, timeout_s=0.1))
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
        raise AssertionError("nobody is asked")

    channels: Any = SimpleNamespace(get=lambda address: address)
    for timeout_s in (0, -1):
        with pytest.raises(UsageError, match="the timeout is"):
            asyncio.run(call_group(lambda: GROUP, channels, call, timeout_s=timeout_s))

"""Calls to a leader that says nothing: given up when another node leads, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.broker.cluster import lane as forward_lane
from ledgermq.broker.cluster.forwarding import Forwarder
from ledgermq.broker.cluster.lane import MAX_REQUEST, ForwardError

METHOD = "/test.Silent/Call"


class Silent:
    """A node that takes calls, and streams of calls, and never answers; `asked` has what came in."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.forwarder: Forwarder

    def handlers(self) -> list[grpc.GenericRpcHandler[Any, Any]]:
        method = grpc.unary_stream_rpc_method_handler(self._serve)
        names = [name[1:].split("/") for name in (METHOD, forward_lane.METHOD)]
        return [grpc.method_handlers_generic_handler(service, {name: method}) for service, name in names]

    async def _serve(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        self.asked.put_nowait(request)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        yield b""


@pytest.fixture
@asynccontextmanager
async def silent() -> AsyncIterator[Silent]:
    server, node = grpc.aio.server(), Silent()
    server.add_generic_rpc_handlers(node.handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    node.forwarder = Forwarder("n1", {"n2": f"127.0.0.1:{port}"}, lambda answer: None)
    try:
        yield node
    finally:
        await node.forwarder.close()
        await server.stop(0)


async def unary(forwarder: Forwarder) -> bytes:
    return await forwarder.unary("n2", METHOD, b"unary", (), 3600)


async def large(forwarder: Forwarder) -> bytes:
    return await forwarder.unary("n2", METHOD, bytes(MAX_REQUEST + 1), (), 3600)


async def stream(forwarder: Forwarder) -> list[bytes]:
    return [frame async for frame in forwarder.stream("n2", METHOD, b"stream", (), 3600)]


@pytest.mark.parametrize("make", [unary, large, stream])
async def test_a_call_to_a_node_that_leads_no_longer_is_given_up_with_an_unknown_outcome(
    silent: Silent, make: Callable[[Forwarder], Any]
) -> None:
    under_way = asyncio.create_task(make(silent.forwarder))
    await silent.asked.get()
    silent.forwarder.leader_changed("n3")
    with pytest.raises(ForwardError) as given_up:
        await under_way
    assert (given_up.value.definite, given_up.value.repeatable) == (False, True)


async def test_no_call_is_given_up_while_an_election_is_on_or_when_the_same_node_leads_again(
    silent: Silent,
) -> None:
    under_way = asyncio.create_task(unary(silent.forwarder))
    await silent.asked.get()
    silent.forwarder.leader_changed(None)
    silent.forwarder.leader_changed("n2")
    await asyncio.sleep(0)
    assert not under_way.done()
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)


@pytest.mark.parametrize("make", [unary, large, stream])
async def test_the_end_of_the_caller_is_no_failure_of_the_call(
    silent: Silent, make: Callable[[Forwarder], Any]
) -> None:
    under_way = asyncio.create_task(make(silent.forwarder))
    await silent.asked.get()
    under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await under_way


async def test_a_node_that_does_not_know_a_call_is_told_from_one_that_failed_over_it() -> None:
    """It is of an older version: there may be another way."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    forwarder = Forwarder("n1", {"n2": f"127.0.0.1:{port}"}, lambda answer: None)
    try:
        with pytest.raises(ForwardError) as refused:
            await large(forwarder)
    finally:
        await forwarder.close()
        await server.stop(0)
    error = refused.value
    assert (error.repeatable, error.unknown_there) == (False, True)


@pytest.mark.parametrize("make", [unary, large, stream])
async def test_a_call_on_a_closed_channel_had_no_effect_for_certain(
    silent: Silent, make: Callable[[Forwarder], Any]
) -> None:
    await silent.forwarder.channel("n2").close()
    with pytest.raises(ForwardError) as refused:
        await make(silent.forwarder)
    assert refused.value.definite


async def test_a_call_of_its_own_ends_at_the_other_node_when_its_caller_is_gone(silent: Silent) -> None:
    """Like one that shares a stream (test_forward_lane.py): a receive would lease messages in vain."""
    under_way = asyncio.create_task(large(silent.forwarder))
    assert len(await silent.asked.get()) > MAX_REQUEST
    under_way.cancel()
    await silent.ended.wait()
    await asyncio.gather(under_way, return_exceptions=True)

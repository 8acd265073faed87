"""Grants between two nodes over gRPC: leases whose messages do not reach the consumer come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.broker.cluster.forwarding import Forwarder
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.cluster.lane_server import forwarded_calls_handler
from ledgermq.broker.official.receive_at_follower import GRANT, GrantedReceives

from ..grant_rig import BODIES, GrantRig, bodies


class Wire:
    """The rig's nodes, and a server. `at_answer` is called before the leader answers a grant."""

    def __init__(self, rig: GrantRig) -> None:
        self.rig = rig
        self.at_answer: Callable[[], object] = lambda: None
        self.server = grpc.aio.server()
        self.address = ""
        self.forwarder: Forwarder
        self.receives: GrantedReceives
        self._service = rig.leader.grants.handler()

    async def start(self) -> None:
        self.server.add_generic_rpc_handlers((forwarded_calls_handler(self._find), self._service))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.address = f"127.0.0.1:{port}"
        self.forwarder = Forwarder("n2", {"n1": self.address}, self.rig.unclaimed.take)
        self.receives = self.rig.receives = self.rig.receives_by(self.forwarder)

    async def stop(self) -> None:
        await self.forwarder.close()
        await self.server.stop(0)

    def _find(self, method: str) -> Any:
        details: Any = SimpleNamespace(method=method, invocation_metadata=())
        handler: Any = self._service.service(details)
        if method != GRANT:
            return handler

        async def grant(request: bytes, context: Any) -> bytes:
            answer: bytes = await handler.unary_unary(request, context)
            self.at_answer()
            return answer

        return grpc.unary_unary_rpc_method_handler(grant)


@pytest.fixture
@asynccontextmanager
async def wire() -> AsyncIterator[Wire]:
    rig = GrantRig()
    await rig.prepare()
    rig.apply(3)
    made = Wire(rig)
    await made.start()
    try:
        yield made
    finally:
        await rig.receives.stop()
        await made.stop()


async def test_a_consumer_gets_what_was_granted_over_the_stream(wire: Wire) -> None:
    assert bodies(await wire.rig.all_of(wire.rig.receive())) == list(BODIES)


async def test_a_request_for_a_grant_that_cannot_be_decoded_is_refused_without_a_trace(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    async with grpc.aio.insecure_channel(wire.address) as channel:
        method: Any = channel.unary_unary("/ledgermq.v1.PeerService/Grant", None, None)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(b"\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_consumer_that_goes_while_the_answer_is_on_its_way_loses_nothing(wire: Wire) -> None:
    task: asyncio.Task[Any] = asyncio.ensure_future(anext(wire.rig.receive()))
    wire.at_answer = task.cancel
    await wire.rig.decide(3)
    with pytest.raises(asyncio.CancelledError):
        await task
    await wire.rig.decide(4)
    assert wire.rig.visible == [0, 1, 2]


async def test_an_answer_that_is_lost_with_its_stream_takes_no_message_with_it(wire: Wire) -> None:
    task: asyncio.Task[Any] = asyncio.ensure_future(anext(wire.rig.receive()))
    wire.at_answer = lambda: wire.forwarder.leader_changed("n3")
    await wire.rig.decide(3)
    with pytest.raises(ForwardError, match="leads no longer"):
        await task
    await wire.rig.decide(4)
    assert wire.rig.visible == [0, 1, 2]


async def test_a_leader_that_was_deposed_meanwhile_leaves_the_release_to_the_next(wire: Wire) -> None:
    """Which releases all that is young: the deposed one must not do it again, years later."""
    task: asyncio.Task[Any] = asyncio.ensure_future(anext(wire.rig.receive()))

    def deposed() -> None:
        wire.rig.leader.replica.view = None
        wire.forwarder.leader_changed("n3")

    wire.at_answer = deposed
    await wire.rig.decide(3)
    with pytest.raises(ForwardError):
        await task
    await wire.stop()
    assert len(wire.rig.raft.proposals) == 4
    assert wire.rig.leader.replica.releases.owed == 0

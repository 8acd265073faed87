"""Something answers a call with bytes that are no message: an error like any other, and the caller goes on.

The channel makes it a failed call. Each kind of caller is tried against a server whose first answers are such
bytes.
"""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.broker.cluster import other_broker_groups as other_groups
from ledgermq.broker.cluster import registration
from ledgermq.broker.cluster.other_broker_groups import OtherBrokerGroups
from ledgermq.broker.cluster.registration import Registration
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.find_master import _ask
from ledgermq.client.cluster.calls import call_broker_group
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.routes import Routes
from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.errors import BrokerUnreachableError, NameserversDownError
from ledgermq.proto import log_pb2, log_pb2_grpc, nameserver_pb2, raft_pb2, route_pb2
from ledgermq.raft.config import Member
from ledgermq.raft.peer_tls import NO_TLS
from ledgermq.raft.repair.refetch import RefetchClient, RefetchError
from ledgermq.raft.types import LogIndex, NodeId

GARBAGE = b"\x0a\xff\xff"  # a field of 16,383 bytes that are not there


class Stranger(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not a generic class at run time
    """Serves every method: the first `times` answers of each are garbage, the others empty messages."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls: Counter[str] = Counter()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        name = call.method.rsplit("/", 1)[-1]

        def answer() -> bytes:
            self.calls[name] += 1
            return GARBAGE if self.calls[name] <= self.times else b""

        async def unary(_request: bytes, _context: Any) -> bytes:
            return answer()

        async def stream(_request: Any, _context: Any) -> AsyncIterator[bytes]:
            yield answer()
            await asyncio.sleep(600)

        if name == "Heartbeat":
            return grpc.stream_stream_rpc_method_handler(stream)
        if name == "WatchRoutes":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)


def against(stranger: Stranger, scenario: Callable[[str], Awaitable[None]]) -> None:
    """Run a scenario with the address of the server."""

    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((stranger,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await asyncio.wait_for(scenario(f"127.0.0.1:{port}"), 30)
        finally:
            await server.stop(0)

    asyncio.run(run())


async def until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.005)


def test_a_node_registers_and_beats_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEAT_INTERVAL", "REGISTER_INTERVAL"):
        monkeypatch.setattr(registration, name, 0.01)
    stranger = Stranger(times=2)

    async def scenario(address: str) -> None:
        route = route_pb2.GroupRoute(cluster="local", group="g1")
        node = Registration(
            (address,),
            lambda: nameserver_pb2.RegisterRequest(node_id="n1", route=route),
            lambda: nameserver_pb2.HeartbeatBeat(cluster="local", group="g1", node_id="n1"),
            lambda: False,
        )
        node.start()
        try:
            await until(lambda: stranger.calls["Register"] > 3 and stranger.calls["Heartbeat"] > 2)
        finally:
            await node.stop()

    against(stranger, scenario)


def test_the_other_broker_groups_are_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_groups, "_PAUSE", 0.01)
    stranger = Stranger(times=1)

    async def scenario(address: str) -> None:
        watching = OtherBrokerGroups("local", "g1", (address,))
        watching.start()
        try:
            await until(lambda: stranger.calls["WatchRoutes"] > 1)
        finally:
            await watching.stop()

    against(stranger, scenario)


def test_nobody_is_believed_to_be_the_master() -> None:
    async def scenario(address: str) -> None:
        config = BrokerConfig.model_construct(
            cluster="local", group="g1", node_id="n1", replication="async_master"
        )
        assert await _ask(address, config) == ""

    against(Stranger(times=1), scenario)


def test_a_repair_asks_another_peer() -> None:
    async def scenario(address: str) -> None:
        config: Any = types.SimpleNamespace(
            cluster_id="local", group="g1", node_id="n1", segment_size=1 << 20, tls=NO_TLS
        )
        client = RefetchClient(config, 5)
        try:
            with pytest.raises(RefetchError, match="n2: not reached"):
                peer = Member(NodeId("n2"), address)
                await client.ask(peer, LogIndex(1), LogIndex(0), raft_pb2.RepairProgress())
        finally:
            await client.close()

    against(Stranger(times=1), scenario)


def test_a_client_does_not_believe_that_its_call_succeeded() -> None:
    """An offset commit needs nothing of its answer but that there is one."""

    async def scenario(address: str) -> None:
        group = BrokerGroup("local", "g1", 1, "n1", (Node("n1", address, address, True),), writable=True)
        channels = Channels()

        def commit(channel: Any, timeout_s: float) -> Any:
            stub = log_pb2_grpc.LogServiceStub(channel)
            return stub.CommitOffsets(log_pb2.CommitOffsetsRequest(), timeout=timeout_s)

        try:
            with pytest.raises(BrokerUnreachableError, match="cannot be decoded") as failed:
                await call_broker_group(lambda: group, channels, commit, timeout_s=0.3)
            assert failed.value.perhaps_done
        finally:
            await channels.close()

    against(Stranger(times=1000), scenario)


def test_a_nameserver_that_answers_so_counts_as_down() -> None:
    async def scenario(address: str) -> None:
        channels = Channels()
        try:
            with pytest.raises(NameserversDownError):
                await Routes(address, channels).get("orders")
        finally:
            await channels.close()

    against(Stranger(times=1000), scenario)

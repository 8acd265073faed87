"""The nameserver over real sockets of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from ledgermq.nameserver import service
from ledgermq.nameserver.config import TRANSPORTS
from ledgermq.nameserver.errors import BindError
from ledgermq.nameserver.registrations import Room
from ledgermq.nameserver.route_table import RouteTable
from ledgermq.nameserver.service import Changes, NameServer, NameServerService
from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import nameserver_pb2_grpc, route_pb2

from .test_route_table import route

DEFAULTS: Any = NameServer.__init__.__defaults__
NO_CONTEXT: Any = None  # of a call that is made without a server; it is asked only to refuse one


@pytest.fixture(params=TRANSPORTS, autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test run with every transport."""
    monkeypatch.setattr(NameServer.__init__, "__defaults__", (*DEFAULTS[:-1], request.param))


@asynccontextmanager
async def nameserver(
    *listeners: str, room: Room | None = None
) -> AsyncIterator[tuple[NameServer, dict[str, Any]]]:
    """Start a nameserver; yield it with a stub for each listener."""
    server = NameServer(dict.fromkeys(listeners or ("default",), "127.0.0.1:0"), 10_000, room=room)
    await server.start()
    channels = {name: aio.insecure_channel(address) for name, address in server.addresses.items()}
    try:
        yield server, {n: nameserver_pb2_grpc.NameServerServiceStub(c) for n, c in channels.items()}
    finally:
        for channel in channels.values():
            await channel.close(None)
        await server.stop(0)


def registration(node_id: str = "n1", **changes: Any) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        node_id=node_id, incarnation="i", route=route(**changes), is_leader=node_id == "n1"
    )


async def test_a_route_is_told_with_the_addresses_of_the_listener() -> None:
    async with nameserver("internal", "external") as (_, stubs):
        await stubs["internal"].Register(registration())
        for name, address in (("internal", "n1:8082"), ("external", "127.0.0.1:18081")):
            answer = await stubs[name].GetRoute(pb.GetRouteRequest(topic="orders"))
            assert answer.groups[0].nodes[0].listeners[0].log_address == address


async def test_an_unknown_topic_is_refused_with_similar_names_and_the_next_command(stub: Any) -> None:
    await stub.Register(registration())
    refusal = (await stub.GetRoute(pb.GetRouteRequest(topic="order"))).refusal
    assert refusal.code == route_pb2.TOPIC_NOT_FOUND
    assert 'Did you mean "orders"?' in refusal.message
    assert "ledgermq topic create order" in refusal.message


async def test_without_brokers_the_refusal_says_so(stub: Any) -> None:
    refusal = (await stub.GetRoute(pb.GetRouteRequest(topic="orders"))).refusal
    assert refusal.code == route_pb2.NO_QUORUM
    assert refusal.retryable


async def test_while_a_group_has_no_leader_no_topic_is_said_not_to_exist(stub: Any) -> None:
    """Nodes that were started without a majority know topics only up to their checkpoints."""
    await stub.Register(registration(leader="", topics=("orders",)))
    refusal = (await stub.GetRoute(pb.GetRouteRequest(topic="order"))).refusal
    assert (refusal.code, refusal.retryable) == (route_pb2.NO_QUORUM, True)
    assert "group g0 has no leader" in refusal.message
    assert 'Did you mean "orders"?' in refusal.message
    assert (await stub.GetRoute(pb.GetRouteRequest(topic="orders"))).groups


async def test_a_registration_without_a_name_is_refused(stub: Any) -> None:
    answer = await stub.Register(pb.RegisterRequest())
    assert answer.refusal.code == route_pb2.INVALID_ARGUMENT


async def test_more_nodes_than_the_limit_are_refused_and_those_that_are_there_register_again() -> None:
    async with nameserver(room=Room(nodes=2)) as (_, stubs):
        for name in ("n1", "n2", "n1"):
            assert not (await stubs["default"].Register(registration(name))).refusal.code
        refused = (await stubs["default"].Register(registration("n3"))).refusal
        assert refused.code == route_pb2.TOO_MANY_REQUESTS and refused.retryable
        assert "max_nodes" in refused.message


async def test_all_registrations_together_have_a_limit_of_bytes() -> None:
    size = registration().route.ByteSize()
    async with nameserver(room=Room(size=2 * size)) as (_, stubs):
        for name in ("n1", "n2", "n2"):
            assert not (await stubs["default"].Register(registration(name))).refusal.code
        refused = (await stubs["default"].Register(registration("n3"))).refusal
        assert refused.code == route_pb2.TOO_MANY_REQUESTS and "max_registered_bytes" in refused.message


async def test_a_stream_of_beats_under_many_names_is_remembered_once() -> None:
    kept = NameServerService(RouteTable(10_000), Changes(), "default")

    async def beats() -> AsyncIterator[pb.HeartbeatBeat]:
        for number in range(100):
            yield pb.HeartbeatBeat(cluster="c", group="g", node_id=f"n{number}")
            assert len(kept._beating) == 1

    assert [reply.register_again async for reply in kept.Heartbeat(beats(), NO_CONTEXT)] == [True] * 100
    assert not kept._beating


async def test_a_watcher_hears_of_a_new_leader_at_once(stub: Any) -> None:
    await stub.Register(registration())
    watch = stub.WatchRoutes(pb.WatchRoutesRequest(topics=["orders"]))
    assert (await watch.read()).groups[0].leader_id == "n1"
    await stub.Register(registration("n2", term=2, leader="n2"))
    assert (await watch.read()).groups[0].leader_id == "n2"
    watch.cancel()


async def test_a_watcher_is_not_bothered_with_other_topics(stub: Any) -> None:
    await stub.Register(registration())
    watch = stub.WatchRoutes(pb.WatchRoutesRequest(topics=["orders"]))
    assert [info.name for info in (await watch.read()).groups[0].topics] == ["orders"]
    await stub.Register(registration(topics=("orders", "other")))
    await stub.Register(registration(term=2, leader="n2"))
    changed = await watch.read()
    assert changed.groups[0].term == 2
    watch.cancel()


async def test_the_end_of_the_heartbeat_stream_makes_the_node_suspect(stub: Any) -> None:
    await stub.Register(registration())
    beats = stub.Heartbeat()
    await beats.write(pb.HeartbeatBeat(cluster="local", group="g0", node_id="n1", term=1, leader_id="n1"))
    assert not (await beats.read()).register_again
    watch = stub.WatchRoutes(pb.WatchRoutesRequest())
    assert (await watch.read()).groups[0].nodes[0].alive
    beats.cancel()
    changed = await watch.read()
    assert not changed.groups[0].nodes[0].alive
    assert changed.groups[0].leader_id == ""
    watch.cancel()


async def test_a_beat_of_an_unknown_node_is_told_to_register(stub: Any) -> None:
    beats = stub.Heartbeat()
    await beats.write(pb.HeartbeatBeat(cluster="local", group="g0", node_id="n1"))
    assert (await beats.read()).register_again
    beats.cancel()


async def test_a_beat_whose_leader_cannot_be_shown_ends_its_stream_and_is_not_passed_on(stub: Any) -> None:
    await stub.Register(registration())
    beats = stub.Heartbeat()
    named = pb.HeartbeatBeat(cluster="local", group="g0", node_id="n1", term=99, leader_id="\x1b[31m")
    await beats.write(named)
    with pytest.raises(grpc.aio.AioRpcError, match="cannot be printed") as refused:
        await beats.read()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (group,) = (await stub.ListGroups(pb.ListGroupsRequest())).groups
    assert group.term != 99


async def test_a_goodbye_removes_the_node(stub: Any) -> None:
    await stub.Register(registration())
    await stub.Unregister(pb.UnregisterRequest(cluster="local", group="g0", node_id="n1"))
    assert not (await stub.ListGroups(pb.ListGroupsRequest())).groups


async def test_a_busy_port_is_an_error_that_names_it(server: NameServer) -> None:
    address = server.addresses["default"]
    with pytest.raises(BindError, match=address):
        await NameServer({"default": address}, 10_000).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_address_of_another_machine_is_not_answered_with_the_next_port(
    host: str, transport: str
) -> None:
    with pytest.raises(BindError, match=f"{host} is no address of this machine") as error:
        await NameServer({"default": f"{host}:19876"}, 10_000, transport=transport).start()
    assert "19877" not in str(error.value) and "running there" not in str(error.value)


async def test_when_one_address_is_busy_none_is_kept() -> None:
    async with nameserver() as (busy, _), nameserver() as (other, _):
        free = other.addresses["default"]
        await other.stop(0)
        both = {"default": free, "external": busy.addresses["default"]}
        with pytest.raises(BindError, match="ledgermq nameserver --listener external="):
            await NameServer(both, 10_000).start()
        again = NameServer({"default": free}, 10_000)
        await again.start()
        await again.stop(0)


async def test_the_end_of_an_old_stream_says_nothing_when_the_node_beats_on_a_new_one() -> None:
    """A connection that broke in silence ends here long after the node came back on another."""
    server = NameServer({}, 10_000)
    calls = service.NameServerService(server.table, server._changes, "default")
    await calls.Register(registration(), NO_CONTEXT)

    async def beats() -> AsyncIterator[pb.HeartbeatBeat]:
        yield pb.HeartbeatBeat(cluster="local", group="g0", node_id="n1", term=1, leader_id="n1")

    streams: list[Any] = [calls.Heartbeat(beats(), NO_CONTEXT) for _ in range(2)]
    for stream in streams:
        assert not (await anext(stream)).register_again
    for stream, leader in zip(streams, ("n1", ""), strict=True):
        await stream.aclose()
        assert server.table.broker_groups("local")[0].leader_id == leader


async def test_a_slow_watcher_gets_the_newest_view_and_no_backlog() -> None:
    """The service keeps nothing for a watcher: what changed while it did not read is one view."""
    server = NameServer({}, 10_000)
    calls = service.NameServerService(server.table, server._changes, "default")
    watch = calls.WatchRoutes(pb.WatchRoutesRequest(), NO_CONTEXT)
    assert isinstance(watch, AsyncGenerator)
    assert not (await anext(watch)).groups
    for term in range(1, 100):
        await calls.Register(registration(term=term), NO_CONTEXT)
    assert (await anext(watch)).groups[0].term == 99
    waiting = asyncio.ensure_future(anext(watch))
    await calls.Register(registration(term=99), NO_CONTEXT)  # nothing new
    await calls.Register(registration(term=100), NO_CONTEXT)
    assert (await waiting).groups[0].term == 100
    await watch.aclose()
    assert calls._watchers == 0


async def test_one_watcher_too_many_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_WATCHERS", 1)
    async with nameserver() as (_, stubs):
        first = stubs["default"].WatchRoutes(pb.WatchRoutesRequest())
        await first.read()
        with pytest.raises(aio.AioRpcError, match="Ask another nameserver") as raised:
            await stubs["default"].WatchRoutes(pb.WatchRoutesRequest()).read()
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()


async def test_a_silent_node_is_dropped_and_watchers_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_EXPIRY_CHECK_S", 0.001)
    async with nameserver() as (_, stubs):
        await stubs["default"].Register(registration())
        watch = stubs["default"].WatchRoutes(pb.WatchRoutesRequest())
        assert (await watch.read()).groups
        clock = service.now_ms() + 60_000
        monkeypatch.setattr(service, "now_ms", lambda: clock)
        assert not (await watch.read()).groups
        watch.cancel()


async def test_a_stop_ends_the_watches(server: NameServer, stub: Any) -> None:
    watch = stub.WatchRoutes(pb.WatchRoutesRequest())
    await watch.read()
    await server.stop(0)
    with pytest.raises(aio.AioRpcError):
        await watch.read()


@pytest.mark.parametrize("method", ["Register", "GetRoute"])
async def test_bytes_that_are_no_request_are_refused_in_band_where_the_answer_can_say_so(method: str) -> None:
    async with nameserver() as (server, _), aio.insecure_channel(server.addresses["default"]) as plain:
        channel: Any = plain
        call = channel.unary_unary(f"/ledgermq.v1.NameServerService/{method}")
        answer = await call(b"\x0f\xff\xff not a request", timeout=5)
        kind = pb.RegisterResponse if method == "Register" else pb.GetRouteResponse
        refusal = kind.FromString(answer).refusal
        assert refusal.code == route_pb2.INVALID_ARGUMENT
        assert f"it is no {method}Request" in refusal.message


@pytest.mark.parametrize("method", ["ListGroups", "Unregister", "WatchRoutes", "Heartbeat"])
async def test_bytes_that_are_no_request_are_an_invalid_argument_elsewhere(method: str) -> None:
    async with nameserver() as (server, _), aio.insecure_channel(server.addresses["default"]) as plain:
        channel: Any = plain
        path, garbage = f"/ledgermq.v1.NameServerService/{method}", b"\x0f\xff\xff not a request"
        with pytest.raises(aio.AioRpcError) as refused:
            if method == "Heartbeat":
                await channel.stream_stream(path)(iter([garbage]), timeout=5).read()
            elif method == "WatchRoutes":
                await channel.unary_stream(path)(garbage, timeout=5).read()
            else:
                await channel.unary_unary(path)(garbage, timeout=5)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "cannot be decoded" in str(refused.value.details())


async def test_a_node_watches_the_other_groups_with_the_addresses_of_all_listeners() -> None:
    async with nameserver("internal", "external") as (_, stubs):
        other = registration("n4", nodes="n4", leader="n4")
        other.route.group = "g1"
        await stubs["internal"].Register(registration())
        await stubs["internal"].Register(other)
        request = pb.WatchRoutesRequest(all_listeners=True, without_group="g0")
        watch = stubs["external"].WatchRoutes(request)
        (view,) = (await watch.read()).groups
        assert view.group == "g1"
        assert [each.name for each in view.nodes[0].listeners] == ["internal", "external"]
        watch.cancel()


async def test_groups_that_left_are_listed_when_they_are_asked_for(stub: Any) -> None:
    await stub.Register(registration())
    goodbye = pb.UnregisterRequest(cluster="local", group="g0", node_id="n1")
    await stub.Unregister(goodbye)
    assert not (await stub.ListGroups(pb.ListGroupsRequest())).groups
    listed = await stub.ListGroups(pb.ListGroupsRequest(gone_too=True))
    assert [view.group for view in listed.groups] == ["g0"]


async def test_a_group_that_left_is_forgotten_on_demand_and_one_that_lives_is_not(
    server: NameServer, stub: Any
) -> None:
    request = pb.ForgetGroupRequest(cluster="local", group="g0")
    await stub.Register(registration())
    await stub.Register(registration("n2"))
    server.table.suspect("local", "g0", "n1", 1)
    refusal = (await stub.ForgetGroup(request)).refusal
    assert refusal.code == route_pb2.INVALID_ARGUMENT
    assert "n1, n2 of it are registered" in refusal.message and "repeat it then" in refusal.message
    for node in ("n1", "n2"):
        await stub.Unregister(pb.UnregisterRequest(cluster="local", group="g0", node_id=node))
    (gone,) = (await stub.ListGroups(pb.ListGroupsRequest(gone_too=True))).gone
    assert not gone.topics, "a list of many groups would be long"
    (gone,) = (await stub.ListGroups(pb.ListGroupsRequest(gone_too=True, gone_topics=True))).gone
    assert (gone.cluster, gone.group, [info.name for info in gone.topics]) == (
        "local",
        "g0",
        ["orders"],
    )
    assert (await stub.ForgetGroup(request)).forgotten
    assert not (await stub.ForgetGroup(request)).forgotten
    assert not (await stub.ListGroups(pb.ListGroupsRequest(gone_too=True))).groups

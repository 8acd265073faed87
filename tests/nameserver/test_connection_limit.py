"""How many connections a nameserver takes, and what its log says of it."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from contextlib import suppress

import pytest
from grpc import aio

from ledgermq.nameserver import connection_limit
from ledgermq.nameserver.connection_limit import (
    FullListeners,
    connections_by_port,
    connections_per_listener,
    open_descriptors,
)
from ledgermq.nameserver.service import NameServer
from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import nameserver_pb2_grpc

WAIT_S = 20.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def test_the_limit_leaves_descriptors_for_everything_else() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard - min(connection_limit.RESERVE, hard // 2)
    assert connections_per_listener(10, 1) == 10
    if hard < 1 << 40:
        assert connections_per_listener(1 << 40, 1) == most
        assert connections_per_listener(1 << 40, 4) == most // 4


def test_open_files_are_counted() -> None:
    before = open_descriptors()
    with socket.socket():
        assert open_descriptors() == before + 1


def test_a_full_nameserver_says_so_once_and_when_it_has_room_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first count may come when it is full already: it is restarted, and everybody comes at once."""
    found = [0]
    monkeypatch.setattr(connection_limit, "open_descriptors", lambda: found[0] + 20)
    monkeypatch.setattr(connection_limit, "connections_by_port", lambda: Counter({9876: found[0]}))

    async def scenario() -> None:
        full = FullListeners(100, {"default": 9876})
        for found[0] in (100, 110, 110, 95, 89, 90, 100):
            await full.look()

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert [line.partition(" reason")[0].partition(" open")[0] for line in caplog.messages] == [
        "connections refused listener=default",
        "connections taken again listener=default",
        "connections refused listener=default",
    ]
    assert "open=100 limit=100" in caplog.messages[0]


def test_each_listener_has_its_own_limit_and_its_own_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those on one port, of several addresses, are counted together."""
    found = Counter({9876: 100, 9877: 3, 9878: 150})
    monkeypatch.setattr(connection_limit, "open_descriptors", lambda: 270)
    monkeypatch.setattr(connection_limit, "connections_by_port", lambda: found)
    full = FullListeners(100, {"external": 9876, "internal": 9877, "a": 9878, "b": 9878})
    asyncio.run(full.look())
    (line,) = caplog.messages
    assert "connections refused listener=external reason=limit open=100 limit=100" in line


def test_where_few_files_are_open_they_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limit, "open_descriptors", lambda: 98)

    def count() -> Counter[int]:
        raise AssertionError("nothing can be full")

    monkeypatch.setattr(connection_limit, "connections_by_port", count)
    asyncio.run(FullListeners(100, {"default": 9876}).look())


def test_connections_are_counted_by_their_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connections_by_port()[port] == 0, "one that listens is none"
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        taken = [server.accept()[0] for _ in range(5)]
        assert connections_by_port()[port] == 5, "the calling ends have other ports"
        for each in (*callers, *taken):
            assert each.fileno() >= 0, "nothing was closed by counting"
            each.close()
        assert connections_by_port()[port] == 0


def test_more_connections_than_the_limit_are_refused_and_those_that_stand_are_served() -> None:
    async def scenario() -> None:
        server = NameServer({"default": "127.0.0.1:0"}, 10_000, max_connections=3)
        await server.start()
        address = server.addresses["default"]
        loop = asyncio.get_running_loop()
        async with aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = nameserver_pb2_grpc.NameServerServiceStub(channel)
            request = pb.GetRouteRequest(topic="orders")
            await stub.GetRoute(request, timeout=WAIT_S)
            callers = []
            for _ in range(2):
                callers.append(await connected(address))
                await loop.sock_sendall(callers[-1], PREFACE)
                assert await loop.sock_recv(callers[-1], 9), "it answers with its own SETTINGS"
            with await connected(address) as refused, suppress(ConnectionError):
                assert await loop.sock_recv(refused, 1) == b""
            await stub.GetRoute(request, timeout=WAIT_S)
            for each in callers:
                each.close()
            async with aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as late:
                again = nameserver_pb2_grpc.NameServerServiceStub(late)
                await again.GetRoute(request, timeout=WAIT_S, wait_for_ready=True)
        await server.stop(0)

    async def connected(address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        caller = socket.create_connection((host, int(port)))
        caller.setblocking(False)
        return caller

    asyncio.run(asyncio.wait_for(scenario(), 2 * WAIT_S))

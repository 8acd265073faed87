"""How many connections a nameserver takes, and what its log says of it."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from contextlib import suppress

import pytest
from grpc import aio

from ledgermq.nameserver import connection_limit
from ledgermq.nameserver.connection_limit import FullListeners, connections_per_listener, open_descriptors
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
    found = [10]
    monkeypatch.setattr(connection_limit, "open_descriptors", lambda: found[0])
    full = FullListeners(100)
    with caplog.at_level(logging.INFO):
        for found[0] in (10, 100, 110, 110, 105, 99, 110):
            full.look()
    assert [line.partition(" reason")[0].partition(" open")[0] for line in caplog.messages] == [
        "connections refused",
        "connections taken again",
        "connections refused",
    ]
    assert "open=100 limit=100" in caplog.messages[0]


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

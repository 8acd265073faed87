"""Front of a shared port: what it hides, what it closes."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from ledgermq.raft.ports import front as port_front
from ledgermq.raft.ports.front import PortFront, PortVerdict, take_port
from tests.ports import free_port

WAIT_S = 20.0
pytestmark = pytest.mark.usefixtures("runner")


def pass_on(connection: asyncio.Transport, first: bytes) -> PortVerdict:
    return PortVerdict.PASS_ON


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def received(reader: asyncio.StreamReader) -> bytes:
    """Return what arrived until the connection ended in any way."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_the_socket_behind_the_front_has_no_name_and_is_reached_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a killed broker leaves nothing in the folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def sockets() -> list[Path]:
        return list(tmp_path.glob("ledgermq-*/grpc"))

    address = f"127.0.0.1:{free_port()}"
    front, server = PortFront(pass_on), grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Once": method}),))
    server.add_insecure_port(front.inner_address)
    await server.start()
    assert len(sockets()) == 1
    await front.listen(take_port(address))
    assert sockets() == []
    for _ in range(2):  # one connection each
        async with grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            once: Any = channel.unary_unary("/test.Echo/Once", None, None)
            assert await once(b"hello", timeout=WAIT_S) == b"hello"
    await server.stop(0)
    front.close()


@pytest.mark.parametrize("first", [b"", b"too few"])
async def test_a_connection_that_does_not_say_what_it_is_for_is_closed(
    first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_front, "FIRST_BYTES_TIMEOUT_S", 0.02)

    port = free_port()
    front, server = PortFront(lambda connection, first: PortVerdict.WAIT), grpc.aio.server()
    server.add_insecure_port(front.inner_address)
    await front.listen(take_port(f"127.0.0.1:{port}"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    async with asyncio.timeout(WAIT_S):
        assert await received(reader) == b""
    writer.close()
    await server.start()
    await server.stop(0)
    front.close()


def test_what_comes_in_the_turn_in_which_listening_stops_is_not_left_open(runner: asyncio.Runner) -> None:
    """asyncio's server forgets a socket closed right after the accept. Only garbage collection finds it."""

    async def scenario() -> None:
        port = free_port()
        front, server = PortFront(lambda connection, first: PortVerdict.WAIT), grpc.aio.server()
        server.add_insecure_port(front.inner_address)
        await front.listen(take_port(f"127.0.0.1:{port}"))
        stopped = asyncio.get_running_loop().create_future()
        signal, trigger = socket.socketpair()

        def stop() -> None:
            asyncio.get_running_loop().remove_reader(signal)
            front.stop_listening()
            stopped.set_result(None)

        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        asyncio.get_running_loop().add_reader(signal, stop)  # after the accept, in the same turn
        trigger.send(b"now")
        await stopped
        for _ in range(5):
            await asyncio.sleep(0)
        front.close()
        for each in (*callers, signal, trigger):
            each.close()
        await server.stop(0)

    runner.run(scenario())
    gc.collect()

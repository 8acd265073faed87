"""Life of servers and channels: drain, reconnects, generated code, what may be sent twice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from ledgermq.proto import nameserver_pb2 as pb
from ledgermq.proto import nameserver_pb2_grpc
from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_channel import GrpcChannel, Reconnects, was_not_sent
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.header_blocks import Fields, encode_block
from ledgermq.rpc.http2_connection import SPEAKS_HTTP_1
from ledgermq.rpc.wire_limits import WireLimits
from tests.ports import free_port

from .peers import EOF, PAIRS, Stub, channel_to, error_of, pair, run, serving, until
from .raw_peer import ECHO, SLEEP, UNREAD, RawPeer, message, raw_peer, request

Code = grpc.StatusCode


class _NameServer(nameserver_pb2_grpc.NameServerServiceServicer):
    async def GetRoute(self, request: pb.GetRouteRequest, context: Any) -> pb.GetRouteResponse:
        return pb.GetRouteResponse(cluster=request.cluster + "!")

    async def WatchRoutes(self, request: pb.WatchRoutesRequest, context: Any) -> Any:
        for _ in range(2):
            yield pb.WatchRoutesResponse()


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_generated_servicers_and_stubs_work(kinds: tuple[str, str]) -> None:
    async def test() -> None:
        server: Any = GrpcServer() if kinds[0] == "wire" else grpc.aio.server()
        nameserver_pb2_grpc.add_NameServerServiceServicer_to_server(_NameServer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with channel_to(kinds[1], f"127.0.0.1:{port}") as channel:
            stub: Any = nameserver_pb2_grpc.NameServerServiceStub(channel)
            assert (await stub.GetRoute(pb.GetRouteRequest(cluster="c"))).cluster == "c!"
            assert len([answer async for answer in stub.WatchRoutes(pb.WatchRoutesRequest())]) == 2
            error = await error_of(stub.ListGroups(pb.ListGroupsRequest()))
            assert error.code() is Code.UNIMPLEMENTED
        await server.stop(0)

    run(test)


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plaintext"])
@pytest.mark.parametrize("takes_plaintext", [True, False])
def test_a_channel_with_tls_speaks_plaintext_only_if_it_may(tls: bool, takes_plaintext: bool) -> None:
    async def test() -> None:
        async with (
            serving("wire", tls=tls) as (_, address, _),
            channel_to("wire", address, tls=True, takes_plaintext=takes_plaintext) as channel,
        ):
            call = Stub(channel).echo(b"x")
            if tls or takes_plaintext:
                assert await call == b"x"
            else:
                assert (await error_of(call)).code() is Code.UNAVAILABLE

    run(test)


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_a_server_that_stops_lets_calls_end(kinds: tuple[str, str]) -> None:
    async def test() -> None:
        async with (
            serving(kinds[0]) as (server, address, service),
            channel_to(kinds[1], address) as channel,
        ):
            stub: Any = Stub(channel)
            call = asyncio.ensure_future(_awaited(stub.sleep(b"")))
            await until(lambda: service.started == 1)
            stopping = asyncio.ensure_future(server.stop(60))
            await asyncio.sleep(0.1)
            assert not stopping.done()
            assert (await error_of(stub.echo(b"", timeout=60))).code() is Code.UNAVAILABLE
            service.go_on.set()
            assert await call == b"woken"
            await stopping

    run(test)


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_calls_that_outlast_the_grace_are_ended(kinds: tuple[str, str]) -> None:
    async def test() -> None:
        async with (
            serving(kinds[0]) as (server, address, service),
            channel_to(kinds[1], address) as channel,
        ):
            stub: Any = Stub(channel)
            call = asyncio.ensure_future(_awaited(stub.sleep(b"")))
            await until(lambda: service.started == 1)
            await server.stop(0.1)
            assert (await error_of(call)).code() in (Code.UNAVAILABLE, Code.CANCELLED)
            await until(lambda: service.ended == 1)

    run(test)


async def _awaited(call: Any) -> Any:
    return await call


def test_a_drain_names_the_last_stream_after_the_client_has_answered() -> None:
    """Two GOAWAY frames: calls that were on their way when the first came are served."""

    async def test() -> None:
        async with serving("wire") as (server, address, service), raw_peer(address) as peer:
            peer.call(1, SLEEP)
            await until(lambda: service.started == 1)
            stopping = asyncio.ensure_future(server.stop(60))
            first = await peer.until(h2.GOAWAY)
            assert h2.read_goaway(first[3])[0] == (1 << 31) - 1
            ping = await peer.until(h2.PING)
            peer.call(3, ECHO, b"on its way")
            assert (await peer.until(h2.DATA, 3))[3] == message(b"on its way")
            peer.send(h2.PING, h2.ACK, 0, ping[3])
            second = await peer.until(h2.GOAWAY)
            assert h2.read_goaway(second[3])[:2] == (3, h2.NO_ERROR)
            service.go_on.set()
            assert (await peer.until(h2.DATA, 1))[3] == message(b"woken")
            await stopping

    run(test)


@pytest.mark.parametrize("is_whole", [True, False])
def test_calls_that_were_on_their_way_have_the_same_grace(is_whole: bool) -> None:
    async def test() -> None:
        async with serving("wire") as (server, address, service), raw_peer(address) as peer:
            peer.call(1, SLEEP)
            await until(lambda: service.started == 1)
            stopping = asyncio.ensure_future(server.stop(60))
            await peer.until(h2.PING)
            if is_whole:
                peer.call(3, UNREAD)
            else:
                peer.send(h2.HEADERS, h2.END_HEADERS, 3, ECHO)
            peer.send(h2.RST_STREAM, 0, 1, b"\0\0\0\x08")
            await until(lambda: service.ended == 1)
            peer.send(h2.PING, 0, 0, b"answered")
            assert (await peer.until(h2.PING))[3] == b"answered"
            if is_whole:
                service.go_on.set()
            else:
                peer.send(h2.DATA, h2.END_STREAM, 3, message(b"0"))
            assert (await peer.until(h2.DATA, 3))[3] == message(b"0")
            await stopping

    run(test)


def test_a_stop_waits_for_the_handlers_of_calls_that_were_on_their_way() -> None:
    async def test() -> None:
        release, stopped = asyncio.Event(), list[bytes]()
        async with serving("wire") as (server, address, service), raw_peer(address) as peer:

            async def stuck(body: bytes, context: Any) -> bytes:
                service.started += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    if body == b"slow":
                        await release.wait()
                    stopped.append(body)
                return b""

            handler = grpc.unary_unary_rpc_method_handler(stuck)
            server.add_registered_method_handlers("test.Service", {"Stuck": handler})
            peer.call(1, request(b"/test.Service/Stuck"), b"quick")
            await until(lambda: service.started == 1)
            stopping = asyncio.ensure_future(server.stop(1.0))
            await peer.until(h2.PING)
            peer.call(3, request(b"/test.Service/Stuck"), b"slow")
            assert (await peer.goaway())[0] == h2.NO_ERROR
            peer.writer.close()
            await until(lambda: not server.connection_count)
            for _ in range(10):
                await asyncio.sleep(0)
            assert stopped == [b"quick"] and not stopping.done()
            release.set()
            await stopping
            assert stopped == [b"quick", b"slow"]

    run(test)


def test_a_call_behind_the_last_stream_of_a_drain_disturbs_no_other() -> None:
    async def test() -> None:
        async with serving("wire") as (server, address, service), raw_peer(address) as peer:
            peer.call(1, SLEEP)
            await until(lambda: service.started == 1)
            stopping = asyncio.ensure_future(server.stop(60))
            ping = await peer.until(h2.PING)
            peer.send(h2.PING, h2.ACK, 0, ping[3])
            peer.call(3, ECHO, b"too late")
            peer.send(h2.WINDOW_UPDATE, 0, 3, b"\0\0\0\x01")
            peer.send(h2.RST_STREAM, 0, 3, b"\0\0\0\x08")
            peer.send(h2.PING, 0, 0, b"all done")
            assert (await peer.until(h2.PING))[3] == b"all done"
            service.go_on.set()
            assert (await peer.until(h2.DATA))[2:] == (1, message(b"woken"))
            await stopping

    run(test)


def test_a_channel_leaves_a_draining_server_and_comes_back() -> None:
    async def test() -> None:
        port = free_port()
        channel = GrpcChannel(f"127.0.0.1:{port}", reconnects=Reconnects(first_s=0.02, most_s=0.05))
        for _ in range(3):
            server = GrpcServer()
            server.add_generic_rpc_handlers((_echo(),))
            server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            echo = channel.unary_unary("/s/Echo")
            assert await echo(b"x", wait_for_ready=True, timeout=60) == b"x"
            await server.stop(0)
        await channel.close()

    run(test)


def _echo() -> Any:
    async def echo(request: bytes, context: Any) -> bytes:
        return request

    return grpc.method_handlers_generic_handler("s", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})


def test_calls_to_nobody_fail_at_once_and_say_that_nothing_was_sent() -> None:
    async def test() -> None:
        async with GrpcChannel(f"127.0.0.1:{free_port()}") as channel:
            echo: Any = channel.unary_unary("/s/Echo")
            for _ in range(2):
                error = await error_of(echo(b""))
                assert error.code() is Code.UNAVAILABLE
                assert "failed to connect to all addresses" in (error.details() or "")
            assert channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            error = await error_of(echo(b"", wait_for_ready=True, timeout=0.1))
            assert error.code() is Code.DEADLINE_EXCEEDED

    run(test)


def test_calls_give_up_soon_while_an_attempt_to_connect_goes_on() -> None:
    async def test() -> None:
        greets, connections = asyncio.Event(), 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await greets.wait()
            writer.write(h2.settings_frame([]))
            while await reader.read(1000):
                pass
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            reconnects = Reconnects(patience_s=0.05, attempt_s=3600)
            async with GrpcChannel(address, reconnects=reconnects) as channel:
                echo: Any = channel.unary_unary("/s/Echo")
                error = await error_of(echo(b""))
                assert error.code() is Code.UNAVAILABLE
                assert was_not_sent(error)
                next_one = echo(b"")
                assert next_one.done()  # one call has waited for all
                await error_of(next_one)
                greets.set()
                await channel.channel_ready()
                assert connections == 1

    run(test)


@pytest.mark.parametrize("address", ["a..b:80", "ä..b:80", "127.0.0.1:80000", "::::80", "nobody.invalid:80"])
def test_calls_to_an_address_that_cannot_be_fail(address: str) -> None:
    async def test() -> None:
        async with GrpcChannel(address) as channel:
            error = await error_of(channel.unary_unary("/s/Echo")(b""))
            assert error.code() is Code.UNAVAILABLE
            assert was_not_sent(error)

    run(test)


def test_a_call_on_a_closed_channel_was_certainly_not_sent() -> None:
    """One that was under way when the channel closed may have been served."""

    async def test() -> None:
        async with serving("wire") as (_, address, service):
            channel = GrpcChannel(address)
            stub = Stub(channel)
            under_way = asyncio.ensure_future(_awaited(stub.sleep(b"")))
            await until(lambda: service.started == 1)
            await channel.close()
            with pytest.raises(asyncio.CancelledError):
                await under_way
            for call in (stub.echo(b""), channel.stream_stream("/s/Echo")(iter([b""]))):
                assert await call.code() is Code.UNAVAILABLE
                error = await error_of(call if hasattr(call, "__await__") else _awaited(call.read()))
                assert was_not_sent(error)

    run(test)


def test_a_name_with_several_addresses_finds_the_one_that_listens() -> None:
    async def test() -> None:
        async with serving("wire") as (_, address, _service):
            port = address.rpartition(":")[2]
            async with GrpcChannel(f"localhost:{port}") as channel:
                assert await Stub(channel).echo(b"x", timeout=30) == b"x"

    run(test)


def test_a_server_of_http_1_is_told_from_one_that_is_not_there() -> None:
    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
            await reader.read()
            writer.close()

        async with (
            await asyncio.start_server(serve, "127.0.0.1", 0) as server,
            GrpcChannel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel,
        ):
            error = await error_of(channel.unary_unary("/s/Echo")(b""))
            assert error.code() is Code.UNAVAILABLE
            assert SPEAKS_HTTP_1 in (error.details() or "")

    run(test)


def test_a_call_beyond_the_servers_limit_waits_in_the_channel() -> None:
    async def test() -> None:
        async with pair(("wire", "wire"), WireLimits(max_streams=2)) as (stub, service):
            await stub.echo(b"")
            sleeping = [asyncio.ensure_future(_awaited(stub.sleep(b""))) for _ in range(2)]
            await until(lambda: service.started == 2)
            call = stub.echo(b"late")
            await asyncio.sleep(0.05)
            assert not call.done()
            service.go_on.set()
            assert await call == b"late"
            await asyncio.gather(*sleeping)

    run(test)


@pytest.mark.parametrize("by_goaway", [False, True])
def test_a_call_that_was_refused_unprocessed_is_sent_again_once(by_goaway: bool) -> None:
    """A server that refuses the first stream of every connection, or leaves before it."""

    async def test() -> None:
        requests = open_connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal requests, open_connections
            open_connections += 1
            peer = RawPeer(reader, writer)
            await reader.readexactly(len(h2.PREFACE))
            writer.write(h2.settings_frame([]))
            head = await peer.until(h2.HEADERS)
            requests += 1
            if requests == 1 and by_goaway:
                writer.write(h2.goaway_frame(0, h2.NO_ERROR))
            elif requests == 1:
                peer.send(h2.RST_STREAM, 0, head[2], b"\0\0\0\x07")
                head = await peer.until(h2.HEADERS)
                requests += 1
            if requests == 2:
                answer: Fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
                peer.send(h2.HEADERS, h2.END_HEADERS, head[2], encode_block(answer))
                peer.send(h2.DATA, 0, head[2], message(b"second"))
                status = encode_block(((b"grpc-status", b"0"),))
                peer.send(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, head[2], status)
            await peer.read_frame()
            while await peer.read_frame() is not None:
                pass
            writer.close()
            await writer.wait_closed()
            open_connections -= 1

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with GrpcChannel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
            echo: Any = channel.unary_unary("/s/Echo")
            assert await echo(b"x", timeout=60) == b"second"
        server.close()
        await until(lambda: not open_connections)
        assert requests == 2

    run(test)


def test_a_broken_connection_ends_its_calls_as_unavailable() -> None:
    async def test() -> None:
        async with pair(("wire", "wire")) as (stub, _service):
            call = stub.mirror()
            await call.write(b"x")
            assert await call.read() == b"x"
            call._connection.abort("pulled")
            error = await error_of(call.read())
            assert (error.code(), error.details()) == (Code.UNAVAILABLE, "pulled")
            with pytest.raises(asyncio.InvalidStateError):
                await call.write(b"y")
            assert await stub.echo(b"again") == b"again"

    run(test)


def test_writing_after_done_writing_is_an_error_of_the_caller() -> None:
    async def test() -> None:
        async with pair(("wire", "wire")) as (stub, _service):
            call = stub.mirror()
            await call.done_writing()
            with pytest.raises(asyncio.InvalidStateError):
                await call.write(b"x")
            assert await call.read() is EOF

    run(test)


def test_a_channel_over_a_unix_socket(tmp_path: Any) -> None:
    async def test() -> None:
        server = GrpcServer()
        server.add_generic_rpc_handlers((_echo(),))
        assert server.add_insecure_port(f"unix:{tmp_path}/s") == 0
        await server.start()
        channels: list[Any] = [
            GrpcChannel(f"unix:{tmp_path}/s"),
            grpc.aio.insecure_channel(f"unix:{tmp_path}/s"),
        ]
        for channel in channels:
            async with channel:
                echo = channel.unary_unary("/s/Echo")
                assert await echo(b"x") == b"x"
        await server.stop(0)

    run(test)


def test_a_port_in_use_is_refused_as_by_grpcio() -> None:
    async def test() -> None:
        async with serving("wire") as (_, address, _service):
            with pytest.raises(RuntimeError, match="Failed to bind"):
                GrpcServer().add_insecure_port(address)

    run(test)


def test_a_large_message_can_be_lent_without_a_copy() -> None:
    async def test() -> None:
        kinds: list[type] = []

        async def note(request: Any, context: Any) -> bytes:
            kinds.append(type(request))
            return bytes(request[:3])

        server = GrpcServer(lends_memory=True)
        handler = grpc.unary_unary_rpc_method_handler(note)
        server.add_registered_method_handlers("s", {"Note": handler})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with GrpcChannel(f"127.0.0.1:{port}") as channel:
            note_call: Any = channel.unary_unary("/s/Note")
            assert await note_call(b"abc") == b"abc"
            assert await note_call(b"abc" * 500_000) == b"abc"
        assert kinds == [bytes, memoryview]
        await server.stop(0)

    run(test)


@pytest.mark.parametrize("kind", ["wire", "grpcio"])
def test_a_server_may_refuse_compressed_requests_before_it_unpacks_them(kind: str) -> None:
    async def test() -> None:
        async with (
            serving("wire", takes_compressed=False) as (_, address, _),
            channel_to(kind, address) as channel,
        ):
            stub: Any = Stub(channel)
            packed = stub.echo(bytes(1 << 16), compression=grpc.Compression.Gzip, timeout=60)
            error = await error_of(packed)
            assert error.code() is Code.UNIMPLEMENTED
            assert error.details() == "Compression algorithm 'gzip' is disabled."
            assert await stub.echo(b"x", timeout=60) == b"x"

    run(test)


def test_a_listener_elsewhere_learns_the_end_and_a_stopping_server_takes_no_connection() -> None:
    async def test() -> None:
        lost: list[int] = []
        server = GrpcServer()
        listener = await asyncio.get_running_loop().create_server(
            lambda: server.serve_connection(lambda: lost.append(1)), "127.0.0.1", 0
        )
        address = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", address)
        await until(lambda: server.connection_count == 1)
        writer.close()
        await until(lambda: lost == [1])
        await server.stop(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", address)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        await until(lambda: lost == [1, 1])
        writer.close()
        listener.close()

    run(test)

"""Peers that flood, stall or speak something else: refused, bounded, and nobody else notices."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hpack
import pytest

from ledgermq.rpc import flood_guard
from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.wire_limits import IDLE_FRAMES, WireLimits
from tests.tls import CERTIFICATE

from .floods import FLOODS, Flood, Methods
from .peers import LIMITS, Service, Stub, channel_to, run, serving, until
from .raw_peer import ECHO, ENDLESS, MIRROR, SLEEP, UNREAD, FrameWriter, RawPeer, message, raw_peer, request


@asynccontextmanager
async def beside(limits: WireLimits = LIMITS) -> AsyncIterator[tuple[RawPeer, Stub, Service, Any]]:
    """Yield (raw peer, stub of a good client, service, server); the good client works before and after."""
    async with serving("wire", limits) as (server, address, service), channel_to("wire", address) as channel:
        stub: Any = Stub(channel)
        assert await stub.echo(b"before") == b"before"
        async with raw_peer(address) as peer:
            yield peer, stub, service, server
        assert await stub.echo(b"after") == b"after"


METHODS = Methods(SLEEP, MIRROR)


def streams_beyond_the_limit(peer: FrameWriter, methods: Methods) -> None:
    for stream_id in range(1, 2 * (LIMITS.max_streams + IDLE_FRAMES + 1000), 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, methods.unary)


@pytest.mark.parametrize("flood", (*FLOODS, streams_beyond_the_limit), ids=lambda flood: flood.__name__)
def test_a_flood_ends_its_connection_and_no_other(flood: Flood) -> None:
    async def test() -> None:
        async with beside() as (peer, _stub, _service, server):
            flood(peer, METHODS)
            code, reason = await peer.goaway()
            assert code == h2.ENHANCE_YOUR_CALM, reason
            await until(lambda: server.connection_count == 1)

    run(test)


def test_a_peer_may_measure_its_bandwidth_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As grpc-go does: WINDOW_UPDATE and PING for each answer, thousands a second."""
    monkeypatch.setattr(flood_guard, "IDLE_FRAMES", 8)
    monkeypatch.setattr(flood_guard, "IDLE_FRAMES_PER_S", 0)

    async def test() -> None:
        async with beside() as (peer, _stub, _service, _server):
            for stream_id in range(1, 41, 2):
                peer.call(stream_id, body=b"x")
                await peer.until(h2.DATA, stream_id)
                peer.send(h2.WINDOW_UPDATE, 0, 0, b"\0\0\0\x06")
                peer.send(h2.PING, 0, 0, b"\2\4\x10\x10\x09\x0e\7\7")
                assert (await peer.until(h2.PING))[1] & h2.ACK

    run(test)


def test_a_peer_may_reset_a_stream_once_for_each_frame_that_was_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As grpc-java does, when it has cancelled a call whose answers still come."""
    monkeypatch.setattr(flood_guard, "RESETS", 2)
    monkeypatch.setattr(flood_guard, "RESETS_PER_S", 0)

    async def test() -> None:
        async with beside() as (peer, _stub, service, _server):
            peer.call(1, ENDLESS, b"x")
            for _ in range(20):
                await peer.until(h2.DATA, 1)
            peer.send(h2.RST_STREAM, 0, 1, b"\0\0\0\x08")
            await until(lambda: service.ended == 1)
            for _ in range(20):
                peer.send(h2.RST_STREAM, 0, 1, b"\0\0\0\x05")
            peer.send(h2.WINDOW_UPDATE, 0, 0, b"\0\1\0\0")  # the cancelled call has used up the window
            peer.call(3, body=b"y")
            assert (await peer.until(h2.DATA, 3))[3] == message(b"y")

    run(test)


def broken(*frames: tuple[int, int, int, bytes]) -> Callable[[RawPeer], None]:
    def send(peer: RawPeer) -> None:
        for frame in frames:
            peer.send(*frame)

    return send


@pytest.mark.parametrize(
    ("send", "code"),
    [
        (broken((h2.HEADERS, h2.PADDED | h2.END_HEADERS, 1, b"")), h2.FRAME_SIZE_ERROR),
        (broken((h2.HEADERS, h2.END_HEADERS, 2, ECHO)), h2.PROTOCOL_ERROR),
        (broken((h2.HEADERS, h2.END_HEADERS, 1, b"\x80")), h2.COMPRESSION_ERROR),
        (broken((h2.DATA, 0, 1, b"x")), h2.PROTOCOL_ERROR),
        (broken((h2.PUSH_PROMISE, 0, 1, b"\0\0\0\x02")), h2.PROTOCOL_ERROR),
        (
            broken((h2.HEADERS, h2.END_HEADERS, 1, MIRROR), (h2.DATA, h2.PADDED, 1, b"\x09x")),
            h2.PROTOCOL_ERROR,
        ),
        (broken((h2.HEADERS, 0, 1, ECHO), (h2.PING, 0, 0, b"12345678")), h2.PROTOCOL_ERROR),
        (broken((0x42, 0, 0, bytes(20_000))), h2.FRAME_SIZE_ERROR),
        (broken((h2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")), h2.FLOW_CONTROL_ERROR),
    ],
)
def test_a_broken_frame_ends_the_connection_with_its_code(send: Callable[[RawPeer], None], code: int) -> None:
    async def test() -> None:
        async with beside() as (peer, _stub, _service, _server):
            send(peer)
            assert (await peer.goaway())[0] == code

    run(test)


def test_more_data_than_the_window_ends_the_stream_or_the_connection() -> None:
    async def test() -> None:
        limits = WireLimits(stream_window=70_000, connection_memory=200_000, max_message=50_000)
        async with beside(limits) as (peer, _stub, _service, _server):
            peer.send(h2.HEADERS, h2.END_HEADERS, 1, UNREAD)
            for _ in range(5):
                peer.send(h2.DATA, 0, 1, message(bytes(16_000)))
            assert (await peer.until(h2.RST_STREAM))[3] == struct.pack(">I", h2.FLOW_CONTROL_ERROR)
            for stream_id in range(3, 21, 2):
                peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, UNREAD)
                for _ in range(4):
                    peer.send(h2.DATA, 0, stream_id, message(bytes(16_000)))
            assert (await peer.goaway())[0] == h2.FLOW_CONTROL_ERROR

    run(test)


def test_metadata_beyond_the_limit_is_refused_for_its_call_alone() -> None:
    async def test() -> None:
        async with beside() as (peer, _stub, _service, _server):
            encoder = hpack.Encoder()
            bomb = encoder.encode([(b"x-bomb", b"v" * 3000)] * 1000)
            peer.send(h2.HEADERS, h2.END_HEADERS, 1, bomb)
            answer = await peer.until(h2.HEADERS, 1)
            assert b"too%20much%20metadata" in answer[3] or b"too much metadata" in answer[3]
            peer.call(3, body=b"x")
            assert (await peer.until(h2.DATA, 3))[3] == message(b"x")

    run(test)


def test_a_handler_of_a_reset_call_keeps_its_place_until_it_ends() -> None:
    """Else a peer that begins and resets calls would have any number of handlers running."""

    async def test() -> None:
        stubborn = asyncio.Event()

        async with serving("wire", WireLimits(max_streams=5)) as (_server, address, service):
            original = service.sleep

            async def sleep(request: bytes, context: Any) -> bytes:
                try:
                    return await original(request, context)
                except asyncio.CancelledError:
                    await stubborn.wait()
                    raise

            service.sleep = sleep  # type: ignore[method-assign]
            _server.add_generic_rpc_handlers((service.handlers(),))
            _server._generic.reverse()
            async with raw_peer(address) as peer:
                for stream_id in range(1, 11, 2):
                    peer.call(stream_id, SLEEP)
                await until(lambda: service.started == 5)
                for stream_id in range(1, 11, 2):
                    peer.send(h2.RST_STREAM, 0, stream_id, b"\0\0\0\x08")
                await until(lambda: service.ended == 5)
                peer.call(11, SLEEP)
                assert b"too many cancelled calls" in (await peer.until(h2.HEADERS, 11))[3]
                stubborn.set()
                await asyncio.sleep(0.05)
                peer.call(13, ECHO, b"x")
                assert (await peer.until(h2.DATA, 13))[3] == message(b"x")

    run(test)


def test_many_incomplete_large_messages_are_bounded() -> None:
    """Each claims 4 MiB and sends a part: memory is bounded, and one of them can be completed."""

    async def test() -> None:
        limits = WireLimits(connection_memory=12 << 20)
        async with beside(limits) as (peer, _stub, _service, server):
            connection = next(each for each in server._connections if each.peer.endswith(
                str(peer.writer.get_extra_info("sockname")[1])))  # fmt: skip
            reader = asyncio.ensure_future(peer.until(h2.RST_STREAM))
            sent = 0
            for stream_id in range(1, 2 * 64, 2):
                peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, MIRROR)
                data = PREFIX.pack(0, 4 << 20) + bytes(200_000)
                for start in range(0, len(data), 16_000):
                    if sent + 16_000 > limits.connection_memory:
                        break
                    part = data[start : start + 16_000]
                    peer.send(h2.DATA, 0, stream_id, part)
                    sent += len(part)
                await peer.writer.drain()
            await asyncio.sleep(0.2)
            held = sum(stream.cutter.filled for stream in connection.streams.values())
            assert held <= limits.connection_memory
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    run(test)


def test_a_client_that_reads_nothing_stops_the_handler() -> None:
    async def test() -> None:
        async with beside() as (peer, _stub, service, server):
            peer.send(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
            peer.call(1, ENDLESS, bytes(60_000))
            await until(lambda: service.started == 1)
            await asyncio.sleep(0.2)
            streams = [stream for each in server._connections for stream in each.streams.values()]
            assert sum(stream.pending_size for stream in streams) < 200_000
            peer.send(h2.RST_STREAM, 0, 1, b"\0\0\0\x08")
            await until(lambda: service.ended == 1)

    run(test)


def test_answers_to_a_client_that_never_reads_are_bounded() -> None:
    """Its windows are open, so only the socket holds the answers back."""

    async def test() -> None:
        async with serving("wire") as (server, address, service):
            async with raw_peer(address) as peer:
                peer.send(h2.SETTINGS, 0, 0, struct.pack(">HI", h2.INITIAL_WINDOW_SIZE, (1 << 31) - 1))
                peer.send(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
                for stream_id in range(1, 41, 2):
                    peer.call(stream_id, ENDLESS, bytes(60_000))
                await until(lambda: service.started == 20)
                await asyncio.sleep(0.3)
                (connection,) = server._connections
                assert connection.transport.get_write_buffer_size() < 4 << 20
                assert sum(stream.pending_size for stream in connection.streams.values()) < 4 << 20
            await until(lambda: service.ended == 20)

    run(test)


def test_http_1_is_told_what_this_port_speaks() -> None:
    async def test() -> None:
        async with serving("wire") as (_, address, _service), raw_peer(address, greets=False) as peer:
            peer.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await peer.reader.read()
            assert answer.startswith(b"HTTP/1.1 505") and b"speaks gRPC over HTTP/2" in answer

    run(test)


def test_tls_on_a_port_without_it_and_the_reverse_are_closed() -> None:
    async def test() -> None:
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        async with serving("wire") as (_, address, _service):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(
                    "127.0.0.1", int(address.rpartition(":")[2]), ssl=context, server_hostname="localhost"
                )
        async with (
            serving("wire", tls=True) as (_, address, _service),
            raw_peer(address, greets=False) as peer,
        ):
            peer.writer.write(h2.PREFACE)
            assert await peer.read_frame() is None

    run(test)


def test_tls_without_http_2_is_closed() -> None:
    async def test() -> None:
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        context.set_alpn_protocols(["http/1.1"])
        async with serving("wire", tls=True) as (_, address, _service):
            port = int(address.rpartition(":")[2])
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="localhost"
                )
                assert b"switch ALPN h2 on" in await reader.read()
                writer.close()
            except (ssl.SSLError, ConnectionError):
                pass

    run(test)


@pytest.mark.parametrize("begun", [b"", h2.PREFACE[:10], h2.PREFACE])
def test_a_peer_that_does_not_greet_is_closed(begun: bytes) -> None:
    async def test() -> None:
        async with serving("wire", WireLimits(handshake_s=0.1)) as (server, address, _service):
            async with raw_peer(address, greets=False) as peer:
                peer.writer.write(begun)
                while await peer.read_frame() is not None:
                    pass
            await until(lambda: server.connection_count == 0)

    run(test)


def test_a_silent_peer_is_asked_and_then_closed() -> None:
    async def test() -> None:
        async with (
            serving("wire", WireLimits(keepalive_s=0.1, keepalive_timeout_s=2)) as (_, address, _s),
            raw_peer(address) as peer,
        ):
            for _ in range(3):
                ping = await peer.until(h2.PING)
                peer.send(h2.PING, h2.ACK, 0, ping[3])
            await peer.until(h2.PING)
            assert await peer.read_frame() is None

    run(test)


@pytest.mark.parametrize("keepalive_s", [0.05, 3600.0, 0.0])
def test_an_idle_connection_is_closed_whatever_its_keepalive(keepalive_s: float) -> None:
    async def test() -> None:
        async with (
            serving("wire", WireLimits(max_idle_s=1, keepalive_s=keepalive_s)) as (_, address, _service),
            raw_peer(address) as peer,
        ):

            async def answer() -> tuple[int, str]:
                while True:
                    frame = await peer.read_frame()
                    assert frame is not None
                    if frame[0] == h2.GOAWAY:
                        return h2.read_goaway(frame[3])[1:]
                    if frame[0] == h2.PING:
                        peer.send(h2.PING, h2.ACK, 0, frame[3])

            assert await answer() == (h2.NO_ERROR, "idle")

    run(test)


def test_a_call_that_is_cancelled_before_it_begins_leaves_nothing() -> None:
    """All of it is read in one turn, so that the handler's task never takes its first step."""

    async def test() -> None:
        async with serving("wire") as (server, address, service), raw_peer(address) as peer:
            for stream_id in range(1, 41, 2):
                peer.call(stream_id, body=b"x")
                peer.send(h2.RST_STREAM, 0, stream_id, b"\0\0\0\x08")
            peer.send(h2.PING, 0, 0, bytes(8))
            await peer.until(h2.PING)
            await until(lambda: not server._calls)
            assert service.started == 0

    run(test)


def test_a_connection_whose_calls_were_refused_leaves_nothing() -> None:
    async def test() -> None:
        async with serving("wire") as (server, address, _service), raw_peer(address) as peer:
            peer.call(1, request(b"/no.Such/Method"))
            await peer.until(h2.HEADERS, 1)
            assert not server._calls

    run(test)


def test_a_stopped_server_has_no_connection_left() -> None:
    """Else the loop could be closed below a TLS connection that still says goodbye."""

    async def test() -> None:
        async with serving("wire") as (server, address, _service), raw_peer(address):
            await until(lambda: server.connection_count == 1)
            await server.stop(None)
            assert server.connection_count == 0

    run(test)


def test_connections_beyond_the_limit_are_closed() -> None:
    async def test() -> None:
        async with (
            serving("wire", WireLimits(max_connections=2)) as (server, address, _service),
            raw_peer(address),
            raw_peer(address),
        ):
            async with raw_peer(address, greets=False) as third:
                assert await third.read_frame() is None
            assert server.connection_count == 2

    run(test)


def test_idle_connections_cost_little() -> None:
    """Received bytes have no memory of their own on a connection that sends nothing."""

    async def test() -> None:
        import tracemalloc

        async with serving("wire") as (server, address, _service):
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            raws = [await asyncio.open_connection(*address.split(":")) for _ in range(200)]
            for _, writer in raws:
                writer.write(h2.PREFACE + h2.settings_frame([]))
            await until(lambda: server.connection_count == 200)
            await asyncio.sleep(0.2)
            used = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert used < 200 * 32 << 10  # with the clients' own buffers
            for _, writer in raws:
                writer.close()
            await until(lambda: server.connection_count == 0)

    run(test)

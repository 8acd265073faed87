"""Compare ways to speak gRPC in Python: CPU of an echo server per unary call and per message on a stream.

    .venv/bin/pip install h2 cffi
    python -m bench.wire_bench [--kinds rpc,h2,nghttp2,grpcio] [--seconds 3] [--runs 3]

* `rpc`: this project's package, own framing and `hpack`;
* `h2`: the library h2, with the message framing of gRPC on it;
* `nghttp2`: the C library libnghttp2 through cffi, likewise;
* `grpcio`: grpc.aio.

Every server runs in a process of its own on uvloop and echoes messages. Unary calls come from 64 unmodified
grpc.aio callers; messages on a stream from one client of `rpc`, the same for all servers. The servers of `h2`
and `nghttp2` are prototypes: no deadlines, no cancellation, no limits. The kinds take turns in every run;
medians are printed, and with `--json` every value.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel
from ledgermq.rpc.grpc_server import GrpcServer

from .peers.measure import cpu_seconds

_PREFIX: Final = struct.Struct(">BI")
_CALLERS: Final = 64
_BODY: Final = bytes(1024)
_MIB: Final = bytes(1 << 20)
_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_TRAILERS: Final = ((b"grpc-status", b"0"),)
_WINDOW: Final = (1 << 24) - 1
_FRAME: Final = 256 << 10


# --- servers ------------------------------------------------------------------------------------------------
def _handlers() -> Any:
    async def one(request: bytes, context: Any) -> bytes:
        return request

    async def many(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    unary, stream = grpc.unary_unary_rpc_method_handler(one), grpc.stream_stream_rpc_method_handler(many)
    return grpc.method_handlers_generic_handler("bench.Echo", {"Unary": unary, "Stream": stream})


class _Echo(asyncio.Protocol):
    """Echoes whole messages of gRPC; a subclass speaks HTTP/2."""

    def __init__(self) -> None:
        self.parts: dict[int, bytearray] = {}
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def messages(self, stream_id: int, data: bytes) -> bytes:
        """Return the whole messages that `data` completes, as they came."""
        part = self.parts.get(stream_id)
        if part:
            part += data
        else:
            part = self.parts[stream_id] = bytearray(data)
        end = 0
        while len(part) - end >= _PREFIX.size:
            size = _PREFIX.unpack_from(part, end)[1]
            if len(part) - end < _PREFIX.size + size:
                break
            end += _PREFIX.size + size
        found = bytes(part[:end])
        del part[:end]
        return found


class _H2Echo(_Echo):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        import h2.config
        import h2.connection
        import h2.settings

        super().connection_made(transport)
        config = h2.config.H2Configuration(client_side=False, header_encoding=False)
        self.h2 = h2.connection.H2Connection(config)
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=False, initial_values={codes.INITIAL_WINDOW_SIZE: _WINDOW, codes.MAX_FRAME_SIZE: _FRAME}
        )
        self.h2.max_inbound_frame_size = _FRAME
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_WINDOW)
        self.waiting: dict[int, bytearray] = {}
        self.ending: set[int] = set()
        self.transport.write(self.h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        import h2.events as events

        received = self.h2.receive_data(data)
        if any(isinstance(event, events.ConnectionTerminated) for event in received):
            self.transport.abort()
            return
        for event in received:
            if isinstance(event, events.RequestReceived):
                self.h2.send_headers(event.stream_id, _HEAD)
                self.waiting[event.stream_id] = bytearray()
            elif isinstance(event, events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.waiting[event.stream_id] += self.messages(event.stream_id, event.data)
                self.send(event.stream_id)
            elif isinstance(event, events.StreamEnded):
                self.ending.add(event.stream_id)
                self.send(event.stream_id)
            elif isinstance(event, events.WindowUpdated):
                for stream_id in [event.stream_id] if event.stream_id else list(self.waiting):
                    self.send(stream_id)
            elif isinstance(event, events.StreamReset):
                self.waiting.pop(event.stream_id, None)
        self.transport.write(self.h2.data_to_send())

    def send(self, stream_id: int) -> None:
        waiting = self.waiting.get(stream_id)
        if waiting is None:
            return
        while waiting and (window := self.h2.local_flow_control_window(stream_id)):
            size = min(window, self.h2.max_outbound_frame_size, len(waiting))
            self.h2.send_data(stream_id, bytes(waiting[:size]))
            del waiting[:size]
        if not waiting and stream_id in self.ending:
            self.ending.remove(stream_id)
            del self.waiting[stream_id], self.parts[stream_id]
            self.h2.send_headers(stream_id, _TRAILERS, end_stream=True)


_NGHTTP2: Final = """
typedef struct nghttp2_session nghttp2_session;
typedef struct nghttp2_session_callbacks nghttp2_session_callbacks;
typedef struct { size_t length; int32_t stream_id; uint8_t type; uint8_t flags; uint8_t reserved; } hd;
typedef struct { int32_t settings_id; uint32_t value; } entry;
typedef struct { uint8_t *name; uint8_t *value; size_t namelen; size_t valuelen; uint8_t flags; } nv;
typedef union { int fd; void *ptr; } source;
typedef struct { source source; ssize_t (*read)(nghttp2_session *, int32_t, uint8_t *, size_t, uint32_t *,
    source *, void *); } provider;
int nghttp2_session_callbacks_new(nghttp2_session_callbacks **);
void nghttp2_session_callbacks_set_on_frame_recv_callback(nghttp2_session_callbacks *,
    int (*)(nghttp2_session *, hd *, void *));
void nghttp2_session_callbacks_set_on_data_chunk_recv_callback(nghttp2_session_callbacks *,
    int (*)(nghttp2_session *, uint8_t, int32_t, uint8_t *, size_t, void *));
void nghttp2_session_callbacks_set_on_stream_close_callback(nghttp2_session_callbacks *,
    int (*)(nghttp2_session *, int32_t, uint32_t, void *));
int nghttp2_session_server_new(nghttp2_session **, nghttp2_session_callbacks *, void *);
ssize_t nghttp2_session_mem_recv(nghttp2_session *, uint8_t *, size_t);
ssize_t nghttp2_session_mem_send(nghttp2_session *, uint8_t **);
int nghttp2_submit_settings(nghttp2_session *, uint8_t, entry *, size_t);
int nghttp2_session_set_local_window_size(nghttp2_session *, uint8_t, int32_t, int32_t);
int nghttp2_submit_response(nghttp2_session *, int32_t, nv *, size_t, provider *);
int nghttp2_submit_trailer(nghttp2_session *, int32_t, nv *, size_t);
int nghttp2_session_resume_data(nghttp2_session *, int32_t);
"""
_EOF_WITHOUT_END: Final = 0x1 | 0x2
_DEFERRED: Final = -508


def _nghttp2() -> Callable[[], asyncio.Protocol]:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(_NGHTTP2)
    lib: Any = ffi.dlopen("libnghttp2.so.14")
    kept: list[Any] = []

    def pairs(fields: tuple[tuple[bytes, bytes], ...]) -> Any:
        found = ffi.new("nv[]", len(fields))
        for each, (name, value) in zip(found, fields, strict=True):
            kept.extend((ffi.from_buffer(name), ffi.from_buffer(value)))
            each.name = ffi.cast("uint8_t *", kept[-2])
            each.value = ffi.cast("uint8_t *", kept[-1])
            each.namelen, each.valuelen, each.flags = len(name), len(value), 0
        return found

    head, trailers = pairs(_HEAD), pairs(_TRAILERS)

    @ffi.callback("int(nghttp2_session *, hd *, void *)")  # type: ignore[untyped-decorator]
    def on_frame(_session: Any, frame: Any, user: Any) -> int:
        connection = ffi.from_handle(user)
        stream_id = frame.stream_id
        if frame.type == 1:
            connection.waiting[stream_id] = bytearray()
            lib.nghttp2_submit_response(connection.session, stream_id, head, len(_HEAD), source)
        if frame.type < 2 and frame.flags & 1:
            connection.ending.add(stream_id)
            lib.nghttp2_session_resume_data(connection.session, stream_id)
        return 0

    @ffi.callback("int(nghttp2_session *, uint8_t, int32_t, uint8_t *, size_t, void *)")  # type: ignore[untyped-decorator]
    def on_data(_session: Any, _flags: int, stream_id: int, data: Any, size: int, user: Any) -> int:
        connection = ffi.from_handle(user)
        found = connection.messages(stream_id, ffi.buffer(data, size)[:])
        if found:
            connection.waiting[stream_id] += found
            lib.nghttp2_session_resume_data(connection.session, stream_id)
        return 0

    @ffi.callback("int(nghttp2_session *, int32_t, uint32_t, void *)")  # type: ignore[untyped-decorator]
    def on_close(_session: Any, stream_id: int, _code: int, user: Any) -> int:
        connection = ffi.from_handle(user)
        connection.parts.pop(stream_id, None)
        connection.waiting.pop(stream_id, None)
        connection.ending.discard(stream_id)
        return 0

    @ffi.callback(  # type: ignore[untyped-decorator]
        "ssize_t(nghttp2_session *, int32_t, uint8_t *, size_t, uint32_t *, source *, void *)"
    )
    def read(
        _session: Any, stream_id: int, target: Any, size: int, flags: Any, _source: Any, user: Any
    ) -> int:
        connection = ffi.from_handle(user)
        waiting = connection.waiting[stream_id]
        count = min(size, len(waiting))
        if count:
            ffi.memmove(target, waiting[:count], count)
            del waiting[:count]
        if not waiting and stream_id in connection.ending:
            flags[0] = _EOF_WITHOUT_END
            lib.nghttp2_submit_trailer(connection.session, stream_id, trailers, len(_TRAILERS))
            return count
        return count or _DEFERRED

    source = ffi.new("provider *")
    source.read = read
    callbacks = ffi.new("nghttp2_session_callbacks **")
    lib.nghttp2_session_callbacks_new(callbacks)
    lib.nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks[0], on_frame)
    lib.nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks[0], on_data)
    lib.nghttp2_session_callbacks_set_on_stream_close_callback(callbacks[0], on_close)

    class Nghttp2Echo(_Echo):
        alive = (kept, on_frame, on_data, on_close, read)  # C code keeps no references

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.waiting: dict[int, bytearray] = {}
            self.ending: set[int] = set()
            self.handle = ffi.new_handle(self)
            session = ffi.new("nghttp2_session **")
            lib.nghttp2_session_server_new(session, callbacks[0], self.handle)
            self.session = session[0]
            settings = ffi.new("entry[]", [(0x4, _WINDOW), (0x5, _FRAME)])
            lib.nghttp2_submit_settings(self.session, 0, settings, 2)
            lib.nghttp2_session_set_local_window_size(self.session, 0, 0, _WINDOW)
            self.flush()

        def data_received(self, data: bytes) -> None:
            lib.nghttp2_session_mem_recv(self.session, ffi.from_buffer("uint8_t[]", data), len(data))
            self.flush()

        def flush(self) -> None:
            out, chunk = [], ffi.new("uint8_t **")
            while (size := lib.nghttp2_session_mem_send(self.session, chunk)) > 0:
                out.append(ffi.buffer(chunk[0], size)[:])
            self.transport.write(b"".join(out))

    return Nghttp2Echo


async def serve(kind: str) -> None:
    """Serve, print the port, and end with the input."""
    if kind in ("rpc", "grpcio"):
        server: Any = GrpcServer(lends_memory=True) if kind == "rpc" else grpc.aio.server()
        server.add_generic_rpc_handlers((_handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
    else:
        protocol = _nghttp2() if kind == "nghttp2" else _H2Echo
        listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


# --- measurements -------------------------------------------------------------------------------------------
async def unary(address: str, seconds: float) -> int:
    """Call with 64 grpc.aio callers. Returns the number of calls."""
    async with grpc.aio.insecure_channel(address) as opened:
        channel: Any = opened
        call = channel.unary_unary("/bench.Echo/Unary")
        end, done = time.perf_counter() + seconds, 0

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() < end:
                assert len(await call(_BODY, metadata=(("x-mq-client-id", "echo"),))) == len(_BODY)
                done += 1

        await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    return done


async def stream(address: str, seconds: float, body: bytes, in_flight: int) -> int:
    """Send messages on one stream. Returns how many came back."""
    async with GrpcChannel(address, limits=CLIENT_LIMITS) as channel:
        call = channel.stream_stream("/bench.Echo/Stream")()
        end, done = time.perf_counter() + seconds, 0
        for _ in range(in_flight):
            await call.write(body)
        while time.perf_counter() < end:
            assert len(await call.read()) == len(body)
            done += 1
            await call.write(body)
        call.cancel()
    return done


_MEASURES: Final[dict[str, Callable[[str, float], Any]]] = {
    "unary, 64 callers": unary,
    "stream, 1 in flight": lambda address, seconds: stream(address, seconds, _BODY, 1),
    "stream, 64 in flight": lambda address, seconds: stream(address, seconds, _BODY, 64),
    "stream, 1 MiB, 2 in flight": lambda address, seconds: stream(address, seconds, _MIB, 2),
}


def measure(kind: str, name: str, seconds: float) -> tuple[float, float]:
    """Return (CPU of the server per message in microseconds, messages per second)."""
    command = [sys.executable, "-m", "bench.wire_bench", "--serve", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            address = f"127.0.0.1:{int(server.stdout.readline())}"
            uvloop.run(_MEASURES[name](address, 0.5))  # warm
            before, began = cpu_seconds(server.pid), time.perf_counter()
            done = uvloop.run(_MEASURES[name](address, seconds))
            took_s = time.perf_counter() - began
            return 1e6 * (cpu_seconds(server.pid) - before) / done, done / took_s
        finally:
            server.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.wire_bench")
    parser.add_argument("--kinds", default="rpc,h2,nghttp2,grpcio")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every value here")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(options.serve))
        return 0
    kinds = options.kinds.split(",")
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for _ in range(options.runs):
        for name in _MEASURES:
            for kind in kinds:
                found.setdefault(name, {}).setdefault(kind, []).append(measure(kind, name, options.seconds))
    for name, by_kind in found.items():
        for kind, values in by_kind.items():
            cpu, rate = (statistics.median(column) for column in zip(*values, strict=True))
            print(f"{name:<27} {kind:<8} {cpu:8.1f} us of server CPU  {rate:9,.0f}/s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Streams between nodes as a whole: the bytes of a connection that calls RaftService, and of its answers.

The first byte of an input says in which pieces its bytes arrive. What messages say has targets of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ledgermq.proto.entry import Buffer
from ledgermq.raft.core.messages import Heartbeat
from ledgermq.raft.transport.call_streams import IncomingCall, OutgoingCall
from ledgermq.raft.transport.hello import (
    Hello,
    Standing,
    encode_arrived,
    encode_first_answer,
    encode_first_frame,
    reply_of,
)
from ledgermq.raft.transport.seal import seal_of
from ledgermq.raft.transport.stream_kind import StreamKind
from ledgermq.raft.transport.wire import encode_control
from ledgermq.raft.types import LogIndex, NodeId, Term
from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.grpc_messages import PREFIX
from ledgermq.rpc.grpc_server import GrpcServer
from ledgermq.rpc.header_blocks import encode_block
from ledgermq.rpc.http2_connection import Http2Connection
from ledgermq.rpc.http2_input import SCRATCH_SIZE
from ledgermq.rpc.shared_memory import SharedMemory
from ledgermq.rpc.wire_limits import WireLimits

from .fuzzer import Target
from .rpc_targets import PIECES, FakeTransport, feed, in_loop, until_ended

_N1, _N2 = NodeId("n1"), NodeId("n2")
_HELLO: Final = Hello(
    cluster_id="c", group="g", node_id=_N1, incarnation=7, segment_size=1 << 20, standing=Standing.VOTER,
    term=Term(3),
)  # fmt: skip
_LIMIT: Final = 1 << 20


async def _serve(data: bytes) -> None:
    """Take calls; whoever greets is accepted, and its frames are counted."""
    frames: list[Buffer] = []
    ended: list[str] = []
    calls: list[IncomingCall] = []

    def begin(connection: Http2Connection, stream_id: int) -> None:
        is_greeted = False

        def on_frame(frame: Buffer) -> None:
            nonlocal is_greeted
            if is_greeted:
                frames.append(frame)
                return
            is_greeted = True
            call.hold()
            call.max_frame_size = _LIMIT
            call.answer(reply_of(_HELLO, None), _HELLO)
            call.begin(_HELLO)

        call = IncomingCall(connection, stream_id, on_frame, ended.append, 1.0)
        calls.append(call)

    server = GrpcServer(WireLimits(max_streams=20, max_message=_LIMIT), takes_compressed=False)
    server.log_ended = lambda host, peer, reason, port="": None  # type: ignore[method-assign]  # many
    for kind in StreamKind:
        server.add_direct_method(kind.method, begin)
    connection, transport = server.serve_connection(), FakeTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    feed(connection, transport, data[1:], PIECES[data[0] % len(PIECES)] if data else 1)
    await until_ended(connection)
    assert len(ended) == len(calls) and not connection.listeners
    assert sum(map(len, frames)) <= len(data)


async def _answer(data: bytes) -> None:
    """Call, and read what comes."""
    lost: list[str] = []
    frames: list[Buffer] = []
    scratch, budget = bytearray(SCRATCH_SIZE), SharedMemory(_LIMIT)
    call = OutgoingCall("127.0.0.1:1", scratch, budget, frames.append, lost.append, lambda: None)
    transport: Any = FakeTransport()
    call.protocol.connection_made(transport)
    call.greet(StreamKind.CONTROL, _HELLO)
    feed(call.protocol, transport, data[1:], PIECES[data[0] % len(PIECES)] if data else 1)
    await until_ended(call.protocol)
    assert len(lost) == 1 and not call.is_open


def _message(body: bytes) -> bytes:
    whole = body + seal_of(body)
    return h2.frame(h2.DATA, 0, 1, PREFIX.pack(0, len(whole)) + whole)


def _calls() -> Sequence[bytes]:
    head = encode_block(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", StreamKind.CONTROL.method.encode()),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )
    beat = encode_control((Heartbeat(Term(3), _N1, _N2, LogIndex(4), 5, 6),))
    whole = (
        h2.PREFACE
        + h2.settings_frame(())
        + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head)
        + _message(encode_first_frame(_HELLO))
        + _message(beat) * 3
    )
    return [b"\x05" + whole, b"\x02" + whole + _message(beat)[:-1]]


def _answers() -> Sequence[bytes]:
    head = encode_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
    status = encode_block(((b"grpc-status", b"9"), (b"grpc-message", b"refused")))
    begin = h2.settings_frame(()) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, head)
    accepted = begin + _message(encode_first_answer(reply_of(_HELLO, None))) + _message(encode_arrived(300))
    return [
        b"\x05" + accepted,
        b"\x02" + accepted + h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, status),
    ]


STREAM_TARGETS: Final = (
    Target("raft_calls", in_loop(_serve), (), _calls),
    Target("raft_call_answers", in_loop(_answer), (), _answers),
)

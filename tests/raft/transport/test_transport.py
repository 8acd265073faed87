"""Streams between nodes: greeting, refusal, frames, the end of a peer (real TCP on loopback)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import grpc
import grpc.aio
import pytest
import uvloop

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.raft.config import CONTROL_FRAME_SIZE, Member, StreamLimits
from ledgermq.raft.errors import AddressInUseError
from ledgermq.raft.folder.bootstrap import MemberRecord
from ledgermq.raft.peer_tls import NO_TLS, PeerTls
from ledgermq.raft.ports.front import FrontLimits
from ledgermq.raft.transport import former_streams
from ledgermq.raft.transport.checked_frame import header_of
from ledgermq.raft.transport.former_streams import preamble_of
from ledgermq.raft.transport.hello import (
    MAX_GREETING_SIZE,
    Hello,
    Refusal,
    RefusalKind,
    Standing,
    encode_first_frame,
    encode_greeting,
    refusal_of,
    reply_of,
)
from ledgermq.raft.transport.links import MAX_CALL_SIZE, Transport, _Incoming, port_limits
from ledgermq.raft.transport.seal import SEAL_SIZE, seal_of, unsealed
from ledgermq.raft.transport.stream_kind import StreamKind
from ledgermq.raft.types import NodeId, Term
from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc import shared_memory
from tests.ports import free_port
from tests.rpc.raw_peer import message, request

from ..whole_frame import unframed

WAIT_S = 20.0


def take_one(queue: deque[bytes]) -> tuple[bytes, bytes]:
    frame = queue.popleft()
    return frame, seal_of(frame)


class Peer:
    """One end with a gate that records events."""

    def __init__(
        self, name: str, members: tuple[Member, ...], limits: StreamLimits, tls: PeerTls = NO_TLS
    ) -> None:
        self.id = NodeId(name)
        self.group, self.incarnation = "g0", 1
        self.standing = Standing.VOTER
        self.record = MemberRecord(self.group)
        self.members = frozenset(m.node_id for m in members)
        self.frames: list[tuple[NodeId, StreamKind, bytes]] = []
        self.up: set[tuple[NodeId, StreamKind]] = set()
        self.gone: list[NodeId] = []
        self.refusals: list[Refusal] = []
        self.left_behind_by: list[NodeId] = []
        self.stuck: list[StreamKind] = []
        self.damaged: list[NodeId | None] = []
        self.changed = asyncio.Event()
        own = next(m for m in members if m.node_id == name)
        others = tuple(m for m in members if m.node_id != name)
        self.transport: Transport[bytes, bytes] = Transport(
            own.address, others, take_one, take_one, limits=limits, tls=tls
        )

    def hello(self, to: NodeId | None) -> Hello:
        return Hello(
            cluster_id="c", group=self.group, node_id=self.id, incarnation=self.incarnation,
            segment_size=1 << 20,
            standing=self.standing, term=Term(0), to_node_id=to or "",
        )  # fmt: skip

    async def admit(self, hello: Hello) -> Refusal | None:
        refusal = refusal_of(self.hello(None), hello, self.members) or self.record.refusal_of(hello)
        if refusal is None:
            self.record.known[hello.node_id] = hello.incarnation
        return refusal

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: Buffer) -> None:
        self.frames.append((peer, kind, bytes(frame)))
        self.changed.set()

    def on_refused(self, peer: NodeId, refusal: Refusal, hello: Hello) -> None:
        self.refusals.append(refusal)
        self.changed.set()

    def on_other_generation(self, hello: Hello) -> None:
        self.left_behind_by.append(hello.node_id)
        self.changed.set()

    def on_link_up(self, peer: NodeId, kind: StreamKind) -> None:
        self.up.add((peer, kind))
        self.changed.set()

    def on_link_stuck(self, peer: NodeId, kind: StreamKind) -> None:
        self.up.discard((peer, kind))
        self.stuck.append(kind)
        self.changed.set()

    def on_damaged(self, peer: NodeId | None) -> None:
        self.damaged.append(peer)
        self.changed.set()

    def on_link_lost(self, peer: NodeId, kind: StreamKind, *, gone: bool) -> None:
        self.up.discard((peer, kind))
        if gone:
            self.gone.append(peer)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_not_heard(self, peer: NodeId) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.transport.is_heard(peer):  # noqa: ASYNC110 (no event signals it)
                await asyncio.sleep(0.01)

    async def start(self) -> None:
        self.transport.open_port()
        await self.transport.listen(self)
        self.transport.connect()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Return the loop of brokers, and the one that others may use: they hand connections over differently."""
    with asyncio.Runner(loop_factory=request.param) as made:
        yield made


@pytest.fixture
def limits() -> StreamLimits:
    return StreamLimits()


@pytest.fixture
def peers(runner: asyncio.Runner, limits: StreamLimits) -> Iterator[tuple[Peer, Peer]]:
    members = tuple(Member(NodeId(n), f"127.0.0.1:{free_port()}") for n in ("n1", "n2"))
    one, two = Peer("n1", members, limits), Peer("n2", members, limits)
    yield one, two
    runner.run(one.transport.close())
    runner.run(two.transport.close())


@pytest.fixture
def one(peers: tuple[Peer, Peer]) -> Peer:
    return peers[0]


@pytest.fixture
def two(peers: tuple[Peer, Peer]) -> Peer:
    return peers[1]


async def both_up(one: Peer, two: Peer) -> None:
    await one.start()
    await two.start()
    await one.until(lambda: len(one.up) == 2)
    await two.until(lambda: len(two.up) == 2)


async def test_two_nodes_greet_and_exchange_frames_in_order_on_both_streams(one: Peer, two: Peer) -> None:
    await both_up(one, two)
    link = one.transport.links[two.id]
    for number in range(3):
        link.control.put(b"c%d" % number)
        link.append.put(b"a%d" % number)
    await two.until(lambda: len(two.frames) == 6)
    for kind, letter in ((StreamKind.CONTROL, "c"), (StreamKind.APPEND, "a")):
        got = [frame for peer, k, frame in two.frames if k is kind and peer == one.id]
        assert got == [f"{letter}{n}".encode() for n in range(3)]


async def test_a_frame_larger_than_all_buffers_passes(one: Peer, two: Peer) -> None:
    await both_up(one, two)
    one.transport.links[two.id].append.put(bytes(9 << 20))
    await two.until(lambda: bool(two.frames))
    assert len(two.frames[0][2]) == 9 << 20


async def test_only_the_refusal_of_a_voter_tells_a_node_that_it_is_no_member_any_more(
    one: Peer, two: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """A learner's record may be the old one. One restored disk must not end a good voter."""
    two.standing = Standing.LEARNER
    two.record.known[one.id] = one.incarnation + 1
    await one.start()
    await two.start()
    async with asyncio.timeout(WAIT_S):
        while "peer=n2 reason=incarnation" not in caplog.text:  # noqa: ASYNC110 (a log has no event)
            await asyncio.sleep(0.01)  # until it has the learner's report
    assert not one.refusals
    two.standing = Standing.VOTER
    await one.until(lambda: bool(one.refusals))
    assert one.refusals[0].kind is RefusalKind.INCARNATION


async def test_a_node_of_another_group_is_refused_and_both_sides_say_why_once(
    one: Peer, two: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    two.group, two.record = "g1", MemberRecord("g1")
    await one.start()
    await two.start()
    await one.until(lambda: bool(one.refusals))
    await two.until(lambda: bool(two.refusals))
    assert {r.kind for r in one.refusals + two.refusals} == {RefusalKind.GROUP}
    assert not one.up and not two.up
    lines = [line for line in caplog.messages if line.startswith("peer refused")]
    assert len(lines) == 2
    assert all("belongs to broker group" in line for line in lines)


async def test_what_is_sent_while_the_peer_is_away_is_dropped_not_kept(one: Peer, two: Peer) -> None:
    control = one.transport.links[two.id].control
    control.put(b"lost")
    assert not control._queue


async def test_a_peer_whose_port_closes_counts_as_gone_and_is_found_again(one: Peer, two: Peer) -> None:
    await both_up(one, two)
    await two.transport.close()
    await one.until(lambda: two.id in one.gone)
    again = Peer(
        "n2", (Member(one.id, one.transport.bind), Member(two.id, two.transport.bind)), StreamLimits()
    )
    try:
        await again.start()
        await one.until(lambda: len(one.up) == 2)
        one.transport.links[two.id].control.put(b"welcome back")
        await again.until(lambda: bool(again.frames))
    finally:
        await again.transport.close()


async def test_the_streams_of_a_replaced_incarnation_end(one: Peer, two: Peer) -> None:
    await both_up(one, two)
    assert two.transport.is_heard(one.id)
    two.transport.end_incoming(one.id, incarnation=2)
    assert not two.transport.is_heard(one.id)
    await one.until(lambda: len(one.up) < 2)


async def test_a_port_in_use_is_told_by_its_address(one: Peer, two: Peer) -> None:
    one.transport.open_port()
    two.transport.bind = one.transport.bind
    with pytest.raises(AddressInUseError, match=one.transport.bind):
        two.transport.open_port()


async def test_a_port_that_an_outgoing_connection_holds_is_in_use_and_the_advice_shows_it(
    one: Peer, two: Peer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", 0))
        outgoing.connect(server.getsockname())
        one.transport.bind = f"127.0.0.1:{outgoing.getsockname()[1]}"
        with pytest.raises(AddressInUseError, match="ss -tnap"):
            one.transport.open_port()


async def test_a_greeting_that_cannot_be_settled_here_is_tried_again(
    one: Peer, two: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk where the peer's incarnation must be stored, a reply of a newer build, a bug of ours."""
    failures: list[Exception] = [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("newer"),
        KeyError("a bug"),
    ]
    admit = one.admit

    async def failing(hello: Hello) -> Refusal | None:
        if failures and not hello.to_node_id:  # the reply to a greeting of ours
            raise failures.pop()
        return await admit(hello)

    monkeypatch.setattr(one, "admit", failing)
    await two.start()
    await one.start()
    await one.until(lambda: len(one.up) == 2)
    await two.until(lambda: len(two.up) == 2)
    assert not failures


class Visitor:
    """A connection to a Raft port, byte by byte; its subclasses speak the two kinds of streams."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        host, port = self._address.split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def greet(self, hello: Hello, kind: StreamKind = StreamKind.APPEND) -> None:
        self.greet_with(self.greeting(hello), kind)

    def greet_with(self, greeting: bytes, kind: StreamKind = StreamKind.APPEND) -> None:
        """Open the stream with these bytes as the first message, checksum included."""
        raise NotImplementedError

    @staticmethod
    def greeting(hello: Hello) -> bytes:
        """Return the first message with its checksum."""
        raise NotImplementedError

    @staticmethod
    def wire(*bodies: bytes) -> bytes:
        """Return messages as they follow the greeting."""
        raise NotImplementedError

    @staticmethod
    def counted(*bodies: bytes) -> int:
        """Return how many bytes of these messages are reported."""
        raise NotImplementedError

    async def answer(self) -> pb.HelloReply:
        raise NotImplementedError

    async def report(self) -> int:
        """Return the next report of how many bytes of its frames have arrived."""
        raise NotImplementedError

    async def ended(self) -> None:
        async with asyncio.timeout(WAIT_S):
            try:
                while await self._reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass


class FormerVisitor(Visitor):
    """A stream of the version before."""

    def greet_with(self, greeting: bytes, kind: StreamKind = StreamKind.APPEND) -> None:
        self.say(preamble_of(kind) + framed(greeting))

    @staticmethod
    def greeting(hello: Hello) -> bytes:
        return encode_greeting(hello)

    @staticmethod
    def wire(*bodies: bytes) -> bytes:
        return b"".join(header_of((body,)) + body for body in bodies)

    @staticmethod
    def counted(*bodies: bytes) -> int:
        return len(FormerVisitor.wire(*bodies))

    async def answer(self) -> pb.HelloReply:
        async with asyncio.timeout(WAIT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "little")
            return pb.HelloReply.FromString(await self._reader.readexactly(size))

    async def report(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return int.from_bytes(unframed(await self._reader.readexactly(20)), "little")


class CallVisitor(Visitor):
    """A call of RaftService, in HTTP/2 frames."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.say(h2.PREFACE + h2.settings_frame(()))
        self._received = b""  # bytes of answers
        return self

    def greet_with(self, greeting: bytes, kind: StreamKind = StreamKind.APPEND) -> None:
        head = request(kind.method.encode())
        self.say(h2.header_frames(1, head, False, 1 << 14) + h2.frame(h2.DATA, 0, 1, message(greeting)))

    @staticmethod
    def greeting(hello: Hello) -> bytes:
        first = encode_first_frame(hello)
        return first + seal_of(first)

    @staticmethod
    def wire(*bodies: bytes) -> bytes:
        data = b"".join(message(body + seal_of(body)) for body in bodies)
        pieces = [data[start : start + 100_000] for start in range(0, len(data), 100_000)]
        return b"".join(h2.frame(h2.DATA, 0, 1, piece) for piece in pieces)

    @staticmethod
    def counted(*bodies: bytes) -> int:
        return sum(len(body) + SEAL_SIZE for body in bodies)

    async def _answer(self) -> pb.StreamAnswer:
        async with asyncio.timeout(WAIT_S):
            while len(self._received) < 5 or len(self._received) < 5 + self._size:
                head = await self._reader.readexactly(h2.FRAME_HEADER_SIZE)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == h2.DATA:
                    self._received += payload
        size = self._size
        whole, self._received = self._received[5 : 5 + size], self._received[5 + size :]
        return pb.StreamAnswer.FromString(bytes(unsealed(whole)))

    @property
    def _size(self) -> int:
        return int.from_bytes(self._received[1:5], "big")

    async def answer(self) -> pb.HelloReply:
        return (await self._answer()).reply

    async def report(self) -> int:
        return (await self._answer()).arrived


each_kind = pytest.mark.parametrize("visit", [CallVisitor, FormerVisitor])
Visit = type[Visitor]


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def sealed(data: bytes) -> bytes:
    return data + seal_of(data)


class PlainVisitor(FormerVisitor):
    """A stream of builds that have no checksums yet."""

    @staticmethod
    def greeting(hello: Hello) -> bytes:
        return replace(hello, frames=0).to_proto().SerializeToString()

    @staticmethod
    def wire(*bodies: bytes) -> bytes:
        return b"".join(map(framed, bodies))


async def serve(peer: Peer) -> None:
    """Accept connections, and open none."""
    peer.transport.open_port()
    await peer.transport.listen(peer)


@each_kind
async def test_nothing_is_heard_from_a_folder_that_is_replaced_while_its_greeting_is_judged(
    one: Peer, two: Peer, monkeypatch: pytest.MonkeyPatch, visit: Visit
) -> None:
    await serve(one)
    accepted = _Incoming.accepted

    def replaced(incoming: _Incoming, hello: Hello) -> None:
        accepted(incoming, hello)
        one.transport.end_incoming(two.id, incarnation=2)

    monkeypatch.setattr(_Incoming, "accepted", replaced)
    async with visit(one.transport.bind) as visitor:
        visitor.greet(two.hello(one.id))
        visitor.say(visit.wire(b"an acknowledgement of what is gone"))
        await visitor.ended()
    assert one.frames == []
    assert not one.transport.is_heard(two.id)


@pytest.mark.parametrize("visit", [CallVisitor, PlainVisitor])
async def test_frames_that_come_with_the_greeting_wait_until_it_is_accepted(
    one: Peer, two: Peer, monkeypatch: pytest.MonkeyPatch, visit: Visit
) -> None:
    await serve(one)
    admit, judged = one.admit, asyncio.Event()

    async def slow(hello: Hello) -> Refusal | None:
        await judged.wait()
        assert not one.frames
        return await admit(hello)

    monkeypatch.setattr(one, "admit", slow)
    async with visit(one.transport.bind) as visitor:
        visitor.greet(two.hello(one.id))
        for number in range(3):
            visitor.say(visit.wire(b"%d" % number))
        await asyncio.sleep(0)
        judged.set()
        assert not (await visitor.answer()).refusal_kind
        await one.until(lambda: len(one.frames) == 3)
    assert [frame for _, _, frame in one.frames] == [b"0", b"1", b"2"]
    await one.until_not_heard(two.id)


@pytest.mark.parametrize("visit", [CallVisitor, PlainVisitor])
async def test_a_stream_whose_greeting_finds_a_defect_is_ended_and_does_not_wait(
    one: Peer, two: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, visit: Visit
) -> None:
    await serve(one)
    admit = one.admit

    async def defective(hello: Hello) -> Refusal | None:
        raise KeyError("a bug")

    monkeypatch.setattr(one, "admit", defective)
    async with visit(one.transport.bind) as visitor:
        visitor.greet(two.hello(one.id))
        await visitor.ended()
    assert "greeting not judged, it comes again" in caplog.text and "a bug" in caplog.text
    assert not one.transport._greeting
    monkeypatch.setattr(one, "admit", admit)
    async with visit(one.transport.bind) as visitor:
        visitor.greet(two.hello(one.id))
        assert not (await visitor.answer()).refusal_kind


_NO_STANDING = pb.Hello(standing=cast(Any, 99))
_HEARTBEAT = pb.RaftFrame(messages=[pb.RaftMessage(term=1)])


@pytest.mark.parametrize(
    ("visit", "first"),
    [
        (FormerVisitor, b"GET / HTTP/1.1"),
        (FormerVisitor, _NO_STANDING.SerializeToString()),
        (CallVisitor, sealed(b"GET / HTTP/1.1")),
        (CallVisitor, sealed(pb.RaftFrame(hello=_NO_STANDING).SerializeToString())),
        (CallVisitor, sealed(_HEARTBEAT.SerializeToString())),
    ],
)
async def test_a_greeting_that_cannot_be_read_is_answered_with_the_reason(
    one: Peer, two: Peer, visit: Visit, first: bytes
) -> None:
    await serve(one)
    async with visit(one.transport.bind) as visitor:
        visitor.greet_with(first, StreamKind.CONTROL)
        answer = await visitor.answer()
        assert answer.refusal_kind == RefusalKind.MALFORMED.value
        assert "cannot be read" in answer.refusal
        await visitor.ended()


@each_kind
async def test_a_silent_node_hangs_up(one: Peer, two: Peer, visit: Visit) -> None:
    await serve(one)
    one.transport.silence()
    async with visit(one.transport.bind) as visitor:
        visitor.greet(two.hello(one.id))
        await visitor.ended()
    assert not one.transport.is_heard(two.id)


async def test_a_preamble_in_pieces_is_put_together(one: Peer, two: Peer) -> None:
    await serve(one)
    async with FormerVisitor(one.transport.bind) as visitor:
        for byte in preamble_of(StreamKind.CONTROL) + framed(encode_greeting(two.hello(one.id))):
            visitor.say(bytes((byte,)))
            await asyncio.sleep(0)
        assert not (await visitor.answer()).refusal_kind
        assert one.transport.is_heard(two.id)


@pytest.mark.parametrize("extra", [b"", bytes(200_000)])
async def test_who_greets_with_more_than_a_greeting_can_have_is_cut_off(
    one: Peer, two: Peer, extra: bytes
) -> None:
    await serve(one)
    async with FormerVisitor(one.transport.bind) as visitor:
        visitor.say(preamble_of(StreamKind.APPEND) + (1 << 30).to_bytes(4, "little") + extra)
        await visitor.ended()
    async with CallVisitor(one.transport.bind) as visitor:
        visitor.greet_with(bytes(MAX_GREETING_SIZE + 1) + extra)
        await visitor.ended()
    assert one.frames == []


async def test_grpc_is_served_on_the_same_port(one: Peer, two: Peer) -> None:
    """The services of the layer above, and an error for any other method."""

    async def echo(request: bytes, context: Any) -> bytes:
        return request * 3

    handler = grpc.method_handlers_generic_handler(
        "test.Echo", {"Thrice": grpc.unary_unary_rpc_method_handler(echo)}
    )
    one.transport.serve_also(handler)
    await serve(one)
    async with grpc.aio.insecure_channel(one.transport.bind) as channel:
        thrice: Any = channel.unary_unary("/test.Echo/Thrice", None, None)
        assert await thrice(b"abc", timeout=WAIT_S) == b"abcabcabc"
        large = bytes(1_000_000)
        assert await thrice(large, timeout=WAIT_S) == large * 3
        never: Any = channel.unary_unary("/test.Echo/Never", None, None)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await never(b"", timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await thrice(bytes(MAX_CALL_SIZE + 1), timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "Received message larger than max" in str(refused.value.details())
    async with Visitor(one.transport.bind) as visitor:
        visitor.say(b"GET / HTTP/1.1\r\n\r\n")
        await visitor.ended()


def test_the_port_takes_what_there_are_descriptors_for_and_keeps_places_for_peers() -> None:
    assert port_limits(1 << 20) == FrontLimits(256, reserve=96)
    assert port_limits(1_024) == FrontLimits(64, reserve=24)
    assert port_limits(64) == FrontLimits(16, reserve=6)


async def test_peers_come_in_however_many_others_hold_the_port(one: Peer, two: Peer) -> None:
    """Silent connections, and streams without a greeting: more of each than there are places."""
    one.transport._port_limits = FrontLimits(16, reserve=4)
    await serve(one)
    async with AsyncExitStack() as stack:
        for first in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", preamble_of(StreamKind.APPEND), b""):
            for _ in range(20):
                with suppress(ConnectionError):  # it was closed before it could send
                    visitor = await stack.enter_async_context(Visitor(one.transport.bind))
                    visitor.say(first)
        await two.start()
        await two.until(lambda: len(two.up) == 2)
        assert one.transport.is_heard(two.id)


async def test_a_connection_has_one_stream_of_a_kind_that_is_not_greeted(one: Peer, two: Peer) -> None:
    """Else one connection could drive the greetings of all peers out of their places."""
    await serve(one)
    append, control = (request(kind.method.encode()) for kind in (StreamKind.APPEND, StreamKind.CONTROL))
    async with CallVisitor(one.transport.bind) as visitor:
        for number, head in ((1, append), (3, control)):
            visitor.say(h2.header_frames(number, head, False, 1 << 14))
        while len(one.transport._greeting) < 2:  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.001)
        visitor.say(h2.header_frames(5, append, False, 1 << 14))
        await visitor.ended()
    assert not one.transport._greeting


async def test_calls_take_no_place_that_is_kept_for_peers(one: Peer, two: Peer) -> None:
    """A connection has a place of its own from its first call on; streams that were accepted need none."""

    async def wait(request: bytes, context: Any) -> bytes:
        begun.put_nowait(request)
        return await asyncio.Future[bytes]()

    begun: asyncio.Queue[bytes] = asyncio.Queue()
    handler = grpc.method_handlers_generic_handler(
        "test.Calls", {"Wait": grpc.unary_unary_rpc_method_handler(wait)}
    )
    one.transport.serve_also(handler)
    one.transport._port_limits = FrontLimits(16, reserve=4)
    await serve(one)
    head = h2.header_frames(1, request(b"/test.Calls/Wait"), False, 1 << 14)
    call = h2.PREFACE + h2.settings_frame(()) + head + h2.frame(h2.DATA, h2.END_STREAM, 1, message(b""))
    async with AsyncExitStack() as stack:
        for _ in range(12):
            visitor = await stack.enter_async_context(Visitor(one.transport.bind))
            visitor.say(call)
            await begun.get()
        for _ in range(3):
            visitor = await stack.enter_async_context(Visitor(one.transport.bind))
            visitor.say(call)
            await visitor.ended()
        assert begun.empty()
        for kind in (StreamKind.CONTROL, StreamKind.APPEND):
            await greeted(stack, CallVisitor, one, two, kind)
        assert one.transport._front is not None
        assert one.transport._front.counts.open == 12


async def test_peers_have_memory_however_much_the_requests_of_others_take(
    one: Peer, two: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers that hold all of the port's budget are bounded, and do not slow down appends."""
    monkeypatch.setattr(shared_memory, "STALL_S", 2 * WAIT_S)

    async def take(request: bytes, context: Any) -> bytes:
        return b""

    method = grpc.unary_unary_rpc_method_handler(take)
    one.transport.serve_also(grpc.method_handlers_generic_handler("test.Calls", {"Take": method}))
    await serve(one)
    server = one.transport._server
    assert server is not None
    strangers = server._shared
    strangers.limit = 1 << 20
    head = h2.header_frames(1, request(b"/test.Calls/Take"), False, 1 << 14)
    part = h2.frame(h2.DATA, 0, 1, message(bytes(4 << 20))[:60_000])
    async with AsyncExitStack() as stack:
        for _ in range(2):
            visitor = await stack.enter_async_context(Visitor(one.transport.bind))
            visitor.say(h2.PREFACE + h2.settings_frame(()) + head + part)
        while not strangers.stopped:  # noqa: ASYNC110 (no event says so)
            await asyncio.sleep(0.001)
        await two.start()
        await two.until(lambda: len(two.up) == 2)
        two.transport.links[one.id].append.put(bytes(8 << 20))
        await one.until(lambda: bool(one.frames))
        assert strangers.stopped and strangers.is_exhausted
    assert one.transport.budget.held == 0


async def greeted(
    stack: AsyncExitStack, visit: Visit, one: Peer, two: Peer, kind: StreamKind = StreamKind.APPEND
) -> Visitor:
    """A stream of n2 to n1 that was accepted."""
    visitor = await stack.enter_async_context(visit(one.transport.bind))
    visitor.greet(two.hello(one.id), kind)
    assert not (await visitor.answer()).refusal_kind
    return visitor


@each_kind
async def test_what_has_arrived_is_told_to_the_sender(one: Peer, two: Peer, visit: Visit) -> None:
    """Also of an incomplete frame, whatever the receiver does with it."""
    await serve(one)
    async with AsyncExitStack() as stack:
        visitor = await greeted(stack, visit, one, two)
        visitor.say(visit.wire(b"one", b"two"))
        count = visit.counted(b"one", b"two")
        while await visitor.report() < count:
            pass
        visitor.say(visit.wire(bytes(300_000))[:200_000])
        while await visitor.report() < count + 199_900:
            pass
    assert [frame for _, _, frame in one.frames] == [b"one", b"two"]


@each_kind
async def test_a_damaged_frame_ends_its_connection_only_and_is_said_once(
    one: Peer, two: Peer, caplog: pytest.LogCaptureFixture, visit: Visit
) -> None:
    await serve(one)
    damaged = bytearray(visit.wire(b"match_index 7"))
    damaged[-1] ^= 1
    async with AsyncExitStack() as stack:
        control = await greeted(stack, visit, one, two, StreamKind.CONTROL)
        for _ in range(3):
            visitor = await greeted(stack, visit, one, two)
            visitor.say(visit.wire(b"good") + damaged + visit.wire(b"behind it"))
            await visitor.ended()
        control.say(visit.wire(b"still heard"))
        await one.until(lambda: len(one.frames) == 4)
    assert [frame for _, _, frame in one.frames] == [b"good"] * 3 + [b"still heard"]
    assert one.damaged == [two.id] * 3
    lines = [line for line in caplog.messages if "was changed on the way" in line]
    assert len(lines) == 1
    assert "peer=n2" in lines[0]


@each_kind
async def test_a_damaged_greeting_is_not_judged_and_not_answered(one: Peer, two: Peer, visit: Visit) -> None:
    """One flipped bit of an incarnation would make a node give up a healthy folder."""
    await serve(one)
    greeting = visit.greeting(replace(two.hello(one.id), incarnation=1 << 20))
    honest = visit.greeting(replace(two.hello(one.id), incarnation=1 << 19))
    place = next(i for i, (a, b) in enumerate(zip(greeting, honest, strict=False)) if a != b)
    damaged = bytearray(greeting)
    damaged[place] ^= 2
    async with visit(one.transport.bind) as visitor:
        visitor.greet_with(bytes(damaged))
        await visitor.ended()
    assert one.record.known == {}
    assert one.damaged == [None]


@each_kind
@pytest.mark.parametrize("kind", list(StreamKind))
@pytest.mark.parametrize("limits", [StreamLimits(append_frame=2 << 20)])
async def test_frames_are_bounded_by_what_their_stream_may_carry(
    one: Peer, two: Peer, kind: StreamKind, visit: Visit
) -> None:
    limit = CONTROL_FRAME_SIZE if kind is StreamKind.CONTROL else 2 << 20
    await serve(one)
    async with AsyncExitStack() as stack:
        visitor = await greeted(stack, visit, one, two, kind)
        whole = bytes(limit - (SEAL_SIZE if visit is CallVisitor else 0))
        visitor.say(visit.wire(whole))
        await one.until(lambda: len(one.frames) == 1)
        visitor.say(visit.wire(whole + b"1"))
        await visitor.ended()
    assert len(one.frames) == 1


@each_kind
async def test_a_stream_replaces_the_one_of_its_kind_that_the_peer_opened_before(
    one: Peer, two: Peer, visit: Visit
) -> None:
    """Frames still in the old one must not arrive later, and streams must not pile up."""
    await serve(one)
    async with AsyncExitStack() as stack:
        control = await greeted(stack, visit, one, two, StreamKind.CONTROL)
        former = await greeted(stack, visit, one, two)
        for _ in range(20):
            visitor = await greeted(stack, visit, one, two)
            await former.ended()
            former.say(visit.wire(b"too late"))
            former = visitor
        former.say(visit.wire(b"append"))
        control.say(visit.wire(b"control"))
        await one.until(lambda: len(one.frames) == 2)
    assert sorted(frame for _, _, frame in one.frames) == [b"append", b"control"]


@pytest.mark.parametrize("visit", [CallVisitor, FormerVisitor, PlainVisitor])
@pytest.mark.parametrize("limits", [StreamLimits(whole_frame_s=0.05)])
async def test_a_frame_that_begins_and_does_not_go_on_ends_its_stream(
    one: Peer, two: Peer, visit: Visit
) -> None:
    """A flipped length shows like this: it swallows the following bytes, drop by drop."""
    await serve(one)
    for begun in (b"\0", visit.wire(bytes(200))[:-1], visit.wire(bytes(200_000))[:-1]):
        async with visit(one.transport.bind) as visitor:
            visitor.greet(two.hello(one.id))
            assert not (await visitor.answer()).refusal_kind
            visitor.say(begun)
            await visitor.ended()
    assert one.frames == []


@pytest.mark.parametrize("checked", [True, False])
async def test_builds_that_speak_plain_frames_are_understood(
    one: Peer, two: Peer, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version before has checksums in its frames, an older one has not."""
    if not checked:
        monkeypatch.setattr(former_streams, "frames_with", lambda hello: 0)
    for link in two.transport.links.values():
        for stream in (link.control, link.append):
            monkeypatch.setattr(stream, "_call", stream._former)
    monkeypatch.setattr(
        StreamKind, "method", property(lambda kind: f"/ledgermq.v1.RaftService/New{kind.value}")
    )
    await two.start()  # it does not know the calls
    monkeypatch.undo()
    if not checked:
        monkeypatch.setattr(former_streams, "frames_with", lambda hello: 0)
    await one.start()
    await one.until(lambda: len(one.up) == 2)
    await two.until(lambda: len(two.up) == 2)
    for here, there in ((one, two), (two, one)):
        here.transport.links[there.id].append.put(bytes(300_000))
        here.transport.links[there.id].control.put(b"vote")
        await there.until(lambda there=there: len(there.frames) == 2)  # type: ignore[misc]
    assert not two.damaged and not one.damaged


class Swallower:
    """A grpcio server that answers the greetings to n2, accepts everything, and forwards nothing."""

    def __init__(self, two: Peer) -> None:
        self.greeted: list[StreamKind] = []
        self._two = two

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        service = StreamKind.CONTROL.method.split("/")[1]
        handlers = {
            kind.value: grpc.stream_stream_rpc_method_handler(partial(self._take, kind))
            for kind in StreamKind
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(self._two.transport.bind)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def _take(
        self, kind: StreamKind, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        self.greeted.append(kind)
        async for _ in requests:
            answer = pb.StreamAnswer(reply=reply_of(self._two.hello(None), None)).SerializeToString()
            yield answer + seal_of(answer)
            break
        async for _ in requests:
            pass


@pytest.mark.parametrize("limits", [StreamLimits(stall_s=0.02)])
async def test_a_stream_that_carries_nothing_is_opened_anew_and_told_as_stalled(one: Peer, two: Peer) -> None:
    swallower = Swallower(two)
    async with swallower.serving():
        await one.start()
        await one.until(lambda: len(one.up) == 2)
        append = one.transport.links[two.id].append
        while not append.is_stalled():
            append.put(b"entries")
            await asyncio.sleep(0)
        assert append.was_stuck
        assert set(one.stuck) == {StreamKind.APPEND}
        assert not one.gone, "a stream that stands still says nothing about the peer"
        await one.until(lambda: swallower.greeted.count(StreamKind.APPEND) >= 2)
        assert swallower.greeted.count(StreamKind.CONTROL) == 1


async def slow_link_to(two: Peer, bytes_per_s: int) -> asyncio.Server:
    """Stand in front of n2, which listens elsewhere, and forward bytes at this rate."""
    host, port = two.transport.bind.split(":")
    server = socket.create_server((host, int(port)))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(4096):
                await asyncio.sleep(len(data) * pause_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(host, two_port)
        await asyncio.gather(pass_on(reader, outer, 1 / bytes_per_s), pass_on(inner, writer, 0.0))

    two_port = free_port()
    two.transport.bind = f"{host}:{two_port}"
    return await asyncio.start_server(take, sock=server, limit=4096)


async def test_a_large_frame_arrives_over_a_slow_link_by_one_connection(one: Peer, two: Peer) -> None:
    """At 60 kB/s a frame of 128 KiB takes seven times the stall limit of a stream."""
    async with await slow_link_to(two, 60_000):
        await two.start()
        await one.start()
        await one.until(lambda: len(one.up) == 2)
        one.transport.links[two.id].append.put(bytes(128 << 10))
        await two.until(lambda: bool(two.frames))
    assert not one.stuck


@pytest.mark.parametrize("limits", [StreamLimits(stall_s=0.05)])
async def test_a_stream_that_stood_still_and_moves_again_is_in_order(one: Peer, two: Peer) -> None:
    append = one.transport.links[two.id].append
    async with Swallower(two).serving():
        await one.start()
        await one.until(lambda: len(one.up) == 2)
        append.put(b"swallowed")
        await one.until(lambda: bool(one.stuck))
        one.transport.links[two.id].control.silence()
    await two.start()
    await one.until(lambda: (two.id, StreamKind.APPEND) in one.up)
    while append.was_stuck:
        append.put(b"arrives")
        await asyncio.sleep(0)
    assert not append.is_stalled()
    assert {frame for _, _, frame in two.frames} == {b"arrives"}


@each_kind
async def test_many_greetings_of_strangers_are_one_line_of_bounded_length(
    one: Peer, two: Peer, caplog: pytest.LogCaptureFixture, visit: Visit
) -> None:
    await serve(one)
    for number in range(30):
        stranger = replace(two.hello(one.id), node_id=NodeId(f"x{number}"), group="g" * 255)
        async with visit(one.transport.bind) as visitor:
            visitor.greet(stranger)
            assert (await visitor.answer()).refusal_kind == RefusalKind.GROUP.value
    for name in ("n2\nERROR all is lost", "\x1b[2J", "n" * 60_000):
        async with visit(one.transport.bind) as visitor:
            visitor.greet(replace(two.hello(one.id), node_id=NodeId(name)))
            answer = await visitor.answer()
            assert answer.refusal_kind == RefusalKind.MALFORMED.value
            assert answer.refusal.isprintable()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("stranger refused")
    assert sum(map(len, caplog.messages)) < 3_000
    assert all(line.isprintable() for line in caplog.messages)


async def test_what_a_peer_says_in_a_refusal_is_shown_safely_and_in_bounds(
    one: Peer, two: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def rude(hello: Hello) -> Refusal | None:
        return Refusal(RefusalKind.GROUP, "no\nERROR forged " + "x" * 30_000)

    monkeypatch.setattr(two, "admit", rude)
    await serve(two)
    await one.start()
    await one.until(lambda: bool(one.refusals))
    assert one.refusals[0].text.startswith("no\\x0aERROR forged")
    assert len(one.refusals[0].text) <= 2_000
    logged = [line for line in caplog.messages if line.startswith("peer refused") and "forged" in line]
    assert any(len(line) < 2_100 and line.isprintable() for line in logged)

"""Streams between nodes: greeting, refusal, frames, the end of a peer (real TCP on loopback)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, cast

import grpc
import grpc.aio
import pytest
import uvloop

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.raft import transport
from ledgermq.raft.bootstrap import MemberRecord
from ledgermq.raft.config import Member
from ledgermq.raft.errors import AddressInUseError
from ledgermq.raft.hello import Hello, Refusal, RefusalKind, Standing, refusal_of
from ledgermq.raft.out_stream import StreamKind
from ledgermq.raft.port_front import FrontLimits
from ledgermq.raft.transport import Transport, _Incoming, port_limits
from ledgermq.raft.types import NodeId, Term
from tests.ports import free_port

WAIT_S = 20.0


def take_one(queue: deque[bytes]) -> tuple[bytes]:
    return (queue.popleft(),)


class Peer:
    """One end with a gate that records what happens."""

    def __init__(
        self, name: str, members: tuple[Member, ...], group: str = "g0", incarnation: int = 1
    ) -> None:
        self.id = NodeId(name)
        self.group, self.incarnation = group, incarnation
        self.standing = Standing.VOTER
        self.record = MemberRecord(group)
        self.members = frozenset(m.node_id for m in members)
        self.frames: list[tuple[NodeId, StreamKind, bytes]] = []
        self.up: set[tuple[NodeId, StreamKind]] = set()
        self.gone: list[NodeId] = []
        self.refusals: list[Refusal] = []
        self.left_behind_by: list[NodeId] = []
        self.changed = asyncio.Event()
        own = next(m for m in members if m.node_id == name)
        others = tuple(m for m in members if m.node_id != name)
        self.transport: Transport[bytes, bytes] = Transport(own.address, others, self, take_one, take_one)

    def hello(self, to: NodeId | None) -> Hello:
        return Hello(
            cluster_id="c", group=self.group, node_id=self.id, incarnation=self.incarnation, segment_size=1 << 20,
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

    def on_refused(self, peer: NodeId, refusal: Refusal, group_id: int) -> None:
        self.refusals.append(refusal)
        self.changed.set()

    def on_other_generation(self, hello: Hello) -> None:
        self.left_behind_by.append(hello.node_id)
        self.changed.set()

    def on_link_up(self, peer: NodeId, kind: StreamKind) -> None:
        self.up.add((peer, kind))
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
            while self.transport.is_heard(peer):  # noqa: ASYNC110 (nobody is told of it)
                await asyncio.sleep(0.01)

    async def start(self) -> None:
        self.transport.open_port()
        await self.transport.listen()
        self.transport.connect()


def run(scenario: Callable[[Peer, Peer], Coroutine[Any, Any, None]], **of_n2: Any) -> None:
    members = tuple(Member(NodeId(n), f"127.0.0.1:{free_port()}") for n in ("n1", "n2"))

    async def main() -> None:
        one, two = Peer("n1", members), Peer("n2", members, **of_n2)
        try:
            await scenario(one, two)
        finally:
            await asyncio.gather(one.transport.close(), two.transport.close())

    # What brokers run on, and what others may: they do not treat a connection alike that changes hands.
    for new_loop in (uvloop.new_event_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())


async def both_up(one: Peer, two: Peer) -> None:
    await one.start()
    await two.start()
    await one.until(lambda: len(one.up) == 2)
    await two.until(lambda: len(two.up) == 2)


def test_two_nodes_greet_and_exchange_frames_in_order_on_both_streams() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await both_up(one, two)
        link = one.transport.links[two.id]
        for number in range(3):
            link.control.put(b"c%d" % number)
            link.append.put(b"a%d" % number)
        await two.until(lambda: len(two.frames) == 6)
        for kind, letter in ((StreamKind.CONTROL, "c"), (StreamKind.APPEND, "a")):
            got = [frame for peer, k, frame in two.frames if k is kind and peer == one.id]
            assert got == [f"{letter}{n}".encode() for n in range(3)]

    run(scenario)


def test_a_frame_larger_than_all_buffers_passes() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await both_up(one, two)
        one.transport.links[two.id].append.put(bytes(9 << 20))
        await two.until(lambda: bool(two.frames))
        assert len(two.frames[0][2]) == 9 << 20

    run(scenario)


def test_only_the_refusal_of_a_voter_tells_a_node_that_it_is_no_member_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A learner's record may be the old one: one disk that was put back must not end a good voter."""

    async def scenario(one: Peer, two: Peer) -> None:
        two.standing = Standing.LEARNER
        two.record.known[one.id] = one.incarnation + 1
        await one.start()
        await two.start()
        async with asyncio.timeout(WAIT_S):
            while "peer=n2 reason=incarnation" not in caplog.text:  # noqa: ASYNC110 (a log has no event)
                await asyncio.sleep(0.01)  # until it has heard what the learner says
        assert not one.refusals
        two.standing = Standing.VOTER
        await one.until(lambda: bool(one.refusals))
        assert one.refusals[0].kind is RefusalKind.INCARNATION

    run(scenario)


def test_a_node_of_another_group_is_refused_and_both_sides_say_why_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await one.start()
        await two.start()
        await one.until(lambda: bool(one.refusals))
        await two.until(lambda: bool(two.refusals))
        assert {r.kind for r in one.refusals + two.refusals} == {RefusalKind.GROUP}
        assert not one.up and not two.up
        lines = [line for line in caplog.messages if line.startswith("peer refused")]
        assert len(lines) == 2
        assert all("belongs to group" in line for line in lines)
        caplog.clear()

    with caplog.at_level(logging.ERROR):
        run(scenario, group="g1")


def test_what_is_sent_while_the_peer_is_away_is_dropped_not_kept() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        link = one.transport.links[two.id]
        link.control.put(b"lost")
        assert link.control.dropped == 1
        assert len(link.control) == 0

    run(scenario)


def test_a_peer_whose_port_closes_counts_as_gone_and_is_found_again() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await both_up(one, two)
        await two.transport.close()
        await one.until(lambda: two.id in one.gone)
        again = Peer("n2", (Member(one.id, one.transport.bind), Member(two.id, two.transport.bind)))
        try:
            await again.start()
            await one.until(lambda: len(one.up) == 2)
            one.transport.links[two.id].control.put(b"welcome back")
            await again.until(lambda: bool(again.frames))
        finally:
            await again.transport.close()

    run(scenario)


def test_the_streams_of_a_replaced_incarnation_end() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await both_up(one, two)
        assert two.transport.is_heard(one.id)
        two.transport.drop_other_incarnations(one.id, incarnation=2)
        assert not two.transport.is_heard(one.id)
        await one.until(lambda: len(one.up) < 2)

    run(scenario)


def test_a_port_in_use_is_told_by_its_address() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        one.transport.open_port()
        two.transport.bind = one.transport.bind
        with pytest.raises(AddressInUseError, match=one.transport.bind):
            two.transport.open_port()

    run(scenario)


def test_a_port_that_an_outgoing_connection_holds_is_in_use_and_the_advice_shows_it() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as outgoing:
            outgoing.bind(("127.0.0.1", 0))
            outgoing.connect(server.getsockname())
            one.transport.bind = f"127.0.0.1:{outgoing.getsockname()[1]}"
            with pytest.raises(AddressInUseError, match="ss -tnap"):
                one.transport.open_port()

    run(scenario)


def test_a_greeting_that_cannot_be_settled_here_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, where the peer's incarnation must be stored, or an answer of a newer build."""

    async def scenario(one: Peer, two: Peer) -> None:
        failures: list[Exception] = [OSError(errno.ENOSPC, "No space left on device"), ValueError("newer")]
        admit = one.admit

        async def failing(hello: Hello) -> Refusal | None:
            if failures and not hello.to_node_id:  # the answer to a greeting of ours
                raise failures.pop()
            return await admit(hello)

        monkeypatch.setattr(one, "admit", failing)
        await two.start()
        await one.start()
        await one.until(lambda: len(one.up) == 2)
        await two.until(lambda: len(two.up) == 2)
        assert not failures

    run(scenario)


class Visitor:
    """A connection to a Raft port, byte by byte."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Visitor:
        host, port = self._address.split(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def greet(self, greeting: bytes, kind: StreamKind = StreamKind.APPEND) -> None:
        self.say(kind.preamble + framed(greeting))

    async def answer(self) -> pb.HelloReply:
        async with asyncio.timeout(WAIT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "little")
            return pb.HelloReply.FromString(await self._reader.readexactly(size))

    async def ended(self) -> None:
        async with asyncio.timeout(WAIT_S):
            try:
                while await self._reader.read(1 << 16):
                    pass
            except ConnectionError:
                pass


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def greeting_of(peer: Peer, to: Peer) -> bytes:
    return peer.hello(to.id).to_proto().SerializeToString()


async def serve(peer: Peer) -> None:
    """Take connections, and make none."""
    peer.transport.open_port()
    await peer.transport.listen()


def test_nothing_is_heard_from_a_folder_that_is_replaced_while_its_greeting_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        accepted = _Incoming.accepted

        def replaced(incoming: _Incoming, hello: Hello) -> None:
            accepted(incoming, hello)
            one.transport.drop_other_incarnations(two.id, incarnation=2)

        monkeypatch.setattr(_Incoming, "accepted", replaced)
        async with Visitor(one.transport.bind) as visitor:
            visitor.greet(greeting_of(two, one))
            visitor.say(framed(b"an acknowledgement of what is gone"))
            await visitor.ended()
        assert one.frames == []
        assert not one.transport.is_heard(two.id)

    run(scenario)


def test_frames_that_come_with_the_greeting_wait_until_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        admit, judged = one.admit, asyncio.Event()

        async def slow(hello: Hello) -> Refusal | None:
            await judged.wait()
            assert not one.frames
            return await admit(hello)

        monkeypatch.setattr(one, "admit", slow)
        async with Visitor(one.transport.bind) as visitor:
            visitor.greet(greeting_of(two, one))
            for number in range(3):
                visitor.say(framed(b"%d" % number))
            await asyncio.sleep(0)
            judged.set()
            assert not (await visitor.answer()).refusal_kind
            await one.until(lambda: len(one.frames) == 3)
        assert [frame for _, _, frame in one.frames] == [b"0", b"1", b"2"]
        await one.until_not_heard(two.id)

    run(scenario)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1", pb.Hello(standing=cast(Any, 99)).SerializeToString()])
def test_a_greeting_that_cannot_be_read_is_answered_with_the_reason(first: bytes) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        async with Visitor(one.transport.bind) as visitor:
            visitor.greet(first, StreamKind.CONTROL)
            answer = await visitor.answer()
            assert answer.refusal_kind == RefusalKind.MALFORMED.value
            assert "cannot be read" in answer.refusal
            await visitor.ended()

    run(scenario)


def test_a_silent_node_hangs_up() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        one.transport.silence()
        async with Visitor(one.transport.bind) as visitor:
            visitor.greet(greeting_of(two, one))
            await visitor.ended()
        assert not one.transport.is_heard(two.id)

    run(scenario)


def test_a_preamble_in_pieces_is_put_together() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        async with Visitor(one.transport.bind) as visitor:
            for byte in StreamKind.CONTROL.preamble + framed(greeting_of(two, one)):
                visitor.say(bytes((byte,)))
                await asyncio.sleep(0)
            assert not (await visitor.answer()).refusal_kind
            assert one.transport.is_heard(two.id)

    run(scenario)


@pytest.mark.parametrize("extra", [b"", bytes(200_000)])
def test_who_greets_with_more_than_a_greeting_can_have_is_cut_off(extra: bytes) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        async with Visitor(one.transport.bind) as visitor:
            visitor.say(StreamKind.APPEND.preamble + (1 << 30).to_bytes(4, "little") + extra)
            await visitor.ended()
        assert one.frames == []

    run(scenario)


def test_grpc_is_served_on_the_same_port() -> None:
    """What the layer above serves there, and nothing for who asks for anything else."""

    async def scenario(one: Peer, two: Peer) -> None:
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
        async with Visitor(one.transport.bind) as visitor:
            visitor.say(b"GET / HTTP/1.1\r\n\r\n")
            await visitor.ended()

    run(scenario)


def test_the_port_takes_what_there_are_descriptors_for_and_keeps_places_for_peers() -> None:
    assert port_limits(1 << 20) == FrontLimits(256, reserve=96)
    assert port_limits(1_024) == FrontLimits(64, reserve=24)
    assert port_limits(64) == FrontLimits(16, reserve=6)


def test_peers_come_in_however_many_others_hold_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones, such as speak HTTP/2, and streams whose greeting never comes: more of each than there are places."""
    monkeypatch.setattr(transport, "port_limits", lambda descriptors: FrontLimits(16, reserve=4))

    async def scenario(one: Peer, two: Peer) -> None:
        await serve(one)
        async with AsyncExitStack() as stack:
            for first in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", StreamKind.APPEND.preamble, b""):
                for _ in range(20):
                    with suppress(ConnectionError):  # it was let go of before it could speak
                        visitor = await stack.enter_async_context(Visitor(one.transport.bind))
                        visitor.say(first)
            await two.start()
            await two.until(lambda: len(two.up) == 2)
            assert one.transport.is_heard(two.id)

    run(scenario)

"""Streams between nodes: greeting, refusal, frames, the end of a peer (real gRPC on loopback)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from ledgermq.proto import raft_pb2 as pb
from ledgermq.raft.bootstrap import MemberRecord
from ledgermq.raft.config import Member
from ledgermq.raft.errors import AddressInUseError
from ledgermq.raft.hello import Hello, Refusal, RefusalKind, Standing, refusal_of
from ledgermq.raft.out_stream import StreamKind
from ledgermq.raft.transport import Transport
from ledgermq.raft.types import NodeId, Term
from tests.ports import free_port

WAIT_S = 20.0


def take_one(queue: deque[bytes]) -> bytes:
    return queue.popleft()


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

    def on_frame(self, peer: NodeId, kind: StreamKind, frame: bytes) -> None:
        self.frames.append((peer, kind, frame))
        self.changed.set()

    def on_refused(self, peer: NodeId, refusal: Refusal, group_id: int) -> None:
        self.refusals.append(refusal)
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

    asyncio.run(main())


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


def test_a_frame_larger_than_the_usual_grpc_limit_passes() -> None:
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

    with caplog.at_level(logging.ERROR):
        run(scenario, group="g1")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert all("belongs to group" in line for line in lines)


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


def test_a_port_in_use_is_told_by_its_address(capfd: pytest.CaptureFixture[str]) -> None:
    """And gRPC prints no lines of its own for it."""

    async def scenario(one: Peer, two: Peer) -> None:
        one.transport.open_port()
        two.transport.bind = one.transport.bind
        with pytest.raises(AddressInUseError, match=one.transport.bind):
            two.transport.open_port()
        assert one.transport.bind not in capfd.readouterr().err

    run(scenario)


def test_a_port_that_an_outgoing_connection_holds_is_in_use_and_the_advice_shows_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as outgoing:
            outgoing.bind(("127.0.0.1", 0))
            outgoing.connect(server.getsockname())
            one.transport.bind = f"127.0.0.1:{outgoing.getsockname()[1]}"
            with pytest.raises(AddressInUseError, match="ss -tnap"):
                one.transport.open_port()
        assert one.transport.bind not in capfd.readouterr().err

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


class ReplacedWhileGreeting:
    """A stream of a data folder that is replaced while its greeting is answered."""

    def __init__(self, greeting: bytes, on_answer: Callable[[], None]) -> None:
        self._incoming = [greeting, b"an acknowledgement of what is gone"]
        self._on_answer = on_answer

    async def read(self) -> bytes:
        if not self._incoming:
            await asyncio.Event().wait()
        return self._incoming.pop(0)

    async def write(self, answer: bytes) -> None:
        self._on_answer()
        await asyncio.sleep(0)


def test_nothing_is_heard_from_a_folder_that_is_replaced_while_its_greeting_is_answered() -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        def replaced() -> None:
            one.transport.drop_other_incarnations(two.id, incarnation=2)

        greeting = two.hello(one.id).to_proto().SerializeToString()
        async with asyncio.timeout(WAIT_S):
            await one.transport._serve(StreamKind.APPEND, ReplacedWhileGreeting(greeting, replaced))
        assert one.frames == []
        assert not one.transport.is_heard(two.id)

    run(scenario)


class Greeting:
    """A stream that opens with `first` and takes the answer."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self.answers: list[pb.HelloReply] = []

    async def read(self) -> bytes:
        return self._first

    async def write(self, answer: bytes) -> None:
        self.answers.append(pb.HelloReply.FromString(answer))


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1", pb.Hello(standing=cast(Any, 99)).SerializeToString()])
def test_a_greeting_that_cannot_be_read_is_answered_with_the_reason(first: bytes) -> None:
    async def scenario(one: Peer, two: Peer) -> None:
        stream = Greeting(first)
        await one.transport._serve(StreamKind.CONTROL, stream)
        (answer,) = stream.answers
        assert answer.refusal_kind == RefusalKind.MALFORMED.value
        assert "cannot be read" in answer.refusal

    run(scenario)

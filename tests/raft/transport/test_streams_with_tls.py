"""Streams between nodes with TLS: who speaks it with whom, and what is said when it fails."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import uvloop

from ledgermq.raft import peer_tls
from ledgermq.raft.config import Member, StreamLimits
from ledgermq.raft.peer_tls import NO_TLS, PeerTls, load_peer_tls
from ledgermq.raft.ports.counts import Ended
from ledgermq.raft.ports.front import FrontLimits
from ledgermq.raft.transport.out_stream import OutStream
from ledgermq.raft.transport.stream_kind import StreamKind
from ledgermq.raft.types import NodeId
from tests.ports import free_port
from tests.tls import AUTHORITY, files_of

from .test_transport import WAIT_S, Peer, both_up

HOST = "127.0.0.1"


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Return the loop of brokers, or the one that a test asks for."""
    with asyncio.Runner(loop_factory=getattr(request, "param", uvloop.new_event_loop)) as made:
        yield made


def tls_of(value: str, name: str = "node", host: str = HOST) -> PeerTls:
    """Return what a node with that setting of peer_tls has."""
    if value == "plaintext":
        return NO_TLS
    return load_peer_tls(*files_of(name), AUTHORITY, host, takes_plaintext=value == "both")


Make = Callable[[PeerTls, PeerTls], tuple[Peer, Peer]]


@pytest.fixture
def make(runner: asyncio.Runner) -> Iterator[Make]:
    """Return a function that makes two peers with this TLS each."""
    made: list[Peer] = []

    def two_peers(first: PeerTls, second: PeerTls) -> tuple[Peer, Peer]:
        members = tuple(Member(NodeId(n), f"{HOST}:{free_port()}") for n in ("n1", "n2"))
        made.extend((Peer("n1", members, StreamLimits(), first), Peer("n2", members, StreamLimits(), second)))
        return made[0], made[1]

    yield two_peers
    for peer in made:
        runner.run(peer.transport.close())


def has_frames(peer: Peer, count: int) -> bool:
    return len(peer.frames) == count


def is_secured(stream: OutStream[bytes]) -> bool:
    assert stream._stream is not None
    transport = getattr(stream._stream.protocol, "transport")  # noqa: B009
    return transport.get_extra_info("sslcontext") is not None


async def said(caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Wait until all these words are in the log."""
    async with asyncio.timeout(WAIT_S):
        while not all(word in caplog.text for word in words):  # noqa: ASYNC110 (a log has no event)
            await asyncio.sleep(0.01)


async def has_open(peer: Peer, count: int) -> None:
    """Wait until the Raft port counts so many connections."""
    async with asyncio.timeout(WAIT_S):
        while peer.transport._counts.open != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "runner", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"], indirect=True
)
@pytest.mark.parametrize(
    ("first", "second", "secured"),
    [
        ("plaintext", "both", False),
        ("both", "both", True),
        ("both", "tls", True),
        ("tls", "tls", True),
    ],
)
async def test_neighbouring_settings_connect_with_tls_where_both_have_it(
    make: Make, caplog: pytest.LogCaptureFixture, first: str, second: str, secured: bool
) -> None:
    one, two = make(tls_of(first), tls_of(second))
    await both_up(one, two)
    for peer, other in ((one, two), (two, one)):
        link = peer.transport.links[other.id]
        assert is_secured(link.control) is is_secured(link.append) is secured
        link.append.put(bytes(9 << 20))
        link.control.put(b"small")
        await other.until(partial(has_frames, other, 2))
        assert sorted(len(frame) for *_, frame in other.frames) == [5, 9 << 20]
    assert ("no TLS" in caplog.text) is not secured


async def test_plaintext_and_tls_do_not_meet_and_both_sides_say_what_to_set(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = make(tls_of("plaintext"), tls_of("tls"))
    await one.start()
    await two.start()
    await said(
        caplog,
        "peer=n2 reason='it takes TLS only'",
        "peer=127.0.0.1: plaintext on a Raft port that takes TLS only (peer_tls = tls): set peer_tls",
        "peer=n1 reason='it does not go on with TLS'",
        "peer=127.0.0.1: TLS on a Raft port without TLS (peer_tls = plaintext on this node): set peer_tls",
    )
    assert not one.up and not two.up
    assert caplog.text.count("it takes TLS only") == caplog.text.count("TLS on a Raft port without TLS") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stranger", ("its certificate is not of an authority in peer_tls_ca", "peer_tls_certificate there")),
        ("expired", ("its certificate has expired", "renew peer_tls_certificate on that node")),
        (
            "elsewhere",
            ("its certificate is not for 127.0.0.1, but for n7.example.org, 192.0.2.7", "subjectAltName"),
        ),
    ],
)
@pytest.mark.parametrize("value", ["tls", "both"])
async def test_a_certificate_that_does_not_fit_is_refused_by_name_and_both_goes_on_without(
    make: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    name: str,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setattr(peer_tls, "_check_own", lambda *_: None)
    one, two = make(tls_of(value), tls_of(value, name))
    if value == "both":
        await both_up(one, two)
        assert not is_secured(one.transport.links[two.id].control)
    else:
        await one.start()
        await two.start()
    await said(caplog, "no TLS with the peer peer=n2", *words)
    if value == "tls":
        assert not one.up
        if name != "elsewhere":  # that one may call
            await said(caplog, "TLS refused, its certificate")
            assert not two.up


async def test_who_has_no_certificate_does_not_get_in(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    secured = tls_of("tls")
    one, _ = make(secured, secured)
    await one.start()
    bare = ssl.create_default_context(cafile=str(AUTHORITY))
    bare.set_alpn_protocols(["h2"])
    host, port = one.transport.bind.split(":")
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=bare)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
    await said(caplog, "it shows no certificate")


@pytest.mark.parametrize("value", ["both", "tls"])
async def test_plain_frames_of_the_version_before_are_taken_by_both_alone(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    one, two = make(tls_of(value), NO_TLS)
    one.transport.open_port()
    await one.transport.listen(one)
    control = two.transport.links[one.id].control
    monkeypatch.setattr(control, "_call", control._former)
    await two.start()
    if value == "both":
        await two.until(lambda: (one.id, StreamKind.CONTROL) in two.up)
        return
    await said(caplog, "plaintext on a Raft port that takes TLS only")
    assert not two.up


@asynccontextmanager
async def half_hello(address: str) -> AsyncIterator[None]:
    """Hold a connection open that has said the begin of a TLS hello."""
    host, port = address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03\x01\x00\xc8\x01\x00")
    try:
        yield
    finally:
        writer.close()


async def test_handshakes_that_stand_still_make_room_and_accepted_streams_take_none(make: Make) -> None:
    secured = tls_of("tls")
    one, two = make(secured, secured)
    for peer in (one, two):
        peer.transport._port_limits = FrontLimits(4, reserve=4)
    await both_up(one, two)
    await has_open(one, 0)
    async with AsyncExitStack() as strangers:
        for _ in range(4):
            await strangers.enter_async_context(half_hello(one.transport.bind))
        await has_open(one, 4)
        one.transport.end_incoming(two.id)
        await two.until(lambda: len(two.up) < 2)
        await two.until(lambda: len(two.up) == 2)
        assert one.transport._counts.ended[Ended.MADE_ROOM]

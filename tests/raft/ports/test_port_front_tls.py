"""TLS through a front: which connections get one of the few places at the server, and when.

The server behind is OpenSSL's, through asyncio. Time limits do not matter here unless a test says so.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from ledgermq.raft.ports import front as port_front
from ledgermq.raft.ports.counts import Ended, Refused
from ledgermq.raft.ports.front import FrontLimits, PortVerdict
from tests.tls import CERTIFICATE, KEY

from .test_port_front_limits import HERE, Echo, Port

pytestmark = pytest.mark.usefixtures("runner")
#: More than the server works on at once.
MANY = 5 * port_front.TLS_HELLOS_AT_ONCE


def judge(connection: asyncio.Transport, first: bytes) -> PortVerdict:
    return PortVerdict.PASS_ON_TLS if first[0] == 0x16 else PortVerdict.PASS_ON


@pytest.fixture(autouse=True)
def _no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_front, "FIRST_BYTES_TIMEOUT_S", 3600.0)


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def serving() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


@asynccontextmanager
async def opened(limits: FrontLimits | None = None, *, answering: bool = True) -> AsyncIterator[Port]:
    """A port behind which TLS is served, or never answered."""
    port = Port(limits or FrontLimits(), judge)
    path = port.front.tls_address.removeprefix("unix:")
    protocol, context = (Echo, serving()) if answering else (asyncio.Protocol, None)
    behind = await asyncio.get_running_loop().create_unix_server(protocol, path, ssl=context)
    await port.open()
    try:
        yield port
    finally:
        await port.close()
        behind.close()


class Client:
    """A TLS client whose bytes the test sends as it likes."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or trusting()).wrap_bio(
            self.incoming, self._outgoing, server_hostname="localhost"
        )
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        self.hello = self._outgoing.read()

    async def says(self, port: Port, hello: bytes, text: bytes) -> bytes:
        """Open with `hello`, finish the handshake and send `text`. Returns the answer."""
        reader, writer = await asyncio.open_connection(HERE, port.number)
        to_send, answer, is_done = hello, b"", False
        while not answer:
            writer.write(to_send)
            self.incoming.write(await reader.read(1 << 16))
            with suppress(ssl.SSLWantReadError):
                if not is_done:
                    self.tls.do_handshake()
                    is_done = True
                    self.tls.write(text)
                answer = self.tls.read(100)
            to_send = self._outgoing.read()
        writer.close()
        return answer


def in_records_of(size: int, hello: bytes) -> bytes:
    """Spread the message of a hello, which is one record, over records of `size` bytes."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2) + piece for piece in pieces)


def halves(hello: bytes) -> dict[str, bytes]:
    size = len(hello) // 2
    return {
        "half a record": hello[:size],
        "the first of two records": in_records_of(size, hello)[: 5 + size],
        "records of one byte": in_records_of(1, hello)[: 6 * size],
        "half a message that is called a whole record": hello[:3] + (size - 5).to_bytes(2) + hello[5:size],
    }


@pytest.mark.parametrize("half", halves(bytes(100)))
async def test_hellos_that_are_not_whole_hold_no_place_at_the_server(half: str) -> None:
    first = halves(Client().hello)[half]
    async with opened() as port:
        for _ in range(MANY):
            slow = await port.call()
            slow._writer.write(first)
        await port.until(lambda: len(port.front._greeting) == MANY)
        good = await port.call(trusting())
        assert await good.says(b"hello") == b"hello"
        assert port.counts.open == MANY + 1, "they are all there"


@pytest.mark.parametrize("record", [1, 7, 100])
async def test_a_hello_in_small_records_is_served(record: int) -> None:
    async with opened() as port:
        client = Client()
        assert await client.says(port, in_records_of(record, client.hello), b"hello") == b"hello"


async def test_a_hello_of_more_than_a_record_is_served() -> None:
    async with opened() as port:
        wordy = trusting()
        wordy.set_alpn_protocols([f"{number:0200}" for number in range(100)])
        client = Client(wordy)
        assert len(client.hello) > 20_000
        assert await client.says(port, client.hello, b"hello") == b"hello"


async def test_what_begins_like_a_hello_and_is_none_is_closed() -> None:
    hello = Client().hello
    async with opened() as port:
        for first in (b"\x16\x02", b"\x16\x03\x01\0\x01\x02", in_records_of(9, hello)[:14] + b"\x17"):
            caller = await port.call()
            assert await caller.says(first) == b""
        assert port.counts.ended == {Ended.NO_HELLO: 3}


async def test_application_data_before_the_answer_ends_no_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client could escape its time limit and keep a place for ever."""
    monkeypatch.setattr(port_front, "FIRST_BYTES_TIMEOUT_S", 0.1)

    async with opened(answering=False) as port:
        hello = Client().hello
        callers = [await port.call() for _ in range(MANY)]
        for caller in callers:
            caller._writer.write(hello + b"\x17\x03\x03\0\x05early")
        for caller in callers:
            assert await caller.is_closed()
        assert port.counts.ended == {Ended.HANDSHAKE: MANY}


async def test_when_much_is_held_the_oldest_hello_that_is_not_whole_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_front, "MAX_HELD_BYTES", 10_000)
    first = b"\x16\x03\x01\x40\0\x01\0\x3f\xfc" + bytes(4_000)  # of 16 KiB

    async with opened() as port:
        slow = []
        for number in range(3):
            slow.append(await port.call())
            slow[-1]._writer.write(first)
            await port.until(lambda: port.front._held > 4_000 * min(number + 1, 2))  # noqa: B023
        assert await slow[0].is_closed()
        assert port.counts.ended == {Ended.MADE_ROOM: 1}
        await port.until(lambda: len(port.front._greeting) == 2)
        good = await port.call(trusting())
        assert await good.says(b"hello") == b"hello"
        for each in slow:
            each.leave()
        await port.until(lambda: port.front._held == 0)


async def test_when_what_waits_for_the_server_is_too_much_the_next_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_front, "MAX_HELD_BYTES", 10_000)
    monkeypatch.setattr(port_front, "TLS_HELLOS_AT_ONCE", 1)
    whole = b"\x16\x03\x01\x10\0\x01\0\x0f\xfc" + bytes(4_092)

    async with opened(answering=False) as port:
        for held in (0, 4_101, 8_202):  # the first has the only place
            caller = await port.call()
            caller._writer.write(whole)
            await port.until(lambda: port.front._hellos.locked() and port.front._held == held)  # noqa: B023
        assert await (await port.call()).says(whole) == b""
        assert port.counts.refused == {Refused.BUSY: 1}

"""Unencrypted TLS records, on bytes made by OpenSSL."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest

from ledgermq.raft.ports.tls_records import MAX_HELLO_SIZE, MAX_RECORD_SIZE, ClientRecords, NoHelloError
from tests.tls import CERTIFICATE, KEY


class Handshake:
    """A client and a server connected through memory. `sent` is everything that the client sent."""

    def __init__(self, version: ssl.TLSVersion) -> None:
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        context.check_hostname = False
        context.maximum_version = version
        serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving.load_cert_chain(CERTIFICATE, KEY)
        self._to_client, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._from_client, self._from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = context.wrap_bio(self._to_client, self._from_client)
        self._server = serving.wrap_bio(self._to_server, self._from_server, server_side=True)
        self.sent: list[bytes] = []

    def step(self) -> None:
        """Let the client proceed, then the server."""
        for side, out, into in (
            (self.client, self._from_client, self._to_server),
            (self._server, self._from_server, self._to_client),
        ):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            data = out.read()
            if side is self.client:
                self.sent.append(data)
            into.write(data)

    def say(self, text: bytes) -> None:
        self.client.write(text)
        self.sent.append(self._from_client.read())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_the_end_of_a_handshake_is_seen_in_whatever_pieces_it_comes(
    version: ssl.TLSVersion, piece: int
) -> None:
    talk = Handshake(version)
    talk.step()
    records = ClientRecords()

    def feed(data: bytes) -> bool:
        for at in range(0, len(data), piece):
            records.feed(data[at : at + piece])
        return records.has_ended

    assert not feed(talk.sent[0]), "a hello is not the end"
    assert records.is_hello_whole
    talk.step()
    records.is_answered = True
    talk.say(b"a request")
    assert feed(b"".join(talk.sent[1:]))


def first_hello() -> bytes:
    talk = Handshake(ssl.TLSVersion.TLSv1_3)
    talk.step()
    return talk.sent[0]


def in_records_of(size: int, hello: bytes) -> bytes:
    """Spread the message of a hello, which is one record, over records of `size` bytes."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2) + piece for piece in pieces)


def made_hello(size: int) -> bytes:
    """Return the start of a hello with a message of that many bytes, in records of 16 KiB."""
    message = b"\x01" + (size - 4).to_bytes(3) + bytes(size - 4)
    return in_records_of(16 << 10, b"\x16\x03\x01\0\0" + message)


@pytest.mark.parametrize("record", [1, 3, 100, 16 << 10])
@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_a_hello_is_whole_when_its_message_is_however_many_records_it_has(record: int, piece: int) -> None:
    hello = in_records_of(record, first_hello())
    records = ClientRecords()
    for at in range(0, len(hello) - 1, piece):
        records.feed(hello[at : min(at + piece, len(hello) - 1)])
        assert not records.is_hello_whole
    records.feed(hello[-1:])
    assert records.is_hello_whole
    records.feed(b"whatever comes next is the server's to judge")
    assert not records.has_ended


def test_a_hello_may_be_longer_than_a_record_and_has_a_limit() -> None:
    for size in (17 << 10, MAX_HELLO_SIZE - 15):
        records = ClientRecords()
        records.feed(made_hello(size))
        assert records.is_hello_whole
    with pytest.raises(NoHelloError):
        ClientRecords().feed(made_hello(MAX_HELLO_SIZE + 1)[:9])  # its header announces its length
    short = in_records_of(1, made_hello(MAX_HELLO_SIZE // 4))  # six times as long with the headers
    records = ClientRecords()
    records.feed(short[:MAX_HELLO_SIZE])
    with pytest.raises(NoHelloError):
        records.feed(short[MAX_HELLO_SIZE:])


@pytest.mark.parametrize(
    "first",
    [
        b"PRI * HTTP/2.0",
        b"\x16\x02",
        b"\x16\x03\x01" + (MAX_RECORD_SIZE + 1).to_bytes(2),
        b"\x16\x03\x01\0\0",  # an empty record
        b"\x16\x03\x01\0\x01\x02",  # another message
        b"\x16\x03\x01\0\x01\x01\x17",  # application data in the middle of the message
        b"\x16\x03\x01\0\x01\x01\x15",  # an alert there
    ],
)
def test_what_begins_no_handshake_is_told_at_once(first: bytes) -> None:
    for pieces in ((first,), (bytes((each,)) for each in first)):
        records = ClientRecords()
        with pytest.raises(NoHelloError):
            for piece in pieces:
                records.feed(piece)


def test_application_data_before_the_server_answered_is_not_the_end() -> None:
    """Early data, or a lying client: only data after the answer can end a handshake."""
    records = ClientRecords()
    early = b"\x17\x03\x03\0\x02hi"
    records.feed(first_hello() + early)
    assert not records.has_ended
    records.is_answered = True
    records.feed(early)
    assert records.has_ended

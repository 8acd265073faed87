"""What of TLS is read in the clear, on bytes that OpenSSL makes."""

from __future__ import annotations

import ssl
from contextlib import suppress

import pytest

from ledgermq.raft.tls_records import MAX_RECORD_SIZE, ClientRecords, is_whole_hello
from tests.tls import CERTIFICATE, KEY


class Handshake:
    """A client and a server that talk through memory; `sent` is all that the client said."""

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
        """Let the client go on, then the server."""
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
    talk.step()
    talk.say(b"a request")
    assert feed(b"".join(talk.sent[1:]))


def test_a_hello_is_whole_when_its_first_record_is() -> None:
    talk = Handshake(ssl.TLSVersion.TLSv1_3)
    talk.step()
    hello = talk.sent[0]
    assert [is_whole_hello(hello[:size]) for size in (1, 4, 5, len(hello) - 1)] == [False] * 4
    assert is_whole_hello(hello) is True
    assert is_whole_hello(hello + b"more") is True


@pytest.mark.parametrize(
    "first", [b"PRI * HTTP/2.0", b"\x16\x02", b"\x16\x03\x01" + (MAX_RECORD_SIZE + 1).to_bytes(2)]
)
def test_what_begins_no_handshake_is_told_at_once(first: bytes) -> None:
    assert is_whole_hello(first) is None

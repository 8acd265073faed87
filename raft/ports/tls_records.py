"""Parser of unencrypted TLS: when a client's hello is complete, and when its handshake has ended.

Whether a port wants TLS at all is decided by `broker/ports/tls_judge.py`.

Pure. A record begins with five bytes: type, version (2), length (2). The hello is the first handshake
message: type (1), length (3), contents. It may be spread over any number of records. A client's records
belong to the handshake until the first one of type application data. In TLS 1.3 that record contains
the end of the handshake; in older versions it comes after the end. A client that sends such a record before
the server has answered (early data, or a lie) has not ended the handshake. Anything false after that fails
when the server decrypts it.
"""

from __future__ import annotations

from typing import Final

HANDSHAKE: Final = 0x16
_APPLICATION_DATA: Final = 0x17
_CLIENT_HELLO: Final = 1
_HEADER_SIZE: Final = 5
_MESSAGE_HEADER_SIZE: Final = 4
#: Larger is not a record: 16 KiB, plus what encryption may add.
MAX_RECORD_SIZE: Final = (16 << 10) + 2048
#: Maximum size of a hello including its record headers. Real ones have 0.2 to 2 KiB.
MAX_HELLO_SIZE: Final = 32 << 10


class NoHelloError(ValueError):
    """The bytes of a client are not a TLS hello, or not a plausible one."""


class ClientRecords:
    """Follows what a client sends. The caller sets `is_answered` once the server has replied."""

    __slots__ = ("_header", "_hello_size", "_message_header", "_rest", "_size", "has_ended", "is_answered",
                 "is_hello_whole")  # fmt: skip

    def __init__(self) -> None:
        self.is_hello_whole = self.is_answered = self.has_ended = False
        self._header = bytearray()
        self._rest = 0  # bytes of the current record still to come
        # The following fields are used until the hello is complete.
        self._message_header = bytearray()
        self._hello_size = 0  # bytes of the hello received
        self._size = 0  # the same including record headers

    def feed(self, data: bytes) -> None:
        """Process the next bytes. Raises: NoHelloError (do not pass this connection on)."""
        at = 0
        while at < len(data) and not self.has_ended:
            step = min(self._rest or _HEADER_SIZE - len(self._header), len(data) - at)
            piece = data[at : at + step]
            at += step
            if self._rest:
                self._rest -= step
                if not self.is_hello_whole:
                    self._take_of_hello(piece)
            else:
                self._take_of_header(piece)

    def _take_of_header(self, piece: bytes) -> None:
        header = self._header
        header += piece
        is_there = len(header) == _HEADER_SIZE
        size = int.from_bytes(header[3:5]) if is_there else 1
        if not self.is_hello_whole:
            is_other = header[0] != HANDSHAKE or (len(header) > 1 and header[1] != 3)
            if is_other or not 0 < size <= MAX_RECORD_SIZE:
                raise NoHelloError
            self._count(len(piece))
        if is_there:
            self.has_ended = self.is_answered and header[0] == _APPLICATION_DATA
            self._rest = size
            header.clear()

    def _take_of_hello(self, piece: bytes) -> None:
        """Process handshake bytes. A record may hold more than the hello; the server judges the rest."""
        header = self._message_header
        header += piece[: _MESSAGE_HEADER_SIZE - len(header)]
        self._hello_size += len(piece)
        needed = _MESSAGE_HEADER_SIZE + int.from_bytes(header[1:])
        is_there = len(header) == _MESSAGE_HEADER_SIZE
        if header[0] != _CLIENT_HELLO or (is_there and needed > MAX_HELLO_SIZE):
            raise NoHelloError
        self.is_hello_whole = is_there and self._hello_size >= needed
        if not self.is_hello_whole:
            self._count(len(piece))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MAX_HELLO_SIZE:
            raise NoHelloError

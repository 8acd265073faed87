"""As much of TLS as stands in the clear: whether a hello is whole, and whether a client has ended its handshake.

Pure. A record begins with five bytes: type, version (2), length (2). A client's records are of the handshake until its
first one of type application data: in TLS 1.3 that carries the end of its handshake, before that version it comes behind.
A client that lies is found out by whoever decrypts.
"""

from __future__ import annotations

from typing import Final

HANDSHAKE: Final = 0x16
_APPLICATION_DATA: Final = 0x17
_HEADER_SIZE: Final = 5
#: More is no record: 16 KiB, and what encryption may add.
MAX_RECORD_SIZE: Final = (16 << 10) + 2048


def is_whole_hello(first: bytes) -> bool | None:
    """Tell whether the first record is there; None: these bytes begin no TLS handshake."""
    if first[:1] != bytes((HANDSHAKE,)) or (len(first) > 1 and first[1] != 3):
        return None
    if len(first) < _HEADER_SIZE:
        return False
    size = int.from_bytes(first[3:5])
    return None if size > MAX_RECORD_SIZE else len(first) >= _HEADER_SIZE + size


class ClientRecords:
    """Follows what a client sends, in whatever pieces, until its handshake has ended."""

    __slots__ = ("_header", "_rest", "has_ended")

    def __init__(self) -> None:
        self.has_ended = False
        self._header = bytearray()
        self._rest = 0  # bytes of the present record that are still to come

    def feed(self, data: bytes) -> bool:
        """Take what came next; return whether the client has ended its handshake."""
        at = 0
        while at < len(data) and not self.has_ended:
            if self._rest:
                step = min(self._rest, len(data) - at)
                self._rest -= step
                at += step
                continue
            step = min(_HEADER_SIZE - len(self._header), len(data) - at)
            self._header += data[at : at + step]
            at += step
            if len(self._header) == _HEADER_SIZE:
                self.has_ended = self._header[0] == _APPLICATION_DATA
                self._rest = int.from_bytes(self._header[3:5])
                self._header.clear()
        return self.has_ended

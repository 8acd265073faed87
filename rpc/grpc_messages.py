"""Messages on a stream: one flag, four bytes of length, and so many bytes.

Owns: cutting of DATA into messages, compression. Must not: know frames.

A large message is received straight into its own memory (`direct`): the reader of the socket asks where
the next bytes go. That memory grows with what was received, never with what a prefix claims. Nothing is
decompressed beyond the largest message.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Final

import grpc

Buffer = bytes | bytearray | memoryview

PREFIX: Final = struct.Struct(">BI")
_PREFIX_SIZE: Final = PREFIX.size
#: Compressed messages of a smaller size would not become smaller.
_WORTH_COMPRESSING: Final = 256
_GZIP_LEVEL: Final = 1
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
ENCODINGS: Final = (b"identity", b"gzip")


class GrpcMessageError(Exception):
    """A message that is refused. `code` is the status that says why."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class MessageCutter:
    """Cuts the DATA of one stream into messages, in order."""

    __slots__ = ("_flag", "_head", "_memory", "begun", "encoding", "filled", "max_size", "room", "size")

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.encoding = b"identity"  # of the peer's messages, from its header fields
        self.size = self.filled = 0  # of the incomplete message
        self.room = 0  # bytes of its memory
        self.begun = 0  # messages that were incomplete at some time, this one included
        self._flag = 0
        self._head = b""  # incomplete prefix
        self._memory: memoryview | None = None  # of the incomplete message

    @property
    def is_between(self) -> bool:
        """Whether the stream may end here."""
        return self._memory is None and not self._head

    @property
    def missing(self) -> int:
        """Bytes that the incomplete message still needs."""
        return self.size - self.filled

    def feed(self, data: memoryview, deliver: Callable[[Buffer], None], first_piece: int) -> None:
        """Take received bytes and deliver the messages that they complete.

        `first_piece`: first memory in bytes of a message that is not complete in `data`.
        Raises: GrpcMessageError.
        """
        position, end = 0, len(data)
        while position < end:
            if self._memory is not None:
                target = self.direct()
                count = min(len(target), end - position)
                target[:count] = data[position : position + count]
                position += count
                self.advance(count, deliver)
                continue
            if self._head or end - position < _PREFIX_SIZE:
                count = min(_PREFIX_SIZE - len(self._head), end - position)
                self._head += data[position : position + count]
                position += count
                if len(self._head) < _PREFIX_SIZE:
                    return
                flag, size = PREFIX.unpack(self._head)
                self._head = b""
            else:
                flag, size = PREFIX.unpack_from(data, position)
                position += _PREFIX_SIZE
            self._check(flag, size)
            if size <= end - position:
                deliver(self._opened(flag, data[position : position + size]))
                position += size
            else:
                self.begin(flag, size, first_piece, data[position:])
                return

    def begin(self, flag: int, size: int, first_piece: int, data: memoryview) -> None:
        """Begin a message of which `data` is there."""
        self._flag, self.size, self.filled = flag, size, len(data)
        self.begun += 1
        self.room = min(size, max(first_piece, len(data)))
        self._memory = memoryview(bytearray(self.room))
        self._memory[: len(data)] = data

    def direct(self) -> memoryview:
        """Return where the next bytes of the incomplete message go: at least one, at most what is missing."""
        memory = self._memory
        assert memory is not None
        if self.filled == len(memory):
            self.room = min(self.size, 2 * self.filled)
            larger = memoryview(bytearray(self.room))
            larger[: self.filled] = memory
            memory = self._memory = larger
        return memory[self.filled :]

    def advance(self, count: int, deliver: Callable[[Buffer], None]) -> None:
        """Count bytes that were written to `direct()`. Raises: GrpcMessageError."""
        self.filled += count
        if self.filled == self.size:
            memory, self._memory = self._memory, None
            self.size = self.filled = self.room = 0
            assert memory is not None
            deliver(memory if not self._flag else self._opened(self._flag, memory))

    def _check(self, flag: int, size: int) -> None:
        if flag > 1:
            raise GrpcMessageError(grpc.StatusCode.INTERNAL, f"a message begins with the flag {flag}")
        if flag and self.encoding == b"identity":
            raise GrpcMessageError(
                grpc.StatusCode.INTERNAL, "a message is compressed, but the header names no grpc-encoding"
            )
        if size > self.max_size:
            raise GrpcMessageError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"Received message larger than max ({size} vs. {self.max_size})",
            )

    def _opened(self, flag: int, data: memoryview) -> bytes:
        return decompressed(data, self.max_size) if flag else bytes(data)


def decompressed(data: Buffer, max_size: int) -> bytes:
    """Return the contents of gzip data of at most `max_size` bytes. Raises: GrpcMessageError."""
    inflater = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = inflater.decompress(data, max_size + 1)
    except zlib.error as error:
        raise GrpcMessageError(grpc.StatusCode.INTERNAL, f"a message is no gzip data: {error}") from None
    if len(plain) > max_size:
        raise GrpcMessageError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"Received message larger than max (more than {max_size} after decompression)",
        )
    if not inflater.eof:
        raise GrpcMessageError(grpc.StatusCode.INTERNAL, "a compressed message is cut off")
    return plain


def framed(message: Buffer, compressed: bool) -> tuple[bytes, Buffer]:
    """Return (prefix, body) of a message; gzip only where it makes the message smaller."""
    if compressed and len(message) >= _WORTH_COMPRESSING:
        body = gzip.compress(message, _GZIP_LEVEL, mtime=0)
        if len(body) < len(message):
            return PREFIX.pack(1, len(body)), body
    return PREFIX.pack(0, len(message)), message

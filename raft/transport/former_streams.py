"""Streams of the version before: plain frames on a TCP connection of their own, without gRPC.

Owns: how such a connection opens and greets. Must not: be used towards a peer that takes calls. For rolling
updates only; the next release drops this file, with `frame_stream.py` and `checked_frame.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer

from .frame_stream import FrameStream
from .hello import Hello, encode_greeting, encode_reply, frames_with, read_greeting, read_reply
from .stream_kind import StreamKind

#: Differs from the start of HTTP/2.
_PREAMBLE: Final = b"LMQR\x01"
PREAMBLE_SIZE: Final = len(_PREAMBLE) + 1


def preamble_of(kind: StreamKind) -> bytes:
    """Return the bytes that open a connection: a name, the version of this framing, the kind."""
    return _PREAMBLE + kind.value[:1].encode()


class FormerIncoming(FrameStream):
    """An `IncomingStream` of an older peer."""

    def read_greeting(self, frame: Buffer) -> Hello:
        return read_greeting(frame)

    def answer(self, reply: pb.HelloReply, theirs: Hello | None) -> None:
        self.send((encode_reply(reply, frames_with(theirs) if theirs is not None else 0),))
        if reply.refusal_kind:
            self.close()

    def begin(self, theirs: Hello) -> None:
        if frames_with(theirs):
            self.check_frames(reports=True)
        self.resume()


class FormerOutgoing(FrameStream):
    """An `OutgoingStream` to an older peer."""

    is_unknown_there = False

    @property
    def protocol(self) -> FrameStream:
        return self

    def greet(self, kind: StreamKind, hello: Hello) -> None:
        self.send_preamble(preamble_of(kind))
        super().send((encode_greeting(hello),))

    def read_reply(self, frame: Buffer) -> pb.HelloReply:
        return read_reply(frame)

    def begin(self, reply: pb.HelloReply) -> None:
        if reply.frames:
            self.check_frames(reports=False)

    def read_arrived(self, frame: Buffer) -> int:
        return int.from_bytes(frame, "little")

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write one frame. The checksum, its last part, has another place in these frames."""
        super().send(parts[:-1])

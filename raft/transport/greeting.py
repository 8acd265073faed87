"""Greeting: the first frame in each direction on a stream between nodes, a Hello and the reply to it. Pure.

Both end with a checksum over everything before it: a flipped bit in an incarnation could make a node give up
an intact folder. Builds with plain frames neither write nor read the checksum. A sender that announces
checked frames, or whose frame ends like this, must have a valid one. So no single bit flip makes a greeting
look like that of an older build.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer

from ..errors import DamagedFrameError
from .checked_frame import CHECKED_FRAMES
from .hello import Hello, Refusal

#: Far more than any greeting or reply needs.
MAX_GREETING_SIZE: Final = 1 << 16
_CHECKSUM_TAG: Final = b"\x95\x01"  # tag of the last field of both: 18, fixed32


def encode_greeting(hello: Hello) -> bytes:
    """Return the first frame of a stream."""
    return _sealed(hello.to_proto().SerializeToString())


def encode_reply(hello: Hello, refusal: Refusal | None, frames: int) -> bytes:
    """Return the reply to a greeting. `frames`: the kind that this node reads from the stream from now on."""
    reply = pb.HelloReply(hello=hello.to_proto(), frames=frames)
    if refusal is not None:
        reply.refusal, reply.refusal_kind = refusal.text, refusal.kind.value
    return _sealed(reply.SerializeToString())


def read_greeting(frame: Buffer) -> Hello:
    """Decode the first frame of a stream. Raises: DamagedFrameError, ValueError, DecodeError."""
    data = bytes(frame)
    is_sealed = _check_seal(data)
    hello = Hello.from_proto(pb.Hello.FromString(data))
    _demand(is_sealed or not hello.frames)
    return hello


def read_reply(frame: Buffer) -> pb.HelloReply:
    """Decode a reply without looking into its Hello. Raises: DamagedFrameError, DecodeError."""
    data = bytes(frame)
    is_sealed = _check_seal(data)
    reply = pb.HelloReply.FromString(data)
    _demand(is_sealed or not (reply.frames or reply.hello.frames))
    return reply


def frames_with(hello: Hello) -> int:
    """Return the kind of frames that this build uses with the sender of a greeting."""
    return min(hello.frames, CHECKED_FRAMES)


def _sealed(data: bytes) -> bytes:
    data += _CHECKSUM_TAG
    return data + crc32c(data).to_bytes(4, "little")


def _check_seal(data: bytes) -> bool:
    """Return whether there is a checksum. Raises: DamagedFrameError (it does not match)."""
    is_sealed = data[-6:-4] == _CHECKSUM_TAG
    _demand(not is_sealed or crc32c(data[:-4]) == int.from_bytes(data[-4:], "little"))
    return is_sealed


def _demand(holds: bool) -> None:
    if not holds:
        raise DamagedFrameError("a greeting was changed on the way")

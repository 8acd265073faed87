"""The two streams to a peer, and what their ends look like to the rest of this room.

Owns: these names. Must not: do anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.entry import Buffer

from ..errors import DamagedFrameError
from .hello import Hello

#: Delay in seconds before received bytes are reported, so that one report covers all of them.
REPORT_AFTER_S: Final = 0.025


class StreamKind(Enum):
    """The two streams to a peer."""

    CONTROL = "Control"
    APPEND = "Append"

    @property
    def method(self) -> str:
        """Name of the call."""
        return f"/ledgermq.v1.RaftService/{self.value}"


class IncomingStream(Protocol):
    """A stream that a peer opened. The first frame is its greeting. Nothing is delivered after an end."""

    max_frame_size: int  # in bytes; a larger one ends the stream

    @property
    def is_open(self) -> bool: ...

    @property
    def is_damaged(self) -> bool:
        """Whether it was ended because of damage."""

    def read_greeting(self, frame: Buffer) -> Hello:
        """Decode the first frame. Raises: DamagedFrameError, ValueError, DecodeError."""

    def answer(self, reply: pb.HelloReply, theirs: Hello | None) -> None:
        """Reply to the greeting; None: it could not be read. A refusal ends the stream."""

    def begin(self, theirs: Hello) -> None:
        """Deliver frames, and report how many bytes have arrived, from now on."""

    def hold(self) -> None:
        """Deliver nothing until `begin`."""

    def abort(self, reason: str = "") -> None:
        """End the stream at once."""

    def end_damaged(self, error: DamagedFrameError) -> None:
        """End the stream at once because of damage."""


class OutgoingStream(Protocol):
    """A stream to a peer. Frames from it are the reply to the greeting, then reports of received bytes."""

    @property
    def sent(self) -> int:
        """Bytes since `begin`."""

    @property
    def may_send(self) -> bool:
        """Whether it is open, and most of what was sent has left the write buffer."""

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        """Protocol of its connection."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_damaged(self) -> bool:
        """Whether it was ended because of damage."""

    @property
    def is_unknown_there(self) -> bool:
        """Whether the peer does not have such streams: it runs an older build."""

    def greet(self, kind: StreamKind, hello: Hello) -> None:
        """Send the greeting, when the connection is made."""

    def read_reply(self, frame: Buffer) -> pb.HelloReply:
        """Decode the first frame. Raises: DamagedFrameError, ValueError, DecodeError."""

    def begin(self, reply: pb.HelloReply) -> None:
        """Send frames from now on, and count their bytes."""

    def read_arrived(self, frame: Buffer) -> int:
        """Decode a report. Raises: ValueError, DecodeError."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write one frame. It is dropped if the stream has ended."""

    def abort(self, reason: str = "") -> None:
        """End the stream at once."""

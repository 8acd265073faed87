"""Bounds of what a peer may make this side keep or do, each with its reason.

Owns: the numbers. Must not: enforce them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Encoded bytes of one header block over all its frames. gRPC peers refuse more than 16 KiB of metadata.
MAX_HEADER_BLOCK: Final = 16 << 10
#: Size of the header list (RFC 9113, 6.5.2: names, values and 32 bytes each): as many as grpcio accepts.
MAX_HEADER_LIST: Final = 16 << 10
#: CONTINUATION frames of one block: a block of MAX_HEADER_BLOCK needs none. Empty ones cost nothing to send.
MAX_CONTINUATIONS: Final = 8
#: Bytes of the dynamic table that a peer may use: the default, so that nothing has to be agreed.
HEADER_TABLE_SIZE: Final = 4096
#: Header blocks whose meaning is kept, per connection, and the largest of them: callers repeat a few. Decoded
#: they may be far larger: the sizes of their header lists together are bounded, too.
CACHED_BLOCKS: Final = 64
MAX_CACHED_BLOCK: Final = 1024
MAX_CACHED_LISTS: Final = 32 << 10
#: Payload of a frame that is not DATA: what RFC 9113 makes every peer accept.
MAX_CONTROL_FRAME: Final = 16 << 10
#: Pairs in one SETTINGS frame; seven are defined.
MAX_SETTINGS: Final = 64
#: Largest DATA frame sent, whatever the peer accepts: other streams wait for so many bytes at most. A message
#: of 1 MiB with something around it is one frame.
MAX_SENT_FRAME: Final = (1 << 20) + (4 << 10)
#: Frames that bring nothing (PING, SETTINGS, PRIORITY, empty DATA, unknown types, frames for ended streams,
#: superfluous WINDOW_UPDATE): a reserve, and how many are added per second. The first PING after DATA of
#: ours is not counted: grpc-go and grpc-java measure their bandwidth so, after each answer if they can.
IDLE_FRAMES: Final = 1000
IDLE_FRAMES_PER_S: Final = 200
#: Open streams whose windows SETTINGS change for what one of these frames costs: each one is looked at.
STREAMS_PER_IDLE_FRAME: Final = 100
#: Frames of one connection that are taken in one turn of the loop: each may be a whole call of some 30 µs.
#: The rest waits, and the connection is not read meanwhile (uvloop reads one up to 32 times in a turn). Of
#: all that wait, one goes on in each turn.
FRAMES_PER_TURN: Final = 500
#: Streams that the peer resets: a reserve and its growth per second (rapid reset, CVE-2023-44487).
RESETS: Final = 1000
RESETS_PER_S: Final = 200
#: Bytes of answers to a peer that does not read, DATA not counted: that waits in its stream.
MAX_UNSENT: Final = 4 << 20
#: Bytes in the transport's write buffer above which no DATA is added.
HIGH_WATER: Final = 1 << 20
#: The same where messages are counted: the transport's buffer is known only when it is full.
LOW_WATER: Final = 16 << 10
#: Ended streams that are remembered, to tell late frames from wrong ones.
REMEMBERED_STREAMS: Final = 1000
#: Memory of an unread message beside its bytes.
MESSAGE_OVERHEAD: Final = 128
#: First memory of a message that is not complete: so much, or this multiple of what came with its prefix. It
#: doubles with what was received, so that a prefix alone costs little.
FIRST_PIECE: Final = 1 << 10
FIRST_PIECE_TIMES: Final = 4
#: First memory while fewer than GENEROUS_MESSAGES are incomplete on all connections of a budget: no growth
#: for ordinary large messages.
GENEROUS_PIECE: Final = (1 << 20) + (64 << 10)
GENEROUS_MESSAGES: Final = 8
#: Bytes that a connection may hold when the budget of all is exhausted: calls of ordinary size.
SMALL_SHARE: Final = 64 << 10
#: Bytes that a connection may add before it notices that the budget is exhausted.
READ_AHEAD: Final = 256 << 10
#: Bytes per second of a message, below which it is dropped while the budget is exhausted; the time in seconds
#: over which that is measured, and the time between two looks.
MIN_RATE: Final = 16 << 10
STALL_S: Final = 1.0
CHECK_S: Final = 0.25
#: Time in seconds in which a peer takes something of its answers when memory for answers is scarce; it may
#: be 1 MiB that waits in the transport's buffer.
UNREAD_S: Final = 5.0
#: Time in seconds that one connection may have more than the budget while others wait.
FAVOUR_S: Final = 30.0
#: Digits of a number in `grpc-timeout` (gRPC over HTTP/2), and in `grpc-status` or `content-length`.
MAX_TIMEOUT_DIGITS: Final = 8
MAX_NUMBER_DIGITS: Final = 18
#: Characters of a status message that are sent: it shares the trailers with the metadata.
MAX_STATUS_MESSAGE: Final = 4096
#: Largest window of RFC 9113, 6.9.1.
MAX_WINDOW: Final = (1 << 31) - 1
#: Largest message: its length has 32 bits, and memory is finite.
MAX_MESSAGE: Final = (1 << 31) - 1
#: Largest stream id of RFC 9113, 5.1.1.
MAX_STREAM_ID: Final = (1 << 31) - 1
#: Window of streams that carry messages of 1 MiB one after the other: several fit. With the usual one each
#: waits a round trip for a window of its size; a producer of 128 B lost a seventh of its rate by that.
WIDE_WINDOW: Final = 4 << 20
#: Window of every connection and stream before settings (RFC 9113, 6.9.2).
DEFAULT_WINDOW: Final = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class WireLimits:
    """Bounds and times that an endpoint chooses. Sizes in bytes, times in seconds; 0 s: never."""

    max_streams: int = 1000  # calls of the peer at a time on one connection
    max_message: int = 4 << 20  # one received message, also after decompression; grpcio's default
    # payload of a received DATA frame; the rest of a large one is received straight into the message's memory
    max_data_frame: int = 256 << 10
    stream_window: int = 256 << 10  # unread bytes per stream; a larger message gets a window of its size
    connection_memory: int = 32 << 20  # unread bytes of all streams of one connection
    total_memory: int = 24 << 20  # unread bytes of all connections, and the whole of one more message
    total_unsent: int = 12 << 20  # unread answers of all connections, beside the largest
    handshake_s: float = 10.0  # from the connection to the peer's first SETTINGS
    keepalive_s: float = 60.0  # silence after which the peer is asked by PING
    keepalive_timeout_s: float = 20.0  # further silence after which the connection ends
    max_idle_s: float = 600.0  # time without a stream after which a server ends a connection
    max_connections: int = 10_000  # of one listening server

    def __post_init__(self) -> None:
        """Raises: ValueError, if a window or frame is smaller than a peer may use before it has seen it."""
        if not 1 << 14 <= self.max_data_frame < 1 << 24:  # RFC 9113, 6.5.2
            raise ValueError("max_data_frame must be 16384 to 16777215 bytes")
        if self.stream_window < DEFAULT_WINDOW or self.connection_memory < 2 * self.stream_window:
            raise ValueError(
                f"stream_window must be at least {DEFAULT_WINDOW} bytes and connection_memory twice as much"
            )

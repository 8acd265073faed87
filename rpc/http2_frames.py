"""Frames of HTTP/2 (RFC 9113, section 4 and 6): their layout, in both directions.

    +-----------------------------------------------+
    |                 Length (24)                   |
    +---------------+---------------+---------------+
    |   Type (8)    |   Flags (8)   |
    +-+-------------+---------------+-------------------------------+
    |R|                 Stream Identifier (31)                      |
    +=+=============================================================+
    |                   Frame Payload (Length)                    ...

Owns: codes and layouts, and the errors that a frame can be. Must not: know the state of a stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from .wire_limits import MAX_SETTINGS, MAX_WINDOW

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER: Final = struct.Struct(">HBBBI")
FRAME_HEADER_SIZE: Final = FRAME_HEADER.size
_MESSAGE_HEAD: Final = struct.Struct(">HBBBIBI")
_U32: Final = struct.Struct(">I")
_SETTING: Final = struct.Struct(">HI")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB
INADEQUATE_SECURITY: Final = 0xC
#: No code of HTTP/2: the connection was lost.
CONNECTION_LOST: Final = -1

ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6
#: Smallest and largest value of the setting MAX_FRAME_SIZE.
DEFAULT_FRAME_SIZE: Final = 1 << 14
_LARGEST_FRAME_SIZE: Final = (1 << 24) - 1


class Http2ConnectionError(Exception):
    """The peer broke the protocol: the connection ends with GOAWAY and `code`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Http2StreamError(Exception):
    """One stream ends with RST_STREAM and `code`; the connection stays."""

    def __init__(self, code: int, stream_id: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.stream_id = stream_id


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    return frame_header(len(payload), kind, flags, stream_id) + payload


def frame_header(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    """Return the header of a frame with a payload of `size` bytes."""
    return FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def message_head(size: int, stream_id: int) -> bytes:
    """Return the header of a DATA frame of one message of `size` bytes, and the message's prefix."""
    payload = size + 5
    return _MESSAGE_HEAD.pack(payload >> 8, payload & 0xFF, DATA, 0, stream_id, 0, size)


def settings_frame(pairs: Iterable[tuple[int, int]]) -> bytes:
    """Return a SETTINGS frame of (identifier, value)."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in pairs))


def reset_frame(stream_id: int, code: int) -> bytes:
    """Return RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def window_frame(stream_id: int, increment: int) -> bytes:
    """Return WINDOW_UPDATE; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def goaway_frame(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """Return GOAWAY with a reason as debug data."""
    text = reason.encode()[:256]
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + text)


def header_frames(stream_id: int, block: bytes, end_stream: bool, max_size: int) -> bytes:
    """Return HEADERS, and CONTINUATION where a block is larger than a frame."""
    ended = END_STREAM if end_stream else 0
    if len(block) <= max_size:
        return frame(HEADERS, END_HEADERS | ended, stream_id, block)
    frames = [frame(HEADERS, ended, stream_id, block[:max_size])]
    for start in range(max_size, len(block), max_size):
        last = END_HEADERS if start + max_size >= len(block) else 0
        frames.append(frame(CONTINUATION, last, stream_id, block[start : start + max_size]))
    return b"".join(frames)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return (identifier, value) of known settings with allowed values. Raises: Http2ConnectionError."""
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    if len(payload) > MAX_SETTINGS * _SETTING.size:
        raise Http2ConnectionError(ENHANCE_YOUR_CALM, f"more than {MAX_SETTINGS} settings in a frame")
    pairs = list(_SETTING.iter_unpack(payload))
    for identifier, value in pairs:
        if identifier == ENABLE_PUSH and value > 1:
            raise Http2ConnectionError(PROTOCOL_ERROR, f"the setting ENABLE_PUSH is {value}")
        if identifier == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2ConnectionError(FLOW_CONTROL_ERROR, f"the setting INITIAL_WINDOW_SIZE is {value}")
        if identifier == MAX_FRAME_SIZE and not DEFAULT_FRAME_SIZE <= value <= _LARGEST_FRAME_SIZE:
            raise Http2ConnectionError(PROTOCOL_ERROR, f"the setting MAX_FRAME_SIZE is {value}")
    return pairs


def read_number(payload: bytes, kind: str) -> int:
    """Return the number that RST_STREAM or WINDOW_UPDATE consists of. Raises: Http2ConnectionError."""
    if len(payload) != _U32.size:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, f"{kind} of {len(payload)} bytes")
    return int(_U32.unpack(payload)[0])


def read_goaway(payload: bytes) -> tuple[int, int, str]:
    """Return (last stream id, code, debug data) of GOAWAY. Raises: Http2ConnectionError."""
    if len(payload) < 8:
        raise Http2ConnectionError(FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last, code = struct.unpack_from(">II", payload)
    return last & MAX_WINDOW, code, payload[8:264].decode("utf-8", "replace")


def read_priority(payload: bytes, stream_id: int) -> None:
    """Check a PRIORITY frame; priorities are not used. Raises: Http2StreamError."""
    if len(payload) != 5:
        raise Http2StreamError(FRAME_SIZE_ERROR, stream_id, f"PRIORITY of {len(payload)} bytes")
    _check_dependency(payload, stream_id)


def block_of(payload: bytes, flags: int, stream_id: int) -> bytes:
    """Return the header block fragment of HEADERS, without padding and priority.

    Raises: Http2ConnectionError, Http2StreamError.
    """
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Http2ConnectionError(FRAME_SIZE_ERROR, "padded HEADERS without the padding's length")
        start, end = 1, end - payload[0]
    if flags & PRIORITY_FLAG:
        if len(payload) < start + 5:
            raise Http2ConnectionError(FRAME_SIZE_ERROR, "HEADERS with a priority that is not there")
        _check_dependency(payload[start:], stream_id)
        start += 5
    if end < start:
        raise Http2ConnectionError(PROTOCOL_ERROR, "HEADERS with more padding than bytes")
    return payload[start:end]


def _check_dependency(payload: bytes, stream_id: int) -> None:
    if int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream_id:
        raise Http2StreamError(PROTOCOL_ERROR, stream_id, "a stream that depends on itself")

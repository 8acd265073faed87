"""Layouts of frames, and what each frame must not be."""

from __future__ import annotations

import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.http2_frames import Http2ConnectionError, Http2StreamError


def test_a_frame_is_its_length_type_flags_stream_and_payload() -> None:
    assert h2.frame(h2.PING, h2.ACK, 0, b"12345678") == b"\0\0\x08\x06\x01\0\0\0\0" + b"12345678"
    assert h2.frame_header(0x12345, h2.DATA, 0, 7) == b"\x01\x23\x45\0\0\0\0\0\x07"
    assert h2.window_frame(3, 5) == b"\0\0\x04\x08\0\0\0\0\x03\0\0\0\x05"


def test_a_large_block_goes_on_in_continuations() -> None:
    frames = h2.header_frames(1, b"abcdefgh", True, 3)
    assert frames == (
        h2.frame(h2.HEADERS, h2.END_STREAM, 1, b"abc")
        + h2.frame(h2.CONTINUATION, 0, 1, b"def")
        + h2.frame(h2.CONTINUATION, h2.END_HEADERS, 1, b"gh")
    )
    assert h2.header_frames(1, b"abc", False, 3) == h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"abc")


@pytest.mark.parametrize(
    ("payload", "flags", "block"),
    [
        (b"block", 0, b"block"),
        (b"\x02block\0\0", h2.PADDED, b"block"),
        (b"\0\0\0\x03\x10block", h2.PRIORITY_FLAG, b"block"),
        (b"\x01\0\0\0\x03\x10block\0", h2.PADDED | h2.PRIORITY_FLAG, b"block"),
        (b"\0", h2.PADDED, b""),
    ],
)
def test_padding_and_priority_are_no_part_of_a_block(payload: bytes, flags: int, block: bytes) -> None:
    assert h2.block_of(payload, flags, 1) == block


@pytest.mark.parametrize(
    ("payload", "flags", "code"),
    [
        (b"", h2.PADDED, h2.FRAME_SIZE_ERROR),
        (b"\x05abc", h2.PADDED, h2.PROTOCOL_ERROR),
        (b"\0\0\0", h2.PRIORITY_FLAG, h2.FRAME_SIZE_ERROR),
        (b"\x01\0\0\0\x03\x10", h2.PADDED | h2.PRIORITY_FLAG, h2.PROTOCOL_ERROR),
    ],
)
def test_headers_with_more_padding_or_less_priority_than_bytes_are_refused(
    payload: bytes, flags: int, code: int
) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        h2.block_of(payload, flags, 1)
    assert caught.value.code == code


def test_a_stream_must_not_depend_on_itself() -> None:
    for check in (
        lambda: h2.block_of(b"\x80\0\0\x07\x10block", h2.PRIORITY_FLAG, 7),
        lambda: h2.read_priority(b"\0\0\0\x07\x10", 7),
    ):
        with pytest.raises(Http2StreamError) as caught:
            check()
        assert (caught.value.stream_id, caught.value.code) == (7, h2.PROTOCOL_ERROR)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\0\x04\0\0\0", h2.FRAME_SIZE_ERROR),
        (b"\0\x04\x80\0\0\0", h2.FLOW_CONTROL_ERROR),
        (b"\0\x05\0\0\x3f\xff", h2.PROTOCOL_ERROR),
        (b"\0\x02\0\0\0\x02", h2.PROTOCOL_ERROR),
        (b"\0\x09\0\0\0\0" * 65, h2.ENHANCE_YOUR_CALM),
    ],
)
def test_settings_out_of_range_or_too_many_are_refused(payload: bytes, code: int) -> None:
    with pytest.raises(Http2ConnectionError) as caught:
        h2.read_settings(payload)
    assert caught.value.code == code


def test_settings_come_as_pairs() -> None:
    frame = h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, 70_000), (0x99, 1)])
    assert h2.read_settings(frame[h2.FRAME_HEADER_SIZE :]) == [(h2.INITIAL_WINDOW_SIZE, 70_000), (0x99, 1)]


def test_goaway_carries_the_last_stream_a_code_and_a_reason() -> None:
    frame = h2.goaway_frame(5, h2.ENHANCE_YOUR_CALM, "why")
    assert h2.read_goaway(frame[h2.FRAME_HEADER_SIZE :]) == (5, h2.ENHANCE_YOUR_CALM, "why")
    with pytest.raises(Http2ConnectionError):
        h2.read_goaway(b"\0" * 7)

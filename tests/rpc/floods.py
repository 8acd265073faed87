"""Floods: what ends its own connection with GOAWAY and ENHANCE_YOUR_CALM, at any port that speaks gRPC."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.wire_limits import IDLE_FRAMES, MAX_CONTINUATIONS, MAX_HEADER_BLOCK, MAX_SETTINGS, RESETS

from .raw_peer import FrameWriter, request


@dataclass(frozen=True)
class Methods:
    """Header blocks of calls that a port serves: a unary one, and one with a stream of requests."""

    unary: bytes
    stream: bytes


Flood = Callable[[FrameWriter, Methods], None]


def pings(peer: FrameWriter, methods: Methods) -> None:
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.PING, 0, 0, b"12345678")


def settings(peer: FrameWriter, methods: Methods) -> None:
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.SETTINGS, 0, 0)


def changed_windows(peer: FrameWriter, methods: Methods) -> None:
    """Few frames, each of which changes the windows of many streams, many times."""
    for stream_id in range(1, 2 * 900, 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, methods.unary)
    pairs = [(h2.INITIAL_WINDOW_SIZE, size) for size in (1 << 16, 1 << 17)] * (MAX_SETTINGS // 2)
    payload = b"".join(struct.pack(">HI", *pair) for pair in pairs)
    for _ in range(IDLE_FRAMES // 4):
        peer.send(h2.SETTINGS, 0, 0, payload)


def empty_data(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, h2.END_HEADERS, 1, methods.stream)
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.DATA, 0, 1)


def padded_empty_data(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, h2.END_HEADERS, 1, methods.stream)
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.DATA, h2.PADDED, 1, b"\x03\0\0\0")


def priorities(peer: FrameWriter, methods: Methods) -> None:
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.PRIORITY, 0, 1, b"\0\0\0\0\x10")


def unknown_frames(peer: FrameWriter, methods: Methods) -> None:
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(0x77, 0, 0)


def window_updates(peer: FrameWriter, methods: Methods) -> None:
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.WINDOW_UPDATE, 0, 0, b"\0\0\0\x01")


def rapid_resets(peer: FrameWriter, methods: Methods) -> None:
    for stream_id in range(1, 2 * (RESETS + 1000), 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, methods.unary)
        peer.send(h2.RST_STREAM, 0, stream_id, b"\0\0\0\x08")


def late_resets(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, methods.unary)
    for _ in range(RESETS + 1000):
        peer.send(h2.RST_STREAM, 0, 1, b"\0\0\0\x05")


def continuations(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, 0, 1, methods.unary)
    for _ in range(MAX_CONTINUATIONS + 1):
        peer.send(h2.CONTINUATION, 0, 1)


def long_block(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, 0, 1, methods.unary + request(b"/x", (b"x", b"v" * 14_000)))
    peer.send(h2.CONTINUATION, h2.END_HEADERS, 1, b"\0" * (MAX_HEADER_BLOCK - 10_000))


def late_frames(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, methods.unary)
    for _ in range(IDLE_FRAMES + 1000):
        peer.send(h2.DATA, 0, 1, b"x")


def streams_that_the_server_must_reset(peer: FrameWriter, methods: Methods) -> None:
    """The peer breaks the rules of its own streams, so that the server resets them (CVE-2025-8671)."""
    for stream_id in range(1, 2 * (RESETS + 1000), 2):
        peer.send(h2.HEADERS, h2.END_HEADERS, stream_id, methods.unary)
        peer.send(h2.WINDOW_UPDATE, 0, stream_id, b"\0\0\0\0")


def pings_after_a_call(peer: FrameWriter, methods: Methods) -> None:
    peer.send(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, methods.unary)
    pings(peer, methods)


FLOODS: Final[tuple[Flood, ...]] = (
    pings, pings_after_a_call, settings, changed_windows, empty_data, padded_empty_data, priorities,
    unknown_frames, window_updates, rapid_resets, late_resets, streams_that_the_server_must_reset,
    continuations, long_block, late_frames,
)  # fmt: skip


@functools.cache
def bytes_of(flood: Flood, methods: Methods) -> bytes:
    """Return what a flood sends."""
    parts: list[bytes] = []
    flood(FrameWriter(parts.append), methods)
    return b"".join(parts)

"""Messages: any cut of the bytes gives the same messages, and nothing grows beyond its bound."""

from __future__ import annotations

import gzip
import random
import zlib

import grpc
import pytest

from ledgermq.rpc.grpc_messages import PREFIX, Buffer, GrpcMessageError, MessageCutter, decompressed, framed

MAX = 1 << 20


def cut(data: bytes, sizes: list[int], encoding: bytes = b"identity") -> list[bytes]:
    """Feed `data` in pieces of these sizes, and the rest."""
    cutter, found = MessageCutter(MAX), list[Buffer]()
    cutter.encoding = encoding
    position = 0
    for size in [*sizes, len(data)]:
        cutter.feed(memoryview(data)[position : position + size], found.append, 64)
        position += size
    assert cutter.is_between and not cutter.missing
    return [bytes(message) for message in found]


def test_any_cut_gives_the_same_messages() -> None:
    rng = random.Random(3)
    for _ in range(300):
        messages = [rng.randbytes(rng.choice([0, 1, 4, 5, 100, 5000])) for _ in range(rng.randrange(1, 6))]
        packed = [framed(message, rng.random() < 0.5) for message in messages]
        data = b"".join(prefix + body for prefix, body in packed)
        sizes = [rng.choice([1, 2, 4, 5, 6, 50, 1000]) for _ in range(50)]
        assert cut(data, sizes, b"gzip") == messages


def test_a_large_message_is_received_into_its_own_memory() -> None:
    cutter, found = MessageCutter(MAX), list[Buffer]()
    cutter.feed(memoryview(PREFIX.pack(0, 1000) + b"x" * 10), found.append, 64)
    assert cutter.missing == 990
    while not found:
        place = cutter.direct()
        assert 0 < len(place) <= cutter.missing
        place[:] = b"y" * len(place)
        cutter.advance(len(place), found.append)
    assert bytes(found[0]) == b"x" * 10 + b"y" * 990


def test_memory_grows_with_what_came_not_with_what_was_claimed() -> None:
    cutter = MessageCutter(MAX)
    cutter.feed(memoryview(PREFIX.pack(0, MAX) + b"x" * 100), lambda message: None, 64)
    assert len(cutter.direct()) + cutter.filled <= 200


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (PREFIX.pack(0, MAX + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (PREFIX.pack(2, 0), grpc.StatusCode.INTERNAL),
        (PREFIX.pack(1, 3) + b"abc", grpc.StatusCode.INTERNAL),
    ],
)
def test_messages_that_are_refused(data: bytes, code: grpc.StatusCode) -> None:
    with pytest.raises(GrpcMessageError) as caught:
        cut(data, [])
    assert caught.value.code is code


def test_a_zip_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(100 << 20))
    with pytest.raises(GrpcMessageError) as caught:
        decompressed(bomb, MAX)
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert decompressed(gzip.compress(bytes(MAX)), MAX) == bytes(MAX)


@pytest.mark.parametrize(
    "data",
    [b"", b"no gzip", gzip.compress(b"x" * 100)[:-10], zlib.compress(b"x")],
    ids=["empty", "other", "cut", "zlib"],
)
def test_broken_compressed_messages_are_refused(data: bytes) -> None:
    with pytest.raises(GrpcMessageError) as caught:
        decompressed(data, MAX)
    assert caught.value.code is grpc.StatusCode.INTERNAL


def test_only_what_becomes_smaller_is_compressed() -> None:
    assert framed(b"x" * 10_000, True)[0][0] == 1
    assert framed(b"x" * 10_000, False) == (PREFIX.pack(0, 10_000), b"x" * 10_000)
    noise = random.Random(1).randbytes(10_000)
    assert framed(noise, True) == (PREFIX.pack(0, 10_000), noise)

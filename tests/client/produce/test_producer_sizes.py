"""Compression above 4 KiB and refusal above 4 MiB, at the exact borders, whichever way a message takes."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ledgermq.client import Message, Producer
from ledgermq.client.errors import MessageTooLargeError, UsageError
from ledgermq.client.message import unpack_body
from ledgermq.proto.record import (
    MAX_BODY_SIZE,
    SECTION_HEADER_SIZE,
    RecordFlags,
    decode_record,
    record_positions,
)

from ..fakes import FakeGroup
from ..reading import producing

Way = Callable[[Producer, bytes], Awaitable[Any]]


async def alone(producer: Producer, body: bytes) -> None:
    await producer.send("orders", body)


async def labelled(producer: Producer, body: bytes) -> None:
    await producer.send("orders", body, tag="t", keys=["k"], message_group="m")


async def behind_another(producer: Producer, body: bytes) -> None:
    """The second may join the run of the first."""
    await producer.prepare("orders")
    await asyncio.gather(*[producer.send_nowait("orders", each) for each in (b"x" * 4000, body)])


async def in_a_batch(producer: Producer, body: bytes) -> None:
    """Of more messages than are encoded one by one."""
    await producer.send_batch([Message("orders", each) for each in (*[b"x" * 4000] * 10, body)])


every_way = pytest.mark.parametrize("way", [alone, labelled, behind_another, in_a_batch])


def stored(group: FakeGroup) -> list[tuple[bytes, bool]]:
    """Return every body as its sender gave it, and whether it was compressed."""
    found = []
    for queue in group.queues.values():
        for _, count, section, _ in queue.sections:
            records = section[SECTION_HEADER_SIZE:]
            for at in record_positions(records, count):
                record = decode_record(records, int(at))
                packed = bool(record.flags & RecordFlags.GZIP)
                found.append((unpack_body(record.body, packed), packed))
    return found


async def sent(way: Way, body: bytes, **options: Any) -> tuple[bytes, bool]:
    """Send a body; return how it is stored."""
    async with producing(**options) as (group, _, producer):
        await way(producer, body)
    return stored(group)[-1]


@every_way
@pytest.mark.parametrize(("size", "packed"), [(4095, False), (4096, False), (4097, True)])
async def test_compression_begins_above_four_kibibytes(way: Way, size: int, packed: bool) -> None:
    assert await sent(way, b"a" * size) == (b"a" * size, packed)


@every_way
async def test_what_compression_would_not_make_smaller_goes_as_it_is(way: Way) -> None:
    body = random.Random(1).randbytes(4097)
    assert await sent(way, body) == (body, False)


@every_way
async def test_the_threshold_is_an_option(way: Way) -> None:
    assert await sent(way, b"a" * 100, compress_above=100) == (b"a" * 100, False)
    assert await sent(way, b"a" * 101, compress_above=100) == (b"a" * 101, True)
    assert await sent(way, b"a" * 100_000, compress_above=None) == (b"a" * 100_000, False)


@every_way
@pytest.mark.parametrize("compress_above", [4096, None])
async def test_four_mebibytes_are_taken_and_one_byte_more_is_refused(
    way: Way, compress_above: int | None
) -> None:
    """Also of a body that would be small once compressed: its readers have to hold it."""

    body, packed = await sent(way, bytes(MAX_BODY_SIZE), compress_above=compress_above)
    assert (len(body), packed) == (4 << 20, compress_above is not None)
    async with producing(compress_above=compress_above) as (group, _, producer):
        with pytest.raises(MessageTooLargeError, match=r"4,194,305 bytes; the limit is 4,194,304 \(4 MiB\)"):
            await way(producer, bytes(MAX_BODY_SIZE + 1))
        await producer.flush()
        assert all(len(body) == 4000 for body, _ in stored(group)), "its neighbours are sent"


async def test_four_mebibytes_that_cannot_be_compressed_are_taken() -> None:
    body = random.Random(2).randbytes(MAX_BODY_SIZE)
    assert await sent(alone, body) == (body, False)


async def test_the_size_of_text_is_that_of_its_bytes() -> None:
    async with producing() as (group, _, producer):
        await producer.send("orders", "ä" * 2048)
        await producer.send("orders", "ä" * 2048 + "a")
        assert [packed for _, packed in stored(group)] == [False, True]
        with pytest.raises(MessageTooLargeError, match="4,194,306 bytes"):
            await producer.send("orders", "ä" * (2 * 1024 * 1024 + 1))


@pytest.mark.parametrize("wrong", [{"max_pending_bytes": 0}, {"timeout_ms": 0}, {"timeout_ms": math.nan}])
async def test_limits_with_which_a_send_would_wait_for_ever_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{next(iter(wrong))} is"):
        Producer("127.0.0.1:1", **wrong)

"""What the tests of the key index do again and again: a log with keys, and everything in it looked up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from ledgermq.broker.reading.key_hashes import ItemForm, id_hash, key_hash
from ledgermq.broker.reading.key_index import KeyIndex
from ledgermq.proto.record import pack_message_id

from .key_log import SEGMENT, MessageLog, Stored, searched

FORM = ItemForm.of(SEGMENT)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())


def filled(entries: int = 60) -> tuple[MessageLog, int]:
    """Return a log of a few segments, and its topic."""
    node = MessageLog()
    topic = node.topic(queues=2)
    for i in range(entries):
        node.send_entry(
            (topic, 0, [(f"id-{i}", [f"k{i % 7}"])]), (topic, 1, [(f"b-{i}", ["all"]), (f"c-{i}", [])])
        )
    return node, topic


def hashes(node: MessageLog, stored: Stored) -> list[int]:
    topic = node.state.topics.find(stored.topic)
    assert topic is not None
    return _hashes(stored, topic.topic_id)


@cache
def _hashes(stored: Stored, topic_id: int) -> list[int]:
    return [id_hash(pack_message_id(stored.message_id)[0]), *(key_hash(topic_id, key) for key in stored.keys)]


async def check(node: MessageLog, index: KeyIndex, begin: int = 0) -> None:
    """Everything is found, between any two places, and nothing else."""
    right: dict[int, list[int]] = {}
    places: dict[int, int] = {}
    for each in node.stored:
        if each.offset >= begin:
            for hashed in hashes(node, each):
                right.setdefault(hashed, []).append(each.offset)
                places[hashed] = each.offset
    for hashed, offsets in right.items():
        middle = places[hashed]
        for low, high in ((begin, node.end), (begin, middle), (middle, node.end)):
            got = await searched(index, hashed, low, high)
            assert got == [offset for offset in reversed(offsets) if low <= offset < high]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())

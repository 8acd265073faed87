"""What the index notes of a message, against the plain definition of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ledgermq.broker.reading.key_hashes import ItemForm, id_hash, items_of, key_hash
from ledgermq.broker.state.commands import CreateConsumerGroup
from ledgermq.proto.entry import EntryKind
from ledgermq.proto.record import pack_message_id

from ..entry_log import command_section
from ..key_log import MessageLog


@pytest.mark.parametrize("seed", range(10))
def test_every_id_and_key_is_an_item_whatever_its_section_looks_like(seed: int) -> None:
    """Sections of one record, a few, many; of equal and different sizes; commands and no-ops between them."""
    rng = random.Random(seed)
    form = ItemForm.of(1 << 20)
    node = MessageLog(1 << 20)
    topics = [node.topic("a", 1), node.topic("b", 1)]
    for _ in range(12):
        sections = [
            (topic, 0, [
                (f"id-{rng.randrange(1 << 40)}", [f"key-{rng.randrange(50)}"] * rng.choice((0, 0, 1, 3)))
                for _ in range(rng.choice((1, 2, 24, 25, 60)))
            ])
            for topic in rng.sample(topics, rng.randint(1, 2))
        ]  # fmt: skip
        node.send_entry(*sections, pad=rng.choice((0, 100)))
        node.apply(kind=EntryKind.NOOP)
        node.apply(
            command_section(CreateConsumerGroup(f"g{rng.random()}"), CreateConsumerGroup(f"h{rng.random()}"))
        )
    right = []
    for each in node.stored:
        topic = node.state.topics.find(each.topic)
        assert topic is not None
        hashes = [id_hash(pack_message_id(each.message_id)[0])]
        hashes += [key_hash(topic.topic_id, key) for key in each.keys]
        right += [(hashed >> form.place_bits << form.place_bits) | each.offset // 8 for hashed in hashes]
    entries = [node.log.entry(index) for index in range(1, len(node.log.raw) + 1)]
    assert np.sort(items_of(entries, 0, form)).tolist() == sorted(right)
    assert form.positions(np.array(right[:3], np.uint64)).tolist() == [
        item % (1 << 17) * 8 for item in right[:3]
    ]


def test_ids_of_one_producer_and_keys_of_two_topics_have_different_hashes() -> None:
    ids = {id_hash(bytes(12) + number.to_bytes(4, "big")) >> 27 for number in range(20_000)}
    assert len(ids) == 20_000
    assert key_hash(1, "order") != key_hash(2, "order") != key_hash(1, "orders")


@pytest.mark.parametrize("size", [4096, 1 << 20, 64 << 20, 1 << 30, 3 << 29])
def test_every_place_of_a_segment_fits_beside_the_hash(size: int) -> None:
    form = ItemForm.of(size)
    hashed = (1 << 64) - 1
    bounds = form.bounds(hashed, 0, size)
    assert bounds is not None
    low, high = (int(bound) for bound in bounds)
    assert low >> form.place_bits == high >> form.place_bits == hashed >> form.place_bits
    assert (low & form.place_mask, high & form.place_mask) == (0, size // 8 - 1)
    assert form.bounds(hashed, size, size) is None
    assert form.bounds(hashed, size - 7, size) is None, "records stand at multiples of 8"
    last = form.bounds(hashed, size - 8, size)
    assert last is not None and last[0] == last[1] == high

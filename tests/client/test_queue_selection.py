"""Which queue is next."""

from __future__ import annotations

from collections import Counter

import pytest

from ledgermq.broker import messaging_wire
from ledgermq.client.message import MessageQueue
from ledgermq.client.queue_selection import (
    CustomSelector,
    HashByKey,
    RandomQueue,
    StickyRoundRobin,
    StrictRoundRobin,
    hash_to_index,
    queue_of_group,
)

QUEUES = [MessageQueue("orders", "g0", i) for i in range(4)]


def test_sticky_round_robin_stays_until_a_request_is_cut() -> None:
    selector = StickyRoundRobin()
    assert [selector.choose(QUEUES, "") for _ in range(3)] == [0, 0, 0]
    selector.on_flush()
    assert selector.choose(QUEUES, "") == 1


def test_strict_round_robin_spreads_twenty_messages_over_four_queues_as_five_each() -> None:
    selector = StrictRoundRobin(3)
    assert Counter(selector.choose(QUEUES, "") for _ in range(20)) == {0: 5, 1: 5, 2: 5, 3: 5}


def test_random_takes_what_it_is_given() -> None:
    assert RandomQueue(lambda below: below - 1).choose(QUEUES, "") == 3


def test_the_same_key_goes_to_the_same_queue_and_no_key_goes_round() -> None:
    selector = HashByKey()
    assert len({selector.choose(QUEUES, "k1") for _ in range(5)}) == 1
    assert {hash_to_index(str(i), 4) for i in range(50)} == {0, 1, 2, 3}
    before = selector.choose(QUEUES, "")
    selector.on_flush()
    assert selector.choose(QUEUES, "") != before


def test_the_users_own_choice_is_taken() -> None:
    assert CustomSelector(lambda queues, key: len(key)).choose(QUEUES, "ab") == 2


@pytest.mark.parametrize("count", [1, 4, 7, 64])
def test_a_message_group_has_the_queue_that_brokers_choose_for_official_clients(count: int) -> None:
    for name in ("", "a", "order-4711", "ö漢😀", "x" * 63):
        assert queue_of_group(name, count) == messaging_wire.queue_of_group(name, count)

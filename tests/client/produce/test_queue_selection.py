"""Which queue is next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.wire import official as messaging_wire
from ledgermq.client.message import MessageQueue
from ledgermq.client.produce.queue_selection import (
    CustomSelector,
    HashByKey,
    QueueSelector,
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


# --- properties ---------------------------------------------------------------------------------------------
counts = st.integers(1, 64)
SELECTORS: list[Callable[[int], QueueSelector]] = [
    StickyRoundRobin,
    StrictRoundRobin,
    lambda seed: RandomQueue(random.Random(seed).randrange),
    lambda seed: HashByKey(),
    lambda seed: CustomSelector(lambda queues, key: seed * len(key) - 1),
]


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("orders", "g0", number) for number in range(count)]


@given(
    st.sampled_from(SELECTORS), st.integers(0, 1 << 40), st.lists(st.tuples(counts, st.text(), st.booleans()))
)
def test_every_choice_is_a_queue_that_is_there(
    make: Callable[[int], QueueSelector], seed: int, messages: list[tuple[int, str, bool]]
) -> None:
    """Also while queues come and go."""
    selector = make(seed)
    for count, key, flushed in messages:
        assert 0 <= selector.choose(queues_of(count), key) < count
        if flushed:
            selector.on_flush()


@given(st.integers(0, 1000), counts, st.integers(0, 500))
def test_a_strict_round_is_even_whatever_the_number_of_messages(
    start: int, count: int, messages: int
) -> None:
    selector, queues = StrictRoundRobin(start), queues_of(count)
    chosen = Counter(selector.choose(queues, "") for _ in range(messages))
    found = [chosen[number] for number in range(count)]
    assert max(found) - min(found) <= 1


@given(st.integers(0, 1000), counts, st.integers(0, 500))
def test_a_sticky_round_is_even_in_requests(start: int, count: int, requests: int) -> None:
    selector, queues, chosen = StickyRoundRobin(start), queues_of(count), Counter[int]()
    for _ in range(requests):
        chosen[selector.choose(queues, "")] += 1
        selector.on_flush()
    found = [chosen[number] for number in range(count)]
    assert max(found) - min(found) <= 1


@given(st.text(min_size=1), counts)
def test_a_key_has_one_queue_whatever_came_before(key: str, count: int) -> None:
    one, other, queues = HashByKey(), HashByKey(), queues_of(count)
    other.choose(queues, "")
    other.on_flush()
    assert one.choose(queues, key) == other.choose(queues, key) == hash_to_index(key, count)


def test_random_choices_reach_every_queue_alike() -> None:
    selector, queues = RandomQueue(random.Random(1).randrange), queues_of(8)
    chosen = Counter(selector.choose(queues, "k") for _ in range(8_000))
    assert all(800 < chosen[number] < 1_200 for number in range(8))


@given(st.text(), st.integers(1, 63))
def test_a_message_group_stays_or_moves_to_the_queue_that_came(name: str, count: int) -> None:
    """A2.9: unlike a remainder, which would move nearly all of them."""
    before, after = queue_of_group(name, count), queue_of_group(name, count + 1)
    assert 0 <= before < count and after in (before, count)

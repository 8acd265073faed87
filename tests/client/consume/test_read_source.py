"""Which node of a group is read, answer by answer."""

from __future__ import annotations

import pytest

from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.consume.read_source import FetchSource, ReadSource
from ledgermq.client.pauses import AVOID_S

NODES = tuple(Node(f"n{i}", f"host{i}:1", f"host{i}:2", alive=True) for i in (1, 2, 3))
GROUP = BrokerGroup("local", "g0", 1, "n1", NODES, writable=True)


class Reading:
    """A reader of GROUP at a time of its own."""

    def __init__(self) -> None:
        self.source = ReadSource(GROUP)
        self.now = 100.0

    @property
    def at(self) -> str:
        """The address that is asked next."""
        return self.source.next()[0]

    def answer(self, node: str, suggested: str = "", *, stale: bool = False, empty: bool = False) -> bool:
        return self.source.answered(FetchSource(node, stale), suggested, empty, self.now)

    def fail(self, node: int) -> None:
        self.source.failed(f"host{node}:1", self.now)


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_the_leader_is_read_until_it_suggests_a_follower(reading: Reading) -> None:
    assert reading.at == "host1:1"
    assert not reading.answer("n1")
    assert reading.answer("n1", "n2")
    assert (reading.at, reading.source.follower) == ("host2:1", "n2")


def test_a_follower_is_read_until_it_suggests_the_leader(reading: Reading) -> None:
    reading.answer("n1", "n2")
    assert not reading.answer("n2")
    assert reading.answer("n2", "n1")
    assert (reading.at, reading.source.follower) == ("host1:1", "")
    assert reading.answer("n1", "n2"), "a node that was caught up with is gone to again"


def test_a_follower_that_lags_is_left_and_not_gone_to_again_for_a_while(reading: Reading) -> None:
    reading.answer("n1", "n2")
    assert reading.answer("n2", empty=True)
    assert reading.at == "host1:1"
    assert not reading.answer("n1", "n2")
    assert reading.answer("n1", "n3"), "another follower may do better"
    reading.answer("n3", "n1")
    reading.now += AVOID_S
    assert reading.answer("n1", "n2")


def test_a_follower_without_a_leader_is_left(reading: Reading) -> None:
    reading.answer("n1", "n2")
    assert reading.answer("n2", stale=True)
    assert reading.at == "host1:1"


def test_a_follower_that_fails_again_is_avoided_for_longer(reading: Reading) -> None:
    for seconds in (AVOID_S, 2 * AVOID_S, 4 * AVOID_S):
        assert reading.answer("n1", "n2")
        reading.fail(2)
        assert reading.at == "host1:1"
        reading.now += seconds - 0.1
        assert not reading.answer("n1", "n2")
        reading.now += 0.1


def test_an_answer_with_messages_makes_good_for_failures_before(reading: Reading) -> None:
    reading.answer("n1", "n2")
    reading.fail(2)
    reading.now += AVOID_S
    reading.answer("n1", "n2")
    reading.answer("n2")
    reading.fail(2)
    reading.now += AVOID_S
    assert reading.answer("n1", "n2")


def test_a_leader_that_cannot_be_reached_is_not_gone_to_because_followers_say_so(reading: Reading) -> None:
    reading.fail(1)
    assert reading.at == "host2:1"
    assert not reading.answer("n2", "n1")
    assert reading.at == "host1:1", "the next search begins with the leader as ever"
    reading.now += AVOID_S
    assert reading.answer("n2", "n1")


def test_without_a_leader_any_node_is_read_and_the_leader_again_when_the_node_knows_one(
    reading: Reading,
) -> None:
    reading.fail(1)
    assert reading.at == "host2:1"
    assert not reading.answer("n2", stale=True)
    reading.now += AVOID_S
    assert reading.answer("n2", "n1")
    assert reading.at == "host1:1"


def test_a_suggestion_without_an_address_here_is_not_followed(reading: Reading) -> None:
    assert not reading.answer("n1", "n9")
    assert not reading.answer("n1", "n1")


def test_a_new_leader_that_a_node_names_is_asked_next(reading: Reading) -> None:
    reading.source.tracker.learned(2, "n3")
    assert reading.at == "host3:1"


def test_a_follower_that_left_the_route_is_not_asked(reading: Reading) -> None:
    reading.answer("n1", "n2")
    without = BrokerGroup("local", "g0", 1, "n1", NODES[:1], writable=True)
    reading.source.tracker.update(without)
    assert reading.source.next() == ("host1:1", 0)
    assert reading.source.follower == ""

"""Who leads a broker group, and which node is asked next, answer by answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.client.cluster.leader_tracker import LeaderTracker
from ledgermq.client.cluster.topic_route import BrokerGroup, Node

NODES = tuple(Node(f"n{i}", f"n{i}:log", f"n{i}:messages", alive=True) for i in (1, 2, 3))
GROUP = BrokerGroup("local", "g0", 3, "n1", NODES, writable=True, group_id=7)


def asked(tracker: LeaderTracker, count: int) -> list[str]:
    """Let so many nodes fail that are asked without a pause; return their addresses."""
    addresses = []
    for _ in range(count):
        address, pause = tracker.next()
        assert pause == 0
        addresses.append(address)
        tracker.failed(address)
    return addresses


def test_a_hint_is_asked_first_then_the_leader_then_the_others_then_there_is_a_pause() -> None:
    tracker = LeaderTracker(GROUP)
    tracker.hint("n3:log")
    assert asked(tracker, 3) == ["n3:log", "n1:log", "n2:log"]
    address, pause = tracker.next()
    assert (address, pause > 0) == ("n1:log", True)


def test_the_living_are_asked_before_the_dead() -> None:
    nodes = (NODES[0], replace(NODES[1], alive=False), NODES[2])
    assert asked(LeaderTracker(replace(GROUP, leader_id="", nodes=nodes)), 3) == [
        "n1:log",
        "n3:log",
        "n2:log",
    ]


def test_a_success_forgets_old_failures() -> None:
    tracker = LeaderTracker(GROUP)
    asked(tracker, 2)
    tracker.succeeded()
    assert tracker.next() == ("n1:log", 0)


def test_without_any_node_there_is_only_a_pause() -> None:
    address, pause = LeaderTracker(replace(GROUP, nodes=())).next()
    assert address == ""
    assert pause > 0


def test_a_broker_group_that_stays_dead_is_searched_less_and_less_and_a_success_ends_that() -> None:
    tracker, pauses = LeaderTracker(GROUP), []
    for _ in range(250):
        address, pause = tracker.next()
        tracker.failed(address)
        pauses += [pause] * bool(pause)
    assert pauses == sorted(pauses)
    assert pauses[20:50] == [100] * 30, "an election is not waited for any longer than before"
    assert pauses[-1] == 2_000
    tracker.succeeded()
    asked(tracker, 3)
    assert tracker.next()[1] < 100


def test_nodes_that_name_one_another_as_the_leader_are_not_asked_without_a_pause_for_ever() -> None:
    tracker, pauses = LeaderTracker(GROUP), []
    for _ in range(50):
        address, pause = tracker.next()
        pauses.append(pause)
        tracker.failed(address)
        tracker.hint("n2:log" if address == "n1:log" else "n1:log")
    assert sum(each > 0 for each in pauses) >= 10
    assert pauses[:3] == [0, 0, 0], "the first hints are followed at once"


def test_a_node_that_does_not_lead_and_names_itself_is_not_asked_again_at_once() -> None:
    tracker = LeaderTracker(GROUP)
    tracker.hint("n1:log")
    tracker.failed("n1:log")
    assert not tracker.has_hint
    assert tracker.next() == ("n2:log", 0)


@pytest.mark.parametrize(("term", "leader"), [(2, "n2"), (3, "n1"), (4, ""), (4, "n9")])
def test_what_is_old_or_known_or_names_no_node_is_no_news(term: int, leader: str) -> None:
    tracker = LeaderTracker(GROUP)
    assert tracker.learned(term, leader) is None
    assert (tracker.has_hint, tracker.term) == (False, 3)


def test_a_new_leader_is_asked_next_even_if_it_failed_before() -> None:
    tracker = LeaderTracker(GROUP)
    asked(tracker, 3)
    assert tracker.learned(4, "n2") is NODES[1]
    assert (tracker.term, tracker.next()) == (4, ("n2:log", 0))
    assert tracker.learned(3, "n1") is None, "terms do not fall"


def test_the_leader_of_a_term_that_was_known_without_one_is_news() -> None:
    tracker = LeaderTracker(replace(GROUP, leader_id=""))
    assert tracker.update(GROUP) is NODES[0]
    assert tracker.update(GROUP) is None


def test_a_broker_group_that_was_recovered_keeps_its_terms_and_another_one_begins_anew() -> None:
    tracker = LeaderTracker(GROUP)
    recovered = replace(GROUP, group_id=9, former_group_ids=(7,), term=1, leader_id="n2")
    assert tracker.update(recovered) is None
    another = replace(GROUP, group_id=8, term=1, leader_id="n2")
    tracker.hint("gone:log")
    assert tracker.update(another) is NODES[1]
    assert (tracker.term, tracker.next()) == (1, ("n2:log", 0))


def test_calls_to_the_other_port_go_to_its_addresses() -> None:
    without = replace(NODES[2], messaging_address="")
    tracker = LeaderTracker(replace(GROUP, nodes=(*NODES[:2], without)), "messaging_address")
    assert asked(tracker, 2) == ["n1:messages", "n2:messages"]
    assert tracker.next()[1] > 0

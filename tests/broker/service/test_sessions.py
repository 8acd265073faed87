"""Signs of life of clients."""

from __future__ import annotations

import pytest

from ledgermq.broker.service.sessions import (
    CALLER_SECONDS,
    FEW,
    ROUND,
    ClientsHere,
    TooManyClientsError,
    session_of,
)


def test_a_session_has_the_same_name_on_every_node_and_is_never_zero() -> None:
    assert session_of("a") == session_of("a") != session_of("b")
    assert session_of("") != 0


def test_a_caller_lives_for_a_while_and_an_open_stream_as_long_as_it_is_open() -> None:
    here = ClientsHere(10)
    here.stream_opened("stream")
    here.heard("caller", 0)
    here.heard("", 0)
    assert here.alive(CALLER_SECONDS - 1) == ["caller", "stream"]
    assert here.alive(CALLER_SECONDS) == ["stream"]


def test_a_client_whose_stream_ended_is_gone_unless_it_calls_again() -> None:
    here = ClientsHere(10)
    here.stream_opened("c")
    here.heard("c", 0)
    here.stream_closed("c")
    assert here.alive(1) == []
    here.heard("c", 2)
    assert here.alive(3) == ["c"]


def test_one_more_client_than_the_limit_is_refused_until_one_was_silent_for_long() -> None:
    here = ClientsHere(2)
    here.heard("a", 0)
    here.heard("b", 1)
    with pytest.raises(TooManyClientsError, match="max_clients"):
        here.heard("c", 2)
    here.heard("a", 3)  # a known client is heard
    here.heard("c", 1 + CALLER_SECONDS)
    assert here.alive(1 + CALLER_SECONDS) == ["a", "c"]


def test_few_clients_are_all_in_every_report() -> None:
    here = ClientsHere(10)
    here.stream_opened("stream")
    here.heard("caller", 0)
    assert here.report(1) == here.report(2) == ["caller", "stream"]


def test_each_of_very_many_clients_has_its_turn_in_a_round_of_reports() -> None:
    count = FEW * ROUND * 2
    here = ClientsHere(count)
    names = [f"c{i:05d}" for i in range(count)]
    for name in names:
        here.heard(name, 0)
    first_round = [here.report(second) for second in range(ROUND)]
    assert [len(part) for part in first_round] == [2 * FEW] * ROUND
    assert [name for part in first_round for name in part] == names
    assert here.report(ROUND) == first_round[0]


def test_who_left_before_its_turn_is_not_reported() -> None:
    count = FEW + 2
    here = ClientsHere(count)
    for i in range(count):
        here.stream_opened(f"s{i:04d}")
    here.heard("z", 0)
    assert len(here.report(0)) == FEW
    here.stream_closed(f"s{count - 1:04d}")
    here.stream_opened("z")
    here.stream_closed("z")
    assert here.report(1) == [f"s{count - 2:04d}"]

"""Signs of life of clients."""

from __future__ import annotations

from ledgermq.broker.sessions import CALLER_SECONDS, ClientsHere, session_of


def test_a_session_has_the_same_name_on_every_node_and_is_never_zero() -> None:
    assert session_of("a") == session_of("a") != session_of("b")
    assert session_of("") != 0


def test_a_caller_lives_for_a_while_and_an_open_stream_as_long_as_it_is_open() -> None:
    here = ClientsHere(lambda: ["stream"])
    here.heard("caller", 0)
    here.heard("", 0)
    assert here.alive(CALLER_SECONDS - 1) == ["caller", "stream"]
    assert here.alive(CALLER_SECONDS) == ["stream"]


def test_a_client_whose_stream_ended_is_gone_unless_it_calls_again() -> None:
    here = ClientsHere(list)
    here.heard("c", 0)
    here.stream_ended("c")
    assert here.alive(1) == []
    here.heard("c", 2)
    assert here.alive(3) == ["c"]

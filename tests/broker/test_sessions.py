"""Signs of life of clients."""

from __future__ import annotations

from ledgermq.broker.sessions import ClientsHere, session_of


def test_a_session_has_the_same_name_on_every_node_and_is_never_zero() -> None:
    assert session_of("a") == session_of("a") != session_of("b")
    assert session_of("") != 0


def test_callers_are_reported_once_and_open_streams_every_time() -> None:
    here = ClientsHere(lambda: ["stream"])
    here.heard("caller")
    here.heard("")
    assert here.take() == ["caller", "stream"]
    assert here.take() == ["stream"]

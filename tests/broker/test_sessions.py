"""Client sessions: signs of life, silence, and the grace of a new leader."""

from __future__ import annotations

from ledgermq.broker.sessions import NEW_LEADER_GRACE, SESSION_TIMEOUT, Sessions, session_of


def test_a_client_that_is_silent_too_long_is_gone() -> None:
    sessions = Sessions()
    sessions.touch("c", 0)
    holder = [session_of("c")]
    assert sessions.expired(holder, SESSION_TIMEOUT - 1) == []
    sessions.touch_all(["c"], 100)
    assert sessions.expired(holder, SESSION_TIMEOUT + 1) == []
    assert sessions.expired(holder, 100 + SESSION_TIMEOUT) == holder


def test_a_new_leader_gives_unknown_sessions_its_grace() -> None:
    sessions = Sessions()
    assert sessions.expired([7], 10) == []
    assert sessions.expired([7], 10 + NEW_LEADER_GRACE - 1) == []
    assert sessions.expired([7], 10 + NEW_LEADER_GRACE) == [7]


def test_clients_without_leases_are_only_forgotten() -> None:
    sessions = Sessions()
    sessions.touch("c", 0)
    assert sessions.expired([], SESSION_TIMEOUT) == []
    assert sessions.end("c") == session_of("c")
    assert session_of("c") != session_of("d")

"""Broker groups that do not answer."""

from __future__ import annotations

from ledgermq.client.consume.simple_consumer import SilentBrokerGroups
from ledgermq.client.pauses import FIRST_SILENCE_S as FIRST_S
from ledgermq.client.pauses import LONGEST_SILENCE_S as LONGEST_S

BOTH = [("orders", "g0"), ("orders", "g1")]


def test_a_silent_group_is_left_alone_for_longer_each_time_until_it_answers() -> None:
    silent, now, pauses = SilentBrokerGroups(), 100.0, []
    for _ in range(8):
        silent.failed("g0", now)
        assert list(silent.among(BOTH, now)) == BOTH[1:]
        pause = FIRST_S
        while list(silent.among(BOTH, now + pause)) != BOTH:
            pause *= 2
        pauses.append(min(pause, LONGEST_S))
        now += pause
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (FIRST_S, LONGEST_S)
    silent.answered("g0")
    assert list(silent.among(BOTH, now)) == BOTH
    silent.failed("g0", now)
    assert list(silent.among(BOTH, now + FIRST_S)) == BOTH, "it begins anew"


def test_when_all_are_silent_all_are_asked() -> None:
    silent = SilentBrokerGroups()
    for _, name in BOTH:
        silent.failed(name, 1.0)
    assert list(silent.among(BOTH, 1.0)) == BOTH

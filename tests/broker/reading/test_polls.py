"""Long polls: woken by what they wait for, bounded in number."""

from __future__ import annotations

import pytest

from ledgermq.broker.reading import polls as polls_module
from ledgermq.broker.reading.polls import Polls, TooManyPollsError


async def test_a_poll_is_woken_by_its_key_even_when_that_comes_before_it_waits() -> None:
    polls = Polls()
    one, other = polls.open(["a", "b"]), polls.open(["c"])
    polls.wake("b")
    assert await one.wait(60)
    assert not await other.wait(0)
    one.close()
    other.close()
    assert polls.count == 0
    polls.wake("b")


async def test_all_are_woken_at_a_stop() -> None:
    polls = Polls()
    waiter = polls.open(["a"])
    polls.wake_all()
    assert await waiter.wait(60)


async def test_the_number_of_polls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls_module, "MAX_WAITING", 1)
    polls = Polls()
    polls.open(["a"])
    with pytest.raises(TooManyPollsError):
        polls.open(["a"])


async def test_what_polls_wait_for_is_bounded_too_and_room_comes_back() -> None:
    polls = Polls(max_keys=5)
    first = polls.open(range(3))
    with pytest.raises(TooManyPollsError, match="max_poll_queues is 5"):
        polls.open(range(3))
    polls.open(range(2))
    first.close()
    polls.open(range(3))
    assert polls.count == 2

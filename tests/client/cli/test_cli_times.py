"""Points in time as people type them and read them."""

from __future__ import annotations

import pytest
import typer

from ledgermq.client.cli.times import local_time, position, stored_between, time_ms
from ledgermq.client.errors import UsageError


@pytest.mark.parametrize("text", ["earliest", "latest", "1767225600000"])
def test_words_and_milliseconds_are_taken_as_they_are(text: str) -> None:
    assert position(text) == text


@pytest.mark.parametrize("text", ["5", "1767225600", "1767225600000000", "yesterday", ""])
def test_what_is_no_time_is_refused_with_the_forms_that_are_taken(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="2026-01-31T12:00:00"):
        position(text)


def test_the_two_words_stand_for_what_the_command_says() -> None:
    assert time_ms("earliest", earliest=1, latest=7) == 1
    assert time_ms("latest", earliest=1, latest=7) == 7
    assert time_ms("1767225600123", earliest=1, latest=7) == 1_767_225_600_123
    assert time_ms("1960-01-01T00:00:00+00:00", earliest=1, latest=7) == -315_619_200_000


def test_a_period_has_ends_in_order() -> None:
    assert stored_between("", "", 9) == (0, 0)
    assert stored_between("latest", "latest", 9) == (9, 0)
    assert stored_between("1767225600000", "1767225600001", 9) == (1_767_225_600_000, 1_767_225_600_001)
    assert stored_between("", "earliest", 9) == (0, 1)
    for begin, end in (("1767225600001", "1767225600001"), ("1767225600000", "1960-01-01T00:00:00")):
        with pytest.raises(UsageError, match="The end is not after the beginning"):
            stored_between(begin, end, 9)


def test_what_is_printed_can_be_typed() -> None:
    assert position(local_time(1_767_225_600_123)) == "1767225600123"


@pytest.mark.parametrize("timestamp_ms", [10**15, 10**20, -(10**18), 10**400])
def test_what_is_no_time_is_shown_as_it_was_told(timestamp_ms: int) -> None:
    """Clients write times into messages and traces, and whoever looks at these must see the rest."""
    assert local_time(timestamp_ms) == f"{timestamp_ms} ms"

"""Write gaps, balances and verdicts from time lines that are made up."""

from __future__ import annotations

import pytest

from bench.failover.gaps import (
    Trial,
    Write,
    as_row,
    balance,
    failures,
    parse_write,
    percentile,
    table,
    verdict,
    write_gap,
)

MS = 1_000_000


def acknowledged(*at_ms: float) -> list[Write]:
    """Writes whose acknowledgements come at these times, ms."""
    return [Write(number, 0, int(at * MS)) for number, at in enumerate(at_ms)]


def test_a_gap_counts_from_the_last_acknowledgement_before_the_end() -> None:
    writes = acknowledged(1, 2, 3, 103, 104)
    assert write_gap(writes, since=10 * MS, until=2000 * MS) == 100


def test_a_pause_before_the_end_is_none_of_its_gaps() -> None:
    writes = acknowledged(0, 500, 501, 531, 532)
    assert write_gap(writes, since=502 * MS, until=2000 * MS) == 30


def test_a_stall_that_comes_later_than_the_end_counts() -> None:
    """As of a hand-over, which goes on for a while before it stops the writes."""
    writes = acknowledged(0, 1, 2, 3, 253, 254)
    assert write_gap(writes, since=1 * MS, until=2000 * MS) == 250


def test_a_pause_that_begins_after_the_watched_time_belongs_to_something_else() -> None:
    writes = acknowledged(0, 20, 100, 900)
    assert write_gap(writes, since=10 * MS, until=90 * MS) == 80


def test_a_write_that_failed_does_not_end_a_gap() -> None:
    writes = [*acknowledged(0, 1), Write(2, 1 * MS, 50 * MS, "lost"), Write(3, 50 * MS, 90 * MS)]
    assert write_gap(writes, since=2 * MS, until=100 * MS) == 89
    assert failures(writes, 2 * MS, 100 * MS) == 1
    assert failures(writes, 50 * MS, 100 * MS) == 0


def test_acknowledgements_need_not_come_in_order() -> None:
    assert write_gap(acknowledged(5, 1, 40, 3), since=6 * MS, until=50 * MS) == 35


@pytest.mark.parametrize("writes", [acknowledged(20, 30), acknowledged(1, 2), []])
def test_without_acknowledgements_on_both_sides_there_is_no_gap_to_tell(writes: list[Write]) -> None:
    with pytest.raises(ValueError, match="before and after"):
        write_gap(writes, since=10 * MS, until=100 * MS)


def test_a_line_of_a_writer_is_read_back() -> None:
    assert parse_write("7 100 200 \n") == Write(7, 100, 200)
    assert parse_write("8 100 200 Error: of two words\n") == Write(8, 100, 200, "Error: of two words")


def test_a_balance_needs_each_acknowledged_message_once() -> None:
    writes = [*acknowledged(1, 2, 3), Write(3, 0, 4 * MS, "unknown")]
    whole = balance(writes, [0, 1, 2])
    assert (whole.is_balanced, whole.acknowledged, whole.unknown, whole.found) == (True, 3, 1, 3)
    assert balance(writes, [0, 1, 2, 3]).is_balanced  # what is unknown may be there
    assert balance(writes, [0, 2]).lost == [1]
    assert balance(writes, [0, 1, 1, 2]).twice == [1]
    assert balance(writes, [0, 1, 2, 3, 3]).twice == [3]
    # The writer was ended before it could write this one down
    assert balance(writes, [0, 1, 2, 4]).is_balanced
    assert balance(writes, [0, 1, 2, 9]).strange == 1


def test_percentiles_are_values_that_were_measured() -> None:
    values = [30.0, 10.0, 20.0, 40.0]
    assert [percentile(values, each) for each in (1, 50, 51, 99, 100)] == [10, 20, 30, 40, 40]
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_verdict_names_the_target_and_what_misses_it() -> None:
    assert verdict("kill", [100.0, 200.0, 500.0]) == "p50 ≤ 150: no (200), max ≤ 250: no (500)"
    assert verdict("kill", [100.0, 120.0]) == "p50 ≤ 150: yes, max ≤ 250: yes"
    assert verdict("kill", [100.0, 1100.0], busy_loops=10) == "p99 ≤ 1000: no (1100)"
    assert verdict("hand-over", [60.0], busy_loops=10) == "p99 ≤ 50: no (60)"
    assert verdict("unheard-of", [1.0]) == "-"


def test_the_table_has_a_row_per_way_and_client() -> None:
    trials = [
        Trial("kill", 0, "n1", gaps={"ledgermq": 80.0, "official": 1200.0}, return_gaps={"ledgermq": 3.0}),
        Trial("kill", 1, "n2", gaps={"ledgermq": 120.0, "official": 90.0}, return_gaps={"ledgermq": 5.0}),
        Trial("silent", 0, "n3", gaps={"ledgermq": 700.0}),
    ]
    assert table(trials).splitlines()[2:] == [
        "| kill | ledgermq | 80 | 120 | 120 | 2 | p50 ≤ 150: yes, max ≤ 250: yes | 5 |",
        "| kill | official | 90 | 1,200 | 1,200 | 2 | - | - |",
        "| silent | ledgermq | 700 | 700 | 700 | 1 | p99 ≤ 1000: yes | - |",
    ]


def test_a_row_of_raw_figures_has_the_time_line() -> None:
    trial = Trial("kill", 3, "n1", gaps={"ledgermq": 80.123}, events=[(12.34, "n2", "leads")])
    row = as_row(trial)
    assert (row["gap_ms"], row["events"]) == ({"ledgermq": 80.12}, [[12.3, "n2", "leads"]])

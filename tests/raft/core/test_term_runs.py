"""Term runs against a simple list of terms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.core.term_runs import TermRuns
from ledgermq.raft.types import LogIndex, Term

from ..core_cluster import runs_of

terms_of_logs = st.lists(st.integers(1, 6), max_size=30).map(sorted)


def make(terms: list[int]) -> TermRuns:
    return TermRuns(LogIndex(1), Term(0), runs_of(terms), LogIndex(len(terms)))


@given(terms_of_logs)
def test_every_term_is_that_of_the_list(terms: list[int]) -> None:
    log = make(terms)
    assert [log.term(LogIndex(i)) for i in range(len(terms) + 2)] == [0, *terms, None]
    assert log.last_term == (terms[-1] if terms else 0)


@given(terms_of_logs, st.integers(1, 40))
def test_truncation_and_new_entries_are_those_of_the_list(terms: list[int], cut: int) -> None:
    log = make(terms)
    log.truncate_from(LogIndex(cut))
    expected = terms[: cut - 1]
    log.append(LogIndex(len(expected) + 3), Term(7))
    expected += [7, 7, 7]
    assert [log.term(LogIndex(i + 1)) for i in range(len(expected))] == expected
    assert log.last_index == len(expected)


@given(terms_of_logs, st.data())
def test_compaction_keeps_the_base_and_what_follows(terms: list[int], data: st.DataObject) -> None:
    log = make(terms)
    first = data.draw(st.integers(1, len(terms) + 1))
    log.compact(LogIndex(first))
    assert log.first_index == first
    assert log.term(LogIndex(first - 1)) == ([0, *terms][first - 1])
    assert [log.term(LogIndex(i)) for i in range(first, len(terms) + 1)] == terms[first - 1 :]
    assert log.term(LogIndex(first - 2)) is None
    log.append(LogIndex(len(terms) + 1), Term(9))
    assert log.last_term == 9


@given(terms_of_logs, st.data())
def test_the_runs_between_two_indexes_cover_exactly_them(terms: list[int], data: st.DataObject) -> None:
    if not terms:
        return
    lo = data.draw(st.integers(1, len(terms)))
    hi = data.draw(st.integers(lo, len(terms)))
    runs = make(terms).between(LogIndex(lo), LogIndex(hi))
    assert [(i - lo + 1, t) for i, t in runs] == list(runs_of(terms[lo - 1 : hi]))


@given(terms_of_logs, terms_of_logs, st.data())
def test_the_first_difference_is_that_of_the_lists(a: list[int], b: list[int], data: st.DataObject) -> None:
    log, other = make(a), make(b)
    lo = data.draw(st.integers(1, len(b) + 1))
    hi = LogIndex(len(b))
    expected = next((i for i in range(lo, len(b) + 1) if i > len(a) or a[i - 1] != b[i - 1]), None)
    if lo <= len(a) + 1:
        assert log.first_difference(LogIndex(lo), hi, other.between(LogIndex(lo), hi)) == expected


@given(terms_of_logs, st.integers(0, 40), st.integers(0, 7))
def test_the_last_entry_of_at_most_a_term_is_that_of_the_list(
    terms: list[int], index: int, term: int
) -> None:
    expected = max((i for i in range(len(terms) + 1) if i <= index and [0, *terms][i] <= term), default=0)
    assert make(terms).last_at_most(LogIndex(index), Term(term)) == expected


def test_a_million_entries_cost_one_run() -> None:
    log = TermRuns(LogIndex(1), Term(0), ((LogIndex(1), Term(3)),), LogIndex(1_000_000))
    assert log.between(LogIndex(5), LogIndex(999_999)) == ((5, 3),)

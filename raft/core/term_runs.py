"""Terms of the log's entries, in O(number of terms) memory.

Owns: the shape of the log (first and last index, terms). Must not: hold entries or know about disks.
Invariants: `_firsts` strictly increases and starts at base_index + 1 unless the log is empty; terms strictly
increase from run to run and are >= the base term. Raft paper: 5.3.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ..types import LogIndex, Term
from .messages import TermRun


class TermRuns:
    """Entries base_index + 1 .. last_index, as runs of one term. The base is a known, committed entry."""

    __slots__ = ("_firsts", "_terms", "base_index", "base_term", "last_index")

    def __init__(
        self, first_index: LogIndex, base_term: Term, runs: Sequence[TermRun], last_index: LogIndex
    ) -> None:
        self.base_index = LogIndex(first_index - 1)  # the entry before the first retained one; only grows
        self.base_term = base_term
        self.last_index = self.base_index  # of the newest entry; base_index when the log is empty
        self._firsts: list[int] = []  # first index of each run, oldest first
        self._terms: list[Term] = []  # term of each run. Invariant: as long as `_firsts`
        self.append_runs(runs, last_index)

    @property
    def first_index(self) -> LogIndex:
        return LogIndex(self.base_index + 1)

    @property
    def last_term(self) -> Term:
        return self._terms[-1] if self._terms else self.base_term

    def term(self, index: LogIndex) -> Term | None:
        """Return the term of an entry or of the base; None when the index is outside."""
        firsts = self._firsts
        if firsts and firsts[-1] <= index <= self.last_index:  # the usual question
            return self._terms[-1]
        if index == self.base_index:
            return self.base_term
        if not self.base_index < index <= self.last_index:
            return None
        return self._terms[bisect_right(firsts, index) - 1]

    def append(self, last_index: LogIndex, term: Term) -> None:
        """Add entries of one term, up to `last_index`."""
        if last_index <= self.last_index:
            return
        assert term >= self.last_term, "terms never decrease along the log"
        if not self._terms or self._terms[-1] != term:
            self._firsts.append(self.last_index + 1)
            self._terms.append(term)
        self.last_index = last_index

    def append_runs(self, runs: Sequence[TermRun], last_index: LogIndex) -> None:
        """Add the part above the present end of `runs`, which end at `last_index`."""
        for position, (_, term) in enumerate(runs):
            end = runs[position + 1][0] - 1 if position + 1 < len(runs) else last_index
            self.append(LogIndex(end), term)

    def truncate_from(self, index: LogIndex) -> None:
        """Forget the entries >= `index`."""
        assert index > self.base_index, "the base is committed"
        while self._firsts and self._firsts[-1] >= index:
            self._firsts.pop()
            self._terms.pop()
        self.last_index = min(self.last_index, LogIndex(index - 1))

    def compact(self, first_index: LogIndex) -> None:
        """Forget the entries below `first_index`; the one before it becomes the base."""
        base = LogIndex(first_index - 1)
        if base <= self.base_index:
            return
        term = self.term(base)
        assert term is not None, "only entries of the log can become the base"
        keep = bisect_right(self._firsts, first_index) - 1
        del self._firsts[:keep], self._terms[:keep]
        self.base_index, self.base_term = base, term
        if self.last_index == base:
            self._firsts.clear()
            self._terms.clear()
        else:
            self._firsts[0] = max(self._firsts[0], first_index)

    def between(self, lo: LogIndex, hi: LogIndex) -> tuple[TermRun, ...]:
        """Return the runs that cover lo..hi, the first one starting at `lo`."""
        if hi < lo:
            return ()
        start = bisect_right(self._firsts, lo) - 1
        if start == len(self._firsts) - 1:
            return ((lo, self._terms[start]),)
        end = bisect_right(self._firsts, hi)
        return (
            (lo, self._terms[start]),
            *((LogIndex(self._firsts[i]), self._terms[i]) for i in range(start + 1, end)),
        )

    def first_difference(self, lo: LogIndex, hi: LogIndex, runs: Sequence[TermRun]) -> LogIndex | None:
        """Return the first index of lo..hi that is missing here or has another term than in `runs`."""
        index: int = max(lo, self.base_index + 1)
        stop = min(hi, self.last_index)
        theirs = 0
        while index <= stop:
            while theirs + 1 < len(runs) and runs[theirs + 1][0] <= index:
                theirs += 1
            ours = bisect_right(self._firsts, index) - 1
            if self._terms[ours] != runs[theirs][1]:
                return LogIndex(index)
            our_end = self._firsts[ours + 1] if ours + 1 < len(self._firsts) else self.last_index + 1
            their_end = runs[theirs + 1][0] if theirs + 1 < len(runs) else hi + 1
            index = min(our_end, their_end)
        return LogIndex(index) if index <= hi else None

    def last_at_most(self, index: LogIndex, term: Term) -> LogIndex:
        """Return the largest known index <= `index` whose term is <= `term`, at least the base.

        Both sides of a refused append skip whole terms with it, so a diverged tail costs one probe per term.
        """
        index = min(index, self.last_index)
        position = bisect_right(self._firsts, index) - 1
        while position >= 0 and self._terms[position] > term:
            index = LogIndex(self._firsts[position] - 1)
            position -= 1
        return max(index, self.base_index)

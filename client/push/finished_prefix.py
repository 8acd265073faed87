"""Finished prefix: how far a queue is consumed while its messages finish in any order. Pure.

Owns: the offset below which every message is finished, and the finished spans above it.
Invariants: everything below `position` is finished, and `position` itself is not, so committing it loses
nothing. `position` never decreases. Spans are [begin, end) of queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[int, int]


class FinishedPrefix:
    """The finished prefix of one queue, from `position` on."""

    __slots__ = ("_ahead", "position")

    def __init__(self, position: int) -> None:
        self.position = position  # everything below it is finished
        self._ahead: dict[int, int] = {}  # finished spans above `position`, begin → end; disjoint

    def finish(self, spans: Iterable[Span]) -> bool:
        """Record finished spans. Return whether `position` moved.

        Every span is finished once, and spans do not overlap: they come from batches, which share no offset.
        """
        before = self.position
        for begin, end in spans:
            if begin < end:
                assert begin >= self.position, "finished twice"
                self._ahead[begin] = end
        while (end := self._ahead.pop(self.position, -1)) >= 0:
            self.position = end
        return self.position > before


def cut_out(spans: Sequence[Span], offsets: Iterable[int]) -> list[Span]:
    """Return ascending spans without some of their offsets (also ascending)."""
    left: list[Span] = []
    rest = iter(offsets)
    offset = next(rest, None)
    for begin, end in spans:
        while offset is not None and offset < end:
            if begin < offset:
                left.append((begin, offset))
            begin = offset + 1
            offset = next(rest, None)
        if begin < end:
            left.append((begin, end))
    return left

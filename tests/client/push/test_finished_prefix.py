"""The finished prefix of a queue, beside a model that knows every offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.push.finished_prefix import FinishedPrefix, Span, cut_out


@st.composite
def finishes(draw: st.DrawFn) -> tuple[int, list[list[Span]]]:
    """Return where a queue begins, and its offsets cut into spans, finished in any order, some of them
    together.
    """
    begin = draw(st.integers(0, 5))
    sizes = draw(st.lists(st.integers(0, 4), max_size=30))
    spans, at = [], begin
    for size in sizes:
        spans.append((at, at + size))
        at += size
    order = draw(st.permutations(spans))
    cuts = sorted(draw(st.lists(st.integers(0, len(order)), max_size=5)))
    return begin, [order[a:b] for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@given(finishes())
def test_the_position_is_behind_the_longest_finished_prefix(case: tuple[int, list[list[Span]]]) -> None:
    begin, calls = case
    progress, finished = FinishedPrefix(begin), set[int]()
    for spans in calls:
        before = progress.position
        moved = progress.finish(spans)
        finished.update(offset for each in spans for offset in range(*each))
        expected = begin
        while expected in finished:
            expected += 1
        assert progress.position == expected
        assert moved == (expected > before)


@given(
    st.lists(st.integers(1, 6), max_size=8),
    st.sets(st.integers(0, 40)),
)
def test_what_is_cut_out_is_missing_and_nothing_else(sizes: list[int], kept: set[int]) -> None:
    spans, at = [], 0
    for size in sizes:
        spans.append((at, at + size))
        at += size + 1  # gaps between the spans
    covered = [offset for each in spans for offset in range(*each)]
    kept &= set(covered)
    left = cut_out(spans, sorted(kept))
    assert [offset for each in left for offset in range(*each)] == [o for o in covered if o not in kept]
    assert all(begin < end for begin, end in left)

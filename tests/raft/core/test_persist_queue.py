"""Fold of rule P7: what is durable, whatever is reported late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.raft.core.persist_queue import PersistQueue
from ledgermq.raft.types import HardState, LogIndex


def test_a_late_report_confirms_nothing_that_was_overwritten() -> None:
    """append 5-7, cut 5 and append 5-6, cut 5 and append 5-7: only the last report makes 5-7 durable."""
    queue = PersistQueue(LogIndex(4))
    queue.append(LogIndex(5), LogIndex(7))
    assert queue.take() is not None
    for last in (6, 7):
        queue.truncate_from(LogIndex(5))
        queue.append(LogIndex(5), LogIndex(last))
        assert queue.take() is not None
    seen = []
    for seq in (1, 2, 3):
        queue.done(seq)
        seen.append(queue.stable_index)
    assert seen == [4, 4, 7]


def test_changes_of_one_turn_share_an_operation() -> None:
    queue = PersistQueue(LogIndex(0))
    queue.set_hard_state(HardState())
    queue.append(LogIndex(1), LogIndex(1))
    queue.append(LogIndex(2), LogIndex(5))
    persist = queue.take()
    assert persist is not None
    assert (persist.seq, persist.append, persist.hard_state) == (1, (1, 5), HardState())
    assert queue.take() is None


def test_a_cut_after_an_append_is_an_operation_of_its_own() -> None:
    queue = PersistQueue(LogIndex(0))
    queue.append(LogIndex(1), LogIndex(4))
    queue.truncate_from(LogIndex(3))
    first, second = queue.take(), queue.take()
    assert first is not None and second is not None
    assert (first.append, first.truncate_from, second.truncate_from) == ((1, 4), None, 3)


@given(st.lists(st.one_of(st.integers(1, 5), st.integers(-8, -1)), max_size=25), st.data())
def test_stable_is_what_no_pending_cut_touches(changes: list[int], data: st.DataObject) -> None:
    """Against a simple model: an entry is stable if it is on disk and nothing pending cuts at or below it."""
    queue = PersistQueue(LogIndex(0))
    last = 0
    ops: list[tuple[int | None, int]] = []  # (cut, end afterwards)
    for change in changes:
        if change > 0:
            queue.append(LogIndex(last + 1), LogIndex(last + change))
            last += change
            ops.append((None, last))
        elif last + change >= 0:
            queue.truncate_from(LogIndex(last + change + 1))
            last += change
            ops.append((last + 1, last))
        else:
            continue
        assert queue.take() is not None
    done = data.draw(st.integers(0, len(ops)))
    queue.done(done)
    on_disk = ops[done - 1][1] if done else 0
    pending = [cut - 1 for cut, _ in ops[done:] if cut is not None]
    assert queue.stable_index == min([on_disk, *pending])

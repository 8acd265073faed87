"""Storage operations of one core: which are asked for, which are done, and what is durable therefore.

Owns: numbering of operations, `stable_index`. Must not: write anything itself.
Invariants (raft rules P7, P1): operations are numbered from 1, carried out and reported in that order;
stable_index = min(end of the log after the done operations, lowest cut of the pending ones - 1), so a late
report about entries that were overwritten meanwhile confirms nothing.
"""

from __future__ import annotations

from collections import deque

from ..types import HardState, LogIndex
from .outputs import Persist


class PersistQueue:
    """Collects the changes of a turn into one operation; remembers the pending ones."""

    __slots__ = (
        "_append", "_closed", "_cuts", "_disk_last", "_ends", "_hard_state", "_last_seq", "_open",
        "_truncate", "done_seq", "hard_state_seq", "stable_index",
    )  # fmt: skip

    def __init__(self, stable_index: LogIndex) -> None:
        # Operations up to this one are on stable storage. Invariant: done_seq <= last_seq
        self.done_seq = 0
        self.hard_state_seq = 0  # operation with the newest hard state; above done_seq: not durable yet
        self.stable_index = stable_index  # entries up to here are durable, and still those of the log
        self._disk_last = stable_index  # end of the log on disk after the done operations
        self._last_seq = 0  # newest operation, handed out or not
        self._open = False  # the operation `_last_seq` still takes changes
        # Changes of the open operation. Inside an operation a truncation comes before the append
        self._hard_state: HardState | None = None
        self._truncate: LogIndex | None = None
        self._append: tuple[LogIndex, LogIndex] | None = None
        self._closed: deque[Persist] = deque()  # complete, not handed to the storage yet; oldest first
        self._cuts: deque[tuple[int, LogIndex]] = deque()  # (seq, truncate_from) of open operations
        self._ends: deque[tuple[int, LogIndex, bool]] = deque()  # (seq, end of log, is a cut) of them

    @property
    def last_seq(self) -> int:
        """Number of the newest operation: once it is done, so is everything that was asked for before."""
        return self._last_seq

    @property
    def has_any(self) -> bool:
        return self._open or bool(self._closed)

    @property
    def has_several(self) -> bool:
        return len(self._closed) + self._open > 1

    def set_hard_state(self, hard_state: HardState) -> None:
        """Ask for a durable hard state."""
        self._begin()
        self._hard_state = hard_state
        self.hard_state_seq = self._last_seq

    def truncate_from(self, index: LogIndex) -> None:
        """Ask to cut off the entries >= `index`."""
        if self._open and self._append is not None:
            self._close()  # inside an operation, truncation comes before append
        self._begin()
        self._truncate = index if self._truncate is None else min(index, self._truncate)
        self._cuts.append((self._last_seq, index))
        self._ends.append((self._last_seq, LogIndex(index - 1), True))
        self._fold()

    def append(self, lo: LogIndex, hi: LogIndex) -> None:
        """Ask for durable entries lo..hi, which follow the log's end."""
        self._begin()
        if self._append is not None:
            assert lo == self._append[1] + 1, "entries are appended in order"
            lo = self._append[0]
        self._append = (lo, hi)
        self._ends.append((self._last_seq, hi, False))

    def take(self) -> Persist | None:
        """Return the next operation to hand to the storage."""
        if not self._closed:
            if not self._open:
                return None
            self._close()
        return self._closed.popleft()

    def done(self, seq: int) -> None:
        """Note that all operations <= `seq` are on stable storage."""
        assert seq <= self._last_seq, "the storage reports what it was given"
        if seq <= self.done_seq:
            return
        self.done_seq = seq
        while self._ends and self._ends[0][0] <= seq:
            _, end, is_cut = self._ends.popleft()
            self._disk_last = min(self._disk_last, end) if is_cut else end
        while self._cuts and self._cuts[0][0] <= seq:
            self._cuts.popleft()
        self._fold()

    def _fold(self) -> None:
        stable = self._disk_last
        for _, cut in self._cuts:
            stable = min(stable, LogIndex(cut - 1))
        self.stable_index = stable

    def _begin(self) -> None:
        if not self._open:
            self._open = True
            self._last_seq += 1

    def _close(self) -> None:
        self._closed.append(Persist(self._last_seq, self._hard_state, self._truncate, self._append))
        self._open = False
        self._hard_state = self._truncate = self._append = None

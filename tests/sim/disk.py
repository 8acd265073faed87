"""A disk that forgets what was not synced, in the order it was asked to remember it.

Operations are carried out first in, first out. A flush takes all that is queued, lasts a random time, and only then
is reported. A crash keeps any prefix of what was under way: entry by entry, hard state and truncation included.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ledgermq.raft.types import HardState, LogIndex, Term


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry in the simulation. `chain` identifies the whole log up to it."""

    term: int
    value: int
    chain: int

    @property
    def size(self) -> int:
        return 100 + self.value % 400


def next_entry(before: int, term: int, value: int) -> Entry:
    """Return the entry that follows a log whose chain value is `before`."""
    return Entry(term, value, hash((before, term, value)))


@dataclass(slots=True)
class Log:
    """Entries base + 1 .. last, in memory or on a disk."""

    base: int = 0
    base_term: int = 0
    base_chain: int = 0
    entries: list[Entry] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    def chain(self, index: int) -> int | None:
        """Chain value at an index; None outside."""
        if index == self.base:
            return self.base_chain
        if self.base < index <= self.last:
            return self.entries[index - self.base - 1].chain
        return None

    def slice(self, lo: int, hi: int) -> list[Entry]:
        return self.entries[lo - self.base - 1 : hi - self.base]

    def truncate_from(self, index: int) -> None:
        assert index > self.base
        del self.entries[index - self.base - 1 :]

    def compact(self, first: int) -> None:
        if first - 1 <= self.base:
            return
        dropped = self.slice(self.base + 1, first - 1)
        self.base, self.base_term, self.base_chain = first - 1, dropped[-1].term, dropped[-1].chain
        del self.entries[: len(dropped)]

    def runs(self) -> tuple[tuple[LogIndex, Term], ...]:
        result: list[tuple[LogIndex, Term]] = []
        for offset, entry in enumerate(self.entries):
            if not result or result[-1][1] != entry.term:
                result.append((LogIndex(self.base + 1 + offset), Term(entry.term)))
        return tuple(result)

    def copy(self) -> Log:
        return Log(self.base, self.base_term, self.base_chain, list(self.entries))


Step = HardState | int | Entry  # hard state, truncate from, append one


class SimDisk:
    """What one node's disk holds, and what it was asked to hold."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.hard_state = HardState()
        self.log = Log()
        self.checkpoint = 0  # applied state that survives
        self.delay_us = (100, 3000)
        self._queued: deque[tuple[int, list[Step]]] = deque()
        self._flushing: list[tuple[int, list[Step]]] = []

    def submit(self, seq: int, steps: list[Step], start: Callable[[int], None]) -> None:
        """Queue an operation; `start(delay)` is called when a flush begins, which ends by `finish`."""
        self._queued.append((seq, steps))
        if not self._flushing:
            self._begin(start)

    def finish(self, start: Callable[[int], None]) -> int:
        """The flush is done: return the highest number that is durable, and begin the next flush."""
        seq = self._flushing[-1][0]
        for _, steps in self._flushing:
            for step in steps:
                self._apply(step)
        self._flushing = []
        if self._queued:
            self._begin(start)
        return seq

    def crash(self) -> None:
        """Power goes: any prefix of what was not reported may have reached the platter."""
        steps = [step for _, group in [*self._flushing, *self._queued] for step in group]
        keep = self.rng.choice((0, len(steps), self.rng.randint(0, len(steps))))
        for step in steps[:keep]:
            self._apply(step)
        self._flushing = []
        self._queued.clear()

    def wipe(self) -> None:
        """A new disk under an old name: the node comes back as a learner (rule P19)."""
        self.hard_state = HardState(is_voter=False)
        self.log = Log()
        self.checkpoint = 0

    def _begin(self, start: Callable[[int], None]) -> None:
        self._flushing = list(self._queued)
        self._queued.clear()
        start(self.rng.randint(*self.delay_us))

    def _apply(self, step: Step) -> None:
        if isinstance(step, HardState):
            self.hard_state = step
        elif isinstance(step, Entry):
            self.log.entries.append(step)
        else:
            self.log.truncate_from(step)

"""Lateness of a node's timers and peers: the delay that an election timeout must tolerate.

Owns: the measure, and the patience that follows from it. Must not: read a clock; the caller counts ticks. A
single pause says nothing about the next one, so the second worst value of the last one or two windows counts.
"""

from __future__ import annotations

from .config import CoreConfig


class SecondWorst:
    """Second worst value of the last one or two windows, in `ticks`. Values above `limit` do not count:
    whatever was silent for longer was away, not late.
    """

    __slots__ = ("_before", "_limit", "_now", "ticks")

    def __init__(self, limit: int) -> None:
        self.ticks = 0
        self._limit = limit
        self._now = (0, 0)  # the worst and the second worst value of this window
        self._before = (0, 0)  # the same of the window before

    def note(self, late: int) -> None:
        """Record that something came this many ticks late."""
        worst, second = self._now
        if second < late <= self._limit:
            self._now = (late, worst) if late > worst else (worst, late)
            self._judge()

    def roll(self) -> None:
        """End a window: its values count until the next one has ended."""
        self._before, self._now = self._now, (0, 0)
        self._judge()

    def _judge(self) -> None:
        self.ticks = sorted((*self._before, *self._now))[-2]


class Lateness:
    """Lateness of one node. A machine that has CPU again fails over as fast as before, two windows later."""

    __slots__ = ("_age", "_config", "patience", "peers", "timers")

    def __init__(self, config: CoreConfig) -> None:
        self._config = config
        self.timers = SecondWorst(config.patience_ticks_max)  # of this node's own timers
        self.peers = SecondWorst(config.patience_ticks_max)  # of heartbeats, or of the answers to them
        self._age = 0  # of the present window of both
        self.patience = 0  # each full election timeout is longer by this

    def note_timer(self, ticks: int) -> None:
        """Note that a timer fired so many ticks late."""
        self.timers.note(ticks)
        self._judge()

    def note_peer(self, ticks: int) -> None:
        """Note that a peer was heard `ticks` after the last time; expected is one heartbeat interval."""
        if ticks > 2 * self._config.heartbeat_ticks:
            self.peers.note(ticks - self._config.heartbeat_ticks)
            self._judge()

    def tick(self) -> None:
        """Count a tick of the window."""
        self._age += 1
        if self._age >= self._config.lateness_window_ticks:
            self._age = 0
            self.timers.roll()
            self.peers.roll()
            self._judge()

    def quiet_ticks(self) -> int:
        """Return how many ticks do not end the window; after that timeouts may shrink."""
        return self._config.lateness_window_ticks - self._age - 1

    def _judge(self) -> None:
        late = max(self.timers.ticks, self.peers.ticks)
        is_starved = late > self._config.heartbeat_ticks  # less happens on every machine now and then
        self.patience = min(3 * late, self._config.patience_ticks_max) if is_starved else 0

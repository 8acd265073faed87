"""Carries "durable up to this operation" from the flusher's thread to the event loop.

Owns: what was reported and what was heard. Must not: know what an operation is. Waking the loop costs more than what it
then does, and a leader that waits for its followers learns nothing from its own flush: it hears of it with the first of
their answers, or with the next tick. Invariant: what was reported is heard by the next `look`, and without one at once
unless the loop was patient.
"""

from __future__ import annotations

from collections.abc import Callable


class DurableReports:
    """`report` comes from the thread, everything else from the loop."""

    def __init__(self, post: Callable[[Callable[[], None]], object], hear: Callable[[int], None]) -> None:
        """`post` is `loop.call_soon_threadsafe`; `hear(seq)` is called on the loop, with growing numbers."""
        self._post = post
        self._hear = hear
        self._reported = 0
        self._heard = 0
        self._is_patient = False

    def report(self, seq: int) -> None:
        """Everything up to operation `seq` is durable."""
        self._reported = seq
        if not self._is_patient:  # looked at after the report is there: see `look`
            self._post(self.look)

    def look(self) -> None:
        """Hear what was reported; wake the loop for what comes from now on."""
        self._is_patient = False  # before the look: a report that comes in between is seen, or wakes the loop
        if self._reported > self._heard:
            self._heard = self._reported
            self._hear(self._heard)

    def hurry(self) -> None:
        """As `look`, but not before the loop's next turn."""
        self._is_patient = False
        if self._reported > self._heard:
            self._post(self.look)

    def be_patient(self) -> None:
        """The next report need not wake the loop: it will look before anything depends on it."""
        self._is_patient = True

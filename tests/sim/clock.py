"""Clocks of one node: a monotonic one with its own rate, and a wall clock that is set at times."""

from __future__ import annotations

from collections.abc import Callable

BEGIN_MS = 1_700_000_000_000


class SimClock:
    """Times in milliseconds. `rate`: speed of the monotonic clock. `step` sets the wall clock."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._rate = 1.0
        self._base_ms = 0.0
        self._since_us = 0
        self.offset_ms = 0.0

    def set_rate(self, rate: float) -> None:
        """Change the rate from now on."""
        self._base_ms = self.monotonic_ms()
        self._since_us = self._now_us()
        self._rate = rate

    def step(self, by_ms: float) -> None:
        """Set the wall clock. The monotonic clock is unaffected."""
        self.offset_ms += by_ms

    def monotonic_ms(self) -> float:
        """Return the time since an arbitrary moment. It never decreases."""
        return self._base_ms + (self._now_us() - self._since_us) / 1000 * self._rate

    def wall_ms(self) -> float:
        """Return the node's time of day."""
        return BEGIN_MS + self.offset_ms + self.monotonic_ms()

"""One node's clocks: a monotonic one at its own pace, and a wall clock that is set at times."""

from __future__ import annotations

from collections.abc import Callable

BEGIN_MS = 1_700_000_000_000


class SimClock:
    """Milliseconds. `rate` is how fast the monotonic clock runs; `step` sets the wall clock."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._rate = 1.0
        self._base_ms = 0.0
        self._since_us = 0
        self.offset_ms = 0.0

    def set_rate(self, rate: float) -> None:
        """Go at another pace from now on."""
        self._base_ms = self.monotonic_ms()
        self._since_us = self._now_us()
        self._rate = rate

    def step(self, by_ms: float) -> None:
        """Set the wall clock; the monotonic one does not notice."""
        self.offset_ms += by_ms

    def monotonic_ms(self) -> float:
        """Time since some moment; never goes back."""
        return self._base_ms + (self._now_us() - self._since_us) / 1000 * self._rate

    def wall_ms(self) -> float:
        """What the node takes for the time of day."""
        return BEGIN_MS + self.offset_ms + self.monotonic_ms()

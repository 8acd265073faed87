"""Scrub plan: how fast the scrubber reads, and when a pass begins. Pure arithmetic.

Owns: two rules. A pass over the whole log takes at most the interval; if need be it reads faster than the
configured rate. The next pass begins once the interval has passed since the last one began.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ScrubPlan:
    """Settings of the scrubber. `bytes_per_second` 0: no scrubbing. Times are in seconds."""

    bytes_per_second: int
    interval_s: float

    def __post_init__(self) -> None:
        if self.bytes_per_second < 0 or self.interval_s <= 0:
            raise ConfigurationError(
                "the scrubber's rate must not be negative, and its interval must be positive:"
                f" {self.bytes_per_second} bytes/s, {self.interval_s} s"
            )

    @property
    def is_on(self) -> bool:
        return self.bytes_per_second > 0

    def rate(self, log_bytes: int) -> float:
        """Return the read rate (bytes per second) for a log of that size."""
        return max(float(self.bytes_per_second), log_bytes / self.interval_s)

    def pause_s(self, read_bytes: int, took_s: float, log_bytes: int) -> float:
        """Return how long to pause after a piece to keep the rate."""
        return max(0.0, read_bytes / self.rate(log_bytes) - took_s)

    def wait_s(self, since_begin_s: float) -> float:
        """Return how long after a finished pass the next one begins."""
        return max(0.0, self.interval_s - since_begin_s)

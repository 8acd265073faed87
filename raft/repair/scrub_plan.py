"""Scrub plan: how fast the scrubber reads, and when a pass begins. Pure arithmetic.

Owns: two rules. A pass over the whole log takes at most the interval; if need be it reads faster than the
configured rate. The next pass begins once the interval has passed since the last one began. And one
exception: what has no digests yet is read faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import ConfigurationError

#: Sealed segments without digests are read so fast that it takes about this long,
DIGEST_WITHIN_S: Final = 600.0
#: at most at this many times the configured rate: verifying small entries costs CPU.
DIGEST_LIMIT: Final = 4


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

    def rate(self, log_bytes: int, undigested_bytes: int = 0) -> float:
        """Return the read rate (bytes per second) for a log of that size.

        `undigested_bytes`: in sealed segments without digests, one of which is being read. Digests keep up
        with a log that grows faster than the rate, up to a limit.
        """
        digesting = min(undigested_bytes / DIGEST_WITHIN_S, DIGEST_LIMIT * self.bytes_per_second)
        return max(float(self.bytes_per_second), log_bytes / self.interval_s, digesting)

    def pause_s(self, read_bytes: int, took_s: float, log_bytes: int, undigested_bytes: int = 0) -> float:
        """Return how long to pause after a piece to keep the rate."""
        return max(0.0, read_bytes / self.rate(log_bytes, undigested_bytes) - took_s)

    def wait_s(self, since_begin_s: float) -> float:
        """Return how long after a finished pass the next one begins."""
        return max(0.0, self.interval_s - since_begin_s)

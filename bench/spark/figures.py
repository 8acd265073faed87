"""Ways to move the same rows, measured in turns; medians of their runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkFigure:
    """One way, for bodies of one size."""

    system: str
    way: str
    size: int  # bytes of a body
    messages: int
    runs: tuple[float, ...]  # s each

    @property
    def seconds(self) -> float:
        return statistics.median(self.runs)

    @property
    def line(self) -> str:
        rate = self.messages / self.seconds
        speed = f"{rate:>12,.0f} messages/s  {rate * self.size / 1e6:>7,.0f} MB/s"
        spread = f"{min(self.runs):.2f}-{max(self.runs):.2f} s"
        return f"{self.size:>6} B  {self.system:<9} {self.way:<24} {speed}  ({spread})"


def in_turns(
    ways: Mapping[tuple[str, str], Callable[[], None]], size: int, messages: int, runs: int
) -> list[SparkFigure]:
    """Call every way in turns. `ways`: by system and name. The first round warms up and is not counted."""
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if run:
                seconds[name].append(time.perf_counter() - begun)
    return [
        SparkFigure(system, way, size, messages, tuple(found)) for (system, way), found in seconds.items()
    ]

"""The wires: every directed link delays, loses, repeats and reorders, and can be cut one way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Network:
    """Decides when, and how often, a message arrives. Delays are microseconds."""

    rng: random.Random
    delay_us: tuple[int, int] = (200, 2000)
    loss: float = 0.0
    repeat: float = 0.0
    straggle: float = 0.0  # share of messages that come up to `straggle_us` late
    straggle_us: int = 500_000
    cuts: dict[tuple[str, str], bool] = field(default_factory=dict)

    def deliveries(self, source: str, target: str) -> list[int]:
        """Return the delays after which copies of a message arrive; none when it is lost."""
        rng = self.rng
        if (source, target) in self.cuts or (self.loss and rng.random() < self.loss):
            return []
        copies = 2 if self.repeat and rng.random() < self.repeat else 1
        result = []
        for _ in range(copies):
            delay = rng.randint(*self.delay_us)
            if self.straggle and rng.random() < self.straggle:
                delay += rng.randint(0, self.straggle_us)
            result.append(delay)
        return result

    def cut(self, sources: list[str], targets: list[str], *, both_ways: bool = True) -> None:
        """Stop messages from `sources` to `targets`."""
        for source in sources:
            for target in targets:
                self.cuts[source, target] = True
                if both_ways:
                    self.cuts[target, source] = True

    def heal(self) -> None:
        """Mend every link."""
        self.cuts.clear()

    def calm(self) -> None:
        """Mend, and be a good network from now on."""
        self.heal()
        self.loss = self.repeat = self.straggle = 0.0
        self.delay_us = (200, 2000)

"""Simulated network: every directed link delays, loses, repeats, reorders, blocks, and can be cut one way.

The shapes: isolation, halves, chain, ring of overlapping majorities, bridge, one way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

Link = tuple[str, str]


@dataclass(slots=True)
class Network:
    """Decides when, and how often, a message arrives. Delays are in microseconds."""

    rng: random.Random
    delay_us: tuple[int, int] = (200, 2000)
    loss: float = 0.0
    repeat: float = 0.0
    straggle: float = 0.0  # share of messages that are up to `straggle_us` late
    straggle_us: int = 500_000
    held: float = 0.0  # share of messages over a cut link that arrive late instead of never
    cuts: dict[Link, bool] = field(default_factory=dict)
    clogged: dict[Link, int] = field(default_factory=dict)  # nothing arrives before this time
    slow: dict[Link, int] = field(default_factory=dict)  # extra delay of a link
    flips: float = 0.0  # share of messages with one flipped bit
    flip_rng: random.Random = field(default_factory=random.Random)
    flipped: int = 0

    def deliveries(self, source: str, target: str, now: int) -> list[int]:
        """Return the delays after which copies of a message arrive; none if it is lost."""
        rng = self.rng
        link = (source, target)
        if link in self.cuts:  # a connection may deliver long after its end
            is_held = self.held and rng.random() < self.held
            return [rng.randint(self.delay_us[0], self.straggle_us)] if is_held else []
        if self.loss and rng.random() < self.loss:
            return []
        lowest, highest = self.delay_us
        copies = 2 if self.repeat and rng.random() < self.repeat else 1
        result = []
        for _ in range(copies):
            delay = lowest + int(rng.random() * (highest - lowest))
            if self.straggle and rng.random() < self.straggle:
                delay += rng.randint(0, self.straggle_us)
            if self.slow:
                delay += self.slow.get(link, 0)
            if self.clogged:
                delay = max(delay, self.clogged.get(link, 0) - now)
            result.append(delay)
        return result

    def spoil(self, data: bytes) -> bytes:
        """Return the bytes as they arrive."""
        if not self.flips or self.flip_rng.random() >= self.flips:
            return data
        self.flipped += 1
        place = self.flip_rng.randrange(len(data))
        return data[:place] + bytes((data[place] ^ 1 << self.flip_rng.randrange(8),)) + data[place + 1 :]

    def cut(self, sources: list[str], targets: list[str], *, both_ways: bool = True) -> None:
        """Stop messages from `sources` to `targets`."""
        for source in sources:
            for target in targets:
                self.cuts[source, target] = True
                if both_ways:
                    self.cuts[target, source] = True

    def only(self, links: list[Link], names: list[str]) -> None:
        """Cut everything but these links, in both directions."""
        kept = dict.fromkeys([*links, *((b, a) for a, b in links)])
        for source in names:
            for target in names:
                if source != target and (source, target) not in kept:
                    self.cuts[source, target] = True

    def heal(self) -> None:
        """Restore every link."""
        self.cuts.clear()
        self.clogged.clear()
        self.slow.clear()

    def calm(self) -> None:
        """Restore every link, and be a good network from now on."""
        self.heal()
        self.loss = self.repeat = self.straggle = self.held = self.flips = 0.0
        self.delay_us = (200, 2000)


def _isolate_one(network: Network, names: list[str], _rng: random.Random) -> None:
    network.cut(names[:1], names[1:])


def _deaf(network: Network, names: list[str], _rng: random.Random) -> None:
    network.cut(names[1:], names[:1], both_ways=False)


def _mute(network: Network, names: list[str], _rng: random.Random) -> None:
    network.cut(names[:1], names[1:], both_ways=False)


def _halves(network: Network, names: list[str], rng: random.Random) -> None:
    half = rng.randint(1, len(names))
    network.cut(names[:half], names[half:])


def _minority(network: Network, names: list[str], _rng: random.Random) -> None:
    few = (len(names) - 1) // 2
    network.cut(names[:few], names[few:])


def _all_apart(network: Network, names: list[str], _rng: random.Random) -> None:
    network.only([], names)


def _chain(network: Network, names: list[str], _rng: random.Random) -> None:
    network.only(list(pairwise(names)), names)


def _ring(network: Network, names: list[str], _rng: random.Random) -> None:
    """Every node sees its neighbours: each sees a majority, and no two see the same one."""
    network.only([*pairwise(names), (names[-1], names[0])], names)


def _bridge(network: Network, names: list[str], _rng: random.Random) -> None:
    """Two halves that meet only in one node."""
    bridge, rest = names[0], names[1:]
    half = len(rest) // 2
    network.cut(rest[:half], rest[half:])
    network.cuts.pop((bridge, bridge), None)


def _one_link(network: Network, names: list[str], rng: random.Random) -> None:
    network.cut(names[:1], names[-1:], both_ways=rng.random() < 0.5)


SHAPES: Final = {
    "isolation": _isolate_one, "deaf": _deaf, "mute": _mute, "halves": _halves, "minority": _minority,
    "all apart": _all_apart, "chain": _chain, "ring": _ring, "bridge": _bridge, "one link": _one_link,
}  # fmt: skip
"""Shapes of a cut network. The first of the (shuffled) names is the isolated node, or the bridge."""

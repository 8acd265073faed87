"""Comparison of `make bench-quick`: ratios to references of the same run, judged against a baseline. Pure.

Owns: the ratios, the bands, the verdicts, the form of the baseline. The ratio of LedgerMQ's figure to that of
a fixed reference, measured just before and after, is meaningful even on a shared or different machine. CPU
time per message is the most reliable.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Percent by which a ratio may be worse before it counts as slower: minimum bands by the kind of figure.
LEAST_BANDS: Final = {"latency": 35, "rate": 30, "cpu": 15}
#: If other programs use more of the machine than this, wall-clock times are meaningless: only CPU time is
#: judged.
BUSY_PERCENT: Final = 20
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures of the reference workload."""

    echo_rate: float  # unary calls per second, 64 callers
    echo_cpu_us: float  # per unary call, client and server
    stream_ms: float  # p50 of a round trip on an open stream
    flush_ms: float  # p50 of a 4 KiB append with fdatasync

    def mean(self, other: Reference) -> Reference:
        """Return the mean of two references, taken before and after."""
        return Reference(
            (self.echo_rate + other.echo_rate) / 2,
            (self.echo_cpu_us + other.echo_cpu_us) / 2,
            (self.stream_ms + other.stream_ms) / 2,
            (self.flush_ms + other.flush_ms) / 2,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one workload in one round."""

    rate: float
    p50_ms: float
    cpu_us: float  # per message, all nodes and the client


@dataclass(frozen=True, slots=True)
class Ratio:
    """One ratio of one workload. `kind`: latency, rate or cpu."""

    workload: str
    kind: str

    @property
    def name(self) -> str:
        what = {
            "latency": "p50 / (echo stream + flush p50)",
            "rate": "rate / echo rate",
            "cpu": "CPU per message / per echo call",
        }
        return f"{self.workload} {what[self.kind]}"

    @property
    def calm_only(self) -> bool:
        """True if other programs make it meaningless: they change how many calls of W6 share an entry.

        For the same reason W5 has no ratio of CPU time: the faster the nodes, the fewer messages share an
        entry.
        """
        return self.kind != "cpu" or self.workload == "W6"

    @property
    def higher_is_better(self) -> bool:
        return self.kind == "rate"

    def of(self, sample: Sample, reference: Reference) -> float:
        if self.kind == "latency":
            return sample.p50_ms / (reference.stream_ms + reference.flush_ms)
        if self.kind == "rate":
            return sample.rate / reference.echo_rate
        return sample.cpu_us / reference.echo_cpu_us


_RATED: Final = ("W2", "W3", "W3 send_batch", "W4", "W6")
RATIOS: Final = (
    Ratio("W1", "latency"),
    Ratio("W5", "latency"),
    *(Ratio(name, "rate") for name in _RATED),
    *(Ratio(name, "cpu") for name in ("W1", *_RATED)),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One ratio beside the baseline. `slower_percent`: above 0 it is worse; None without a baseline."""

    name: str
    now: float  # median of the rounds
    least: float
    most: float
    baseline: float | None
    slower_percent: float | None
    band_percent: float
    judged: bool = True  # False: other programs interfered

    @property
    def verdict(self) -> str:
        if self.slower_percent is None:
            return "new"
        if not self.judged:
            return "not judged"
        if self.slower_percent > self.band_percent:
            return f"slower than the baseline by {self.slower_percent:.0f} %"
        if self.slower_percent < -self.band_percent:
            return "faster"
        return "same"

    @property
    def slower(self) -> bool:
        return self.verdict.startswith("slower")


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload in one round, and the mean of the references right before and after it."""

    sample: Sample
    reference: Reference


Rounds = Mapping[str, Sequence[float]]  # by name of the ratio: one value per round


def fold(rounds: Sequence[Mapping[str, Measured]]) -> dict[str, list[float]]:
    """Return each ratio of each round. `rounds`: measurements by workload."""
    found: dict[str, list[float]] = {}
    for ratio in RATIOS:
        measured = [each[ratio.workload] for each in rounds if ratio.workload in each]
        if measured:
            found[ratio.name] = [ratio.of(each.sample, each.reference) for each in measured]
    return found


def compare(rounds: Rounds, baseline: Mapping[str, Any] | None, others_percent: float = 0.0) -> list[Line]:
    """Compare the medians with the baseline's. `others_percent`: CPU share of other programs meanwhile.

    Raises: ValueError (a baseline of another format).
    """
    calm = others_percent <= BUSY_PERCENT
    if baseline is not None and baseline.get("format") != _FORMAT:
        raise ValueError(
            f"the baseline has format {baseline.get('format')}, not {_FORMAT}; make it again: --update"
        )
    known: Mapping[str, Any] = baseline["ratios"] if baseline is not None else {}
    lines = []
    for ratio in RATIOS:
        if not (values := rounds.get(ratio.name)):
            continue
        now = statistics.median(values)
        then = known.get(ratio.name)
        slower = _slower_percent(ratio, now, then["median"]) if then else None
        band = then["band_percent"] if then else LEAST_BANDS[ratio.kind]
        judged = calm or not ratio.calm_only
        median = then["median"] if then else None
        lines.append(Line(ratio.name, now, min(values), max(values), median, slower, band, judged))
    return lines


def _slower_percent(ratio: Ratio, now: float, then: float) -> float:
    """Return the additional time per message in percent."""
    return 100 * ((then / now if ratio.higher_is_better else now / then) - 1)


def new_baseline(rounds: Rounds, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return a baseline of these rounds.

    A band is twice their spread, limited to one to two times the kind's minimum.
    """
    ratios = {}
    for ratio in RATIOS:
        if values := rounds.get(ratio.name):
            median = statistics.median(values)
            spread = 100 * max(max(values) / median - 1, median / min(values) - 1)
            least = LEAST_BANDS[ratio.kind]
            band = min(max(least, 5 * round(2 * spread / 5)), 2 * least)
            ratios[ratio.name] = {"median": float(f"{median:.4g}"), "band_percent": band}
    return {"format": _FORMAT, **where, "ratios": ratios}


def conclusion(lines: Sequence[Line]) -> str:
    """Return the conclusion in one sentence."""
    slower = [line for line in lines if line.slower]
    if slower:
        worst = "; ".join(f"{line.name}: {line.verdict}" for line in slower)
        return f"SLOWER: {len(slower)} of {len(lines)} ratios are out of their bands. {worst}"
    if all(line.baseline is None for line in lines):
        return "there is no baseline to compare with; write one: make bench-quick ARGS=--update"
    judged = sum(line.judged for line in lines)
    text = f"none of {judged} ratios is slower than the baseline, within the bands"
    return text if judged == len(lines) else f"{text}; {len(lines) - judged} were not judged"

"""Write gaps of a failover, from the acknowledgements of a steady writer. Pure.

All times of writers are nanoseconds of the machine's monotonic clock, which all its processes share.
A write gap is the longest time between two consecutive acknowledgements, starting with the last one before
the leader's end. So a stall later than the end counts too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

_MS: Final = 1e-6

#: Required results per way: (percentile or 100 for the maximum, ms).
TARGETS: Final[dict[str, tuple[tuple[int, float], ...]]] = {
    "kill": ((50, 150.0), (100, 250.0)),
    "hand-over": ((99, 50.0),),
    "silent": ((99, 1000.0),),
    "silent-host": ((99, 1000.0),),
    "container-kill": ((50, 400.0),),
    "lost-host": ((99, 1000.0),),
}

#: The same with busy loops beside it. Ways that are not here keep their targets.
TARGETS_UNDER_LOAD: Final = TARGETS | {"kill": ((99, 1000.0),)}


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a writer.

    Each number is sent by one call only, so a write with unknown outcome is never repeated.
    """

    number: int
    begun: int
    ended: int
    error: str = ""  # "": acknowledged

    @property
    def acknowledged(self) -> bool:
        return not self.error


def parse_write(line: str) -> Write:
    """Parse a line of a writer: `number begun ended [error]`."""
    number, begun, ended, *error = line.split(maxsplit=3)
    return Write(int(number), int(begun), int(ended), error[0].strip() if error else "")


@dataclass(slots=True)
class Trial:
    """One end of a leader. Gaps are in ms by client; `events` are from the logs, in ms after the end."""

    way: str
    number: int
    leader: str
    gaps: dict[str, float] = field(default_factory=dict)
    return_gaps: dict[str, float] = field(default_factory=dict)  # while the ended node came back
    errors: dict[str, int] = field(default_factory=dict)  # failed writes meanwhile
    events: list[tuple[float, str, str]] = field(default_factory=list)
    return_events: list[tuple[float, str, str]] = field(default_factory=list)  # in ms after its return
    load: float = 0.0  # load of the machine over the last minute, when the leader ended

    @property
    def longest(self) -> float:
        """Longest gap (ms) of any client."""
        return max(self.gaps.values(), default=0.0)


def write_gap(writes: Sequence[Write], since: int, until: int) -> float:
    """Return the longest time (ms) without an acknowledgement, of pauses that end after `since` and begin
    before `until`.

    Raises: ValueError (no acknowledgement before `since`, or none after it).
    """
    acknowledged = sorted(write.ended for write in writes if write.acknowledged)
    pauses = [after - before for before, after in pairwise(acknowledged) if after > since and before < until]
    if not pauses or acknowledged[0] > since:
        raise ValueError("a gap needs acknowledgements before and after the end")
    return max(pauses) * _MS


def failures(writes: Iterable[Write], since: int, until: int) -> int:
    """Count the writes that failed in that time."""
    return sum(not write.acknowledged and since < write.ended <= until for write in writes)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Check that each acknowledged message is in the topic exactly once, and none is there twice."""

    acknowledged: int
    unknown: int  # failed writes: they may be there, once
    found: int
    lost: list[int]
    twice: list[int]
    strange: int  # bodies that no writer sent

    @property
    def is_balanced(self) -> bool:
        return not (self.lost or self.twice or self.strange)


def balance(writes: Sequence[Write], found: Iterable[int]) -> Ledger:
    """Compare a writer's acknowledgements with the numbers that were read back."""
    counts = Counter(found)
    acknowledged = {write.number for write in writes if write.acknowledged}
    sent = {write.number for write in writes}
    return Ledger(
        acknowledged=len(acknowledged),
        unknown=len(sent) - len(acknowledged),
        found=counts.total(),
        lost=sorted(acknowledged - counts.keys()),
        twice=sorted(number for number, count in counts.items() if count > 1),
        # A writer that was ended during a send could not record that number.
        strange=len(counts.keys() - sent - {max(sent, default=-1) + 1}),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile. Raises: ValueError (of nothing)."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(int(rank), 1) - 1]


def verdict(way: str, gaps: Sequence[float], busy_loops: int = 0) -> str:
    """Return for each target of the way whether these gaps reach it."""
    parts = []
    for percent, limit in (TARGETS_UNDER_LOAD if busy_loops else TARGETS).get(way, ()):
        value = percentile(gaps, percent)
        name = "max" if percent == 100 else f"p{percent}"
        parts.append(f"{name} ≤ {limit:g}: {'yes' if value <= limit else f'no ({value:.0f})'}")
    return ", ".join(parts) or "-"


def table(trials: Sequence[Trial], busy_loops: int = 0) -> str:
    """Return the Markdown table: one row per way and client. Targets hold for our client."""
    lines = [
        "| leader's end | client | p50 ms | p99 ms | max ms | times | target | when it comes back, max ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in dict.fromkeys(trial.way for trial in trials):
        mine = [trial for trial in trials if trial.way == way]
        for client in dict.fromkeys(client for trial in mine for client in trial.gaps):
            gaps = [trial.gaps[client] for trial in mine if client in trial.gaps]
            back = [trial.return_gaps[client] for trial in mine if client in trial.return_gaps]
            shown = [f"{percentile(gaps, percent):,.0f}" for percent in (50, 99, 100)]
            target = verdict(way, gaps, busy_loops) if client == "ledgermq" else "-"
            returned = f"{max(back):,.0f}" if back else "-"
            lines.append(f"| {way} | {client} | {' | '.join(shown)} | {len(gaps)} | {target} | {returned} |")
    return "\n".join(lines) + "\n"


def as_row(trial: Trial) -> dict[str, Any]:
    """Return a trial for the file of raw figures."""
    return {
        "way": trial.way,
        "number": trial.number,
        "leader": trial.leader,
        "load": round(trial.load, 1),
        "gap_ms": {client: round(gap, 2) for client, gap in trial.gaps.items()},
        "return_gap_ms": {client: round(gap, 2) for client, gap in trial.return_gaps.items()},
        "failed_writes": trial.errors,
        "events": [[round(at, 1), who, text] for at, who, text in trial.events],
        "return_events": [[round(at, 1), who, text] for at, who, text in trial.return_events],
    }

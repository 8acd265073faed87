"""Time line of the logs of brokers, nameservers and our writer around the end of a leader. Pure.

Two forms of lines are read: those of `logging` (local time), and the same after the time stamp of `docker
logs --timestamps` (UTC, which takes precedence).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

_LINE: Final = re.compile(
    r"(?:(?P<docker>\d{4}-\d\d-\d\dT[\d:]{8})(?P<fraction>\.\d+)?Z )?"
    r"(?P<local>\d{4}-\d\d-\d\d [\d:]{8}),(?P<ms>\d{3}) (?P<level>[A-Z]+) (?P<logger>\S+) (?P<text>.*)"
)


def parse(line: str) -> tuple[float, str] | None:
    """Return (Unix time, logger and message) of a log line; None for other lines."""
    found = _LINE.match(line)
    if found is None:
        return None
    if found["docker"]:
        moment = datetime.fromisoformat(found["docker"]).replace(tzinfo=UTC)
        at = moment.timestamp() + float(found["fraction"] or 0)
    else:
        at = datetime.fromisoformat(found["local"]).timestamp() + int(found["ms"]) / 1000
    return at, f"{found['logger'].removeprefix('ledgermq.')}: {found['text']}"


def events(
    logs: Iterable[tuple[str, Iterable[str]]], begin: float, end: float, zero: float
) -> list[tuple[float, str, str]]:
    """Return (ms after `zero`, source, text) of all lines between two Unix times, in order of time."""
    found = []
    for who, lines in logs:
        for line in lines:
            parsed = parse(line)
            if parsed is not None and begin <= parsed[0] <= end:
                found.append(((parsed[0] - zero) * 1000, who, parsed[1]))
    return sorted(found)

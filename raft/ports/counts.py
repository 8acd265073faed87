"""Connection counts of a port, log lines about refusals, and metrics.

Owns: the counters of every port of a process. Must not: decide which connection is refused.
A storm of connections causes one log line, and one more every ten seconds while it lasts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

#: Seconds between two log lines about refusals of one port.
LOG_PERIOD_S: Final = 10.0


class Refused(Enum):
    """Reason to close a connection before serving anything."""

    LIMIT = "limit"  # the port has its maximum of open connections
    ADDRESS = "address"  # this client's address has its maximum of open connections
    DESCRIPTORS = "descriptors"  # the process has no free file descriptor
    BUSY = "busy"  # the server behind the port is too slow in accepting connections
    UNREACHABLE = "unreachable"  # the server behind the port is unreachable


class Ended(Enum):
    """Reason why this side closed an open connection."""

    SILENT = "silent"  # it sent too few bytes to tell what it is for
    MADE_ROOM = "made_room"  # the same, and other connections needed the place
    HANDSHAKE = "handshake"  # its TLS handshake took too long
    NO_HELLO = "no_hello"  # it began like a TLS hello but is none


_ADVICE: Final = {
    Refused.LIMIT: (
        "as many connections are open as this port takes; look for clients that open one per message "
        "(runbook: too many connections)"
    ),
    Refused.ADDRESS: "one address has as many connections open as max_connections_per_address allows",
    Refused.DESCRIPTORS: "this process has no file descriptor left; raise its limit (ulimit -n, LimitNOFILE)",
    Refused.BUSY: (
        "this process takes connections more slowly than they come; clients try again by themselves. Look "
        "for clients that connect again and again, and for a machine without CPU time to spare"
    ),
    Refused.UNREACHABLE: (
        "the server behind this port is gone or has not started; clients try again by themselves. Restart "
        "the process when this does not end"
    ),
}


@dataclass(slots=True)
class PortCounts:
    """Counts of one port. Its acceptor maintains `open`. `limit` 0: connections are not counted."""

    port: str
    listener: str = ""  # tells ports of the same name apart
    limit: int = 0
    open: int = 0
    refused: Counter[Refused] = field(default_factory=Counter)
    ended: Counter[Ended] = field(default_factory=Counter)
    clock: Callable[[], float] = time.monotonic
    _logged_at: float = float("-inf")  # time of the last log line
    _logged: int = 0  # refusals counted by the last log line

    def refuse(self, why: Refused, host: str, error: OSError | None = None) -> None:
        """Count a refused connection, with the system's `error` if any. Logs at most once per period."""
        self.refused[why] += 1
        now = self.clock()
        if now - self._logged_at >= LOG_PERIOD_S:
            self._logged_at = now
            total = self.refused.total()
            known = f" error={error}" if error is not None else ""
            logger.warning(
                "connections refused port=%s reason=%s count=%d last=%s open=%d limit=%d%s: %s",
                self.name, why.value, total - self._logged, host, self.open, self.limit, known, _ADVICE[why],
            )  # fmt: skip
            self._logged = total

    @property
    def name(self) -> str:
        """Name of the port in log lines."""
        return f"{self.port}/{self.listener}" if self.listener else self.port


class PortMetrics(Collector):
    """Counts of all ports of a process, for its metrics registry."""

    def __init__(self) -> None:
        self._ports: list[PortCounts] = []

    def add(self, port: str, listener: str = "", limit: int = 0) -> PortCounts:
        """Add a port and return its counts."""
        return self.include(PortCounts(port, listener, limit))

    def include(self, counts: PortCounts) -> PortCounts:
        """Add the counts of a port opened elsewhere, and return them."""
        self._ports.append(counts)
        return counts

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics. Every reason is present from the start."""
        labels = ["port", "listener"]
        is_open = GaugeMetricFamily("ledgermq_connections", "Open connections", labels=labels)
        limit = GaugeMetricFamily(
            "ledgermq_connections_limit", "Connections that a port takes", labels=labels
        )
        refused = CounterMetricFamily(
            "ledgermq_connections_refused", "Connections refused, by reason", labels=[*labels, "reason"]
        )
        ended = CounterMetricFamily(
            "ledgermq_connections_closed",
            "Connections that were closed because nothing came of them, by reason",
            labels=[*labels, "reason"],
        )
        for counts in self._ports:
            where = [counts.port, counts.listener]
            is_open.add_metric(where, counts.open)
            limit.add_metric(where, counts.limit)
            for why in Refused:
                refused.add_metric([*where, why.value], counts.refused[why])
            for end in Ended:
                ended.add_metric([*where, end.value], counts.ended[end])
        return is_open, limit, refused, ended

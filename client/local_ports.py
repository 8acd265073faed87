"""Which ports a local cluster gets: the well-known ones for n1, ten more per node, the next free ones when busy.

Owns: the default ports (§1 of the architecture) and the search. Must not: start anything.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count

NAMESERVER_PORT = 9876
_STEP = 10
_LAST_PORT = 65_000


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The four ports of a broker node on 127.0.0.1."""

    messaging: int = 8081
    log: int = 8082
    raft: int = 20911
    http: int = 5557

    def shifted(self, by: int) -> NodePorts:
        return NodePorts(self.messaging + by, self.log + by, self.raft + by, self.http + by)

    def all(self) -> tuple[int, ...]:
        return tuple(asdict(self).values())


def is_free(port: int) -> bool:
    """Return whether 127.0.0.1:port can be bound right now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def nameserver_port(free: Callable[[int], bool] = is_free) -> int:
    """Return 9876, or the next free port above it."""
    return next(port for port in range(NAMESERVER_PORT, _LAST_PORT) if free(port))


def node_ports(free: Callable[[int], bool] = is_free) -> Iterator[NodePorts]:
    """Yield sets of ports, each with all four free: +0, +10, +20, … of the well-known ones."""
    for step in count():
        ports = NodePorts().shifted(step * _STEP)
        if max(ports.all()) > _LAST_PORT:
            return
        if all(free(port) for port in ports.all()):
            yield ports


def ephemeral_ports(number: int) -> list[int]:
    """Return ports that the system hands out, all different and free a moment ago."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(number)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()

"""Ports of a local cluster: the well-known ones for n1, plus ten per node; busy ones are skipped.

Owns: the default ports (docs/architecture.md, Parts), the search, and the reservations. Must not: start
processes.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

from ..errors import UsageError

NAMESERVER_PORT = 9876
_STEP = 10
_LAST_PORT = 65_000
_UNLISTED = range(12_000, 20_000)


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
    """Tell whether 127.0.0.1:port can be bound now."""
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
    """Yield sets of four free ports: the well-known ones + 0, + 10, + 20, …"""
    for step in count():
        ports = NodePorts().shifted(step * _STEP)
        if max(ports.all()) > _LAST_PORT:
            return
        if all(free(port) for port in ports.all()):
            yield ports


class PortReservations:
    """Ports reserved for one local cluster from their choice to its end, even while nothing listens on them.

    Without it, two clusters started at the same moment would both find the well-known ports free. Each port
    has a file in a folder of this user. Its lock ends with the process that holds it, however that ends.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir()) / f"ledgermq-ports-{os.getuid()}"
        self._locks: dict[int, int] = {}  # file descriptor by port

    def take(self, port: int) -> bool:
        """Reserve a port. False: it is bound, or already reserved (even by this cluster)."""
        if port in self._locks:
            return False
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self._folder / str(port), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError:
            return is_free(port)  # reservations are impossible: best effort
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        if not is_free(port):
            os.close(lock)
            return False
        self._locks[port] = lock
        return True

    def unlisted(self, number: int) -> list[int]:
        """Reserve random different ports, below the range that systems use for outgoing connections.

        A connection could take a port of that range while its node is down, and block its restart.
        Raises: UsageError (not enough free ports).
        """
        tried = random.SystemRandom().sample(_UNLISTED, len(_UNLISTED))
        found = list(islice((port for port in tried if self.take(port)), number))
        if len(found) < number:
            raise UsageError(
                f"{number} free ports are needed, and {len(found)} are left of "
                f"{_UNLISTED.start}-{_UNLISTED.stop - 1}",
                "Nothing was started",
                "End what listens there",
            )
        return found

    def release(self) -> None:
        """Release all ports."""
        locks, self._locks = list(self._locks.values()), {}
        for lock in locks:
            os.close(lock)

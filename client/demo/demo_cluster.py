"""Cluster interface of the demo, and its implementation with local processes.

Owns: leader search and catch-up by status calls; `LocalDemoCluster`. `docker.py` has the other
implementation.
Must not: print.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ledgermq.proto import admin_pb2 as pb

from ..admin.cluster_status import ask
from ..errors import LedgerMQError
from ..local.cluster import LocalCluster

_POLL_SECONDS = 0.01
_PATIENCE_SECONDS = 60.0


class DemoCluster(Protocol):
    """A running cluster that the demo may damage."""

    nameserver: str
    nodes: Sequence[str]

    def start(self) -> None:
        """Start everything; return when all nodes are ready."""

    def kill(self, name: str) -> str:
        """Kill the node with SIGKILL; return a name for what was killed: `pid 4711`."""

    def restart(self, name: str) -> None:
        """Restart a killed node; does not wait."""

    def log_address(self, name: str) -> str:
        """Return host:port of the node's LogService, as reachable from here."""

    def log_tail(self, name: str) -> str:
        """Return the node's last log lines."""

    def ports(self) -> str:
        """Return the range of ports in use, as text."""

    def stop(self) -> None:
        """End everything."""


class LocalDemoCluster:
    """Processes on free ports of this machine, with data in a folder of their own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._cluster = LocalCluster(folder)
        self._plan = self._cluster.prepare(nodes, free_ports_only=True)
        self.nameserver = self._plan.nameserver
        self.nodes: Sequence[str] = tuple(self._plan.nodes)

    def start(self) -> None:
        self._cluster.start()

    def kill(self, name: str) -> str:
        process = self._cluster.nodes[name]
        pid = process.pid
        process.kill()
        return f"pid {pid}"

    def restart(self, name: str) -> None:
        self._cluster.nodes[name].start()

    def log_address(self, name: str) -> str:
        return self._cluster.log_address(name)

    def log_tail(self, name: str) -> str:
        return self._cluster.nodes[name].log_tail()

    def ports(self) -> str:
        numbers = [port for ports in self._plan.nodes.values() for port in ports.all()]
        numbers.append(self._plan.nameserver_port)
        return f"ports {min(numbers)}-{max(numbers)}"

    def stop(self) -> None:
        self._cluster.stop()


async def find_leader(
    cluster: DemoCluster, *, other_than: str = "", seconds: float = _PATIENCE_SECONDS
) -> tuple[str, pb.GetStatusResponse]:
    """Return the leader and its status. Raises: LedgerMQError (no leader in time)."""
    end = time.monotonic() + seconds
    names = [name for name in cluster.nodes if name != other_than]
    while time.monotonic() < end:
        answers = await asyncio.gather(*(ask(cluster.log_address(name)) for name in names))
        leaders = [answer for answer in answers if answer is not None and answer.role == "leader"]
        if leaders:
            newest = max(leaders, key=lambda answer: answer.term)
            return newest.node_id, newest
        await asyncio.sleep(_POLL_SECONDS)
    raise LedgerMQError(f"no node became leader within {seconds:g} s", f"Asked: {', '.join(names)}")


async def wait_caught_up(
    cluster: DemoCluster, name: str, target_index: int, seconds: float = _PATIENCE_SECONDS
) -> pb.GetStatusResponse:
    """Wait until the node has applied `target_index`. Raises: LedgerMQError."""
    end = time.monotonic() + seconds
    applied = 0
    while time.monotonic() < end:
        answer = await ask(cluster.log_address(name))
        own = next((n for n in answer.nodes if n.node_id == name), None) if answer is not None else None
        if answer is not None and own is not None:
            applied = own.applied_index
            if applied >= target_index:
                return answer
        await asyncio.sleep(_POLL_SECONDS)
    raise LedgerMQError(f"{name} applied up to {applied:,} of {target_index:,} within {seconds:g} s")

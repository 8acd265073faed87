"""A whole cluster on this machine: one nameserver and the nodes of one broker group, as processes, with data in a folder.

Owns: `cluster.json` of the folder (what the cluster consists of), the flags of every process, the order of start and stop.
Must not: print. `ledgermq up` and `ledgermq demo` do.
Invariant: a folder belongs to one running cluster (lock); its nodes keep their names, ports move only when they are taken,
and are reserved from the choice on.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from . import local_ports
from .errors import LedgerMQError, MissingExtraError, UsageError
from .local_ports import NodePorts, PortReservations
from .local_processes import ServerProcess, stop_all

_FORMAT = 1
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """What a folder's cluster consists of; kept in `cluster.json`."""

    nameserver_port: int
    nodes: dict[str, NodePorts]
    segment_size: str = "64MiB"
    queues_per_topic: int = 4

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.nameserver_port}"

    def to_json(self) -> str:
        nodes = {name: asdict(ports) for name, ports in self.nodes.items()}
        return json.dumps({"format": _FORMAT, **asdict(self), "nodes": nodes}, indent=2) + "\n"


def new_plan(
    count: int, reserved: PortReservations, *, free_ports_only: bool = False, segment_size: str = "64MiB"
) -> LocalPlan:
    """Reserve ports for a new cluster: the well-known ones, or (`free_ports_only`) any that are free."""
    names = [f"n{number}" for number in range(1, count + 1)]
    if free_ports_only:
        ports = reserved.unlisted(1 + 4 * count)
        sets = [NodePorts(*ports[1 + 4 * i : 5 + 4 * i]) for i in range(count)]
        return LocalPlan(ports[0], dict(zip(names, sets, strict=True)), segment_size)
    found = local_ports.node_ports(reserved.take)
    nodes = {name: next(found) for name in names}
    return LocalPlan(local_ports.nameserver_port(reserved.take), nodes, segment_size)


def read_plan(path: Path) -> LocalPlan | None:
    """Read `cluster.json`; None when there is none. Raises: UsageError when it cannot be used."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        version = found["format"]
        nodes = {name: NodePorts(**ports) for name, ports in found["nodes"].items()}
        plan = LocalPlan(
            found["nameserver_port"], nodes, found["segment_size"], found.get("queues_per_topic", 4)
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}",
            "Nothing was changed",
            "Repair it, or start a new cluster in another folder: ledgermq up --data OTHER",
        ) from error
    if version != _FORMAT:
        raise UsageError(
            f"{path} has format {version}; this version of LedgerMQ knows {_FORMAT}",
            "A newer version wrote it. Nothing was changed",
            "Use that version, or another folder: ledgermq up --data OTHER",
        )
    return plan


class LocalCluster:
    """Start with `prepare`, then `start`; always end with `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: LocalPlan | None = None
        self.nameserver: ServerProcess | None = None
        self.nodes: dict[str, ServerProcess] = {}
        self._lock: IO[str] | None = None
        self._reserved = PortReservations()

    def prepare(self, wanted: int | None, *, free_ports_only: bool = False, default: int = 3) -> LocalPlan:
        """Lock the folder; read its plan or make one of `wanted` nodes. Raises: UsageError, MissingExtraError."""
        require_server()
        self._make_folder()
        self._take_lock()
        path = self.folder / "cluster.json"
        known = read_plan(path)
        if known is not None and wanted not in (None, len(known.nodes)):
            raise UsageError(
                f"{self.folder} holds a cluster of {len(known.nodes)} nodes, not of {wanted}",
                "The number of nodes of a group does not change by a restart. Nothing was changed",
                f"Start it as it is: ledgermq up --data {self.folder}",
            )
        if known is None:
            self.plan = new_plan(wanted or default, self._reserved, free_ports_only=free_ports_only)
        else:
            self.plan = _with_free_ports(known, self._reserved)
        if self.plan != known:
            fresh = path.with_suffix(".new")  # renamed: a plan is there whole or not at all
            fresh.write_text(self.plan.to_json())
            fresh.replace(path)
        self._make_processes(self.plan)
        return self.plan

    def start(self, *, rejoin: str = "", on_ready: Callable[[str], None] = lambda name: None) -> None:
        """Start all; return when every node is ready. `on_ready(name)` is called for each. Raises: ProcessEndedError."""
        assert self.nameserver is not None, "prepare() comes first"
        self.nameserver.start()
        for name, process in self.nodes.items():
            process.start(*(["--rejoin"] if name == rejoin else []))
        self.nameserver.require_running()
        for name in self.nodes:
            self.wait_ready(name)
            on_ready(name)

    def wait_ready(self, name: str, seconds: float = _READY_SECONDS) -> None:
        """Wait for 200 of the node's /readyz. Raises: ProcessEndedError, LedgerMQError when the time is over."""
        end = time.monotonic() + seconds
        process = self.nodes[name]
        while not self.is_ready(name):
            process.require_running()
            if time.monotonic() > end:
                raise LedgerMQError(
                    f"{name} is not ready after {seconds:g} s:\n{process.log_tail()}\n",
                    "",
                    f"The whole log: {process.log_path}",
                )
            time.sleep(_POLL_SECONDS)

    def is_ready(self, name: str) -> bool:
        """Return whether the node has caught up and knows a leader."""
        assert self.plan is not None
        url = f"http://127.0.0.1:{self.plan.nodes[name].http}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def stop(self) -> list[str]:
        """End all processes, nodes first, and give the folder back; return who had to be killed."""
        killed = stop_all(self.nodes.values())
        if self.nameserver is not None:
            killed += stop_all([self.nameserver])
        self._reserved.release()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        return killed

    def log_address(self, name: str) -> str:
        """Return host:port of a node's LogService and AdminService."""
        assert self.plan is not None
        return f"127.0.0.1:{self.plan.nodes[name].log}"

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the data folder {self.folder} cannot be made: {error.strerror}",
                "",
                "Point --data to a folder that can be written",
            ) from error

    def _take_lock(self) -> None:
        path = self.folder / "up.lock"
        try:
            lock = path.open("a+")
        except OSError as error:
            raise UsageError(
                f"the data folder {self.folder} cannot be written: {error.strerror}",
                "",
                "Point --data to a folder that can be written",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise UsageError(
                f"{self.folder} is in use by another ledgermq (process {owner})",
                "One cluster per folder. Nothing was changed",
                "Stop it, or use another folder: ledgermq up --data OTHER",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def _make_processes(self, plan: LocalPlan) -> None:
        logs = self.folder / "logs"
        arguments = ["-m", "ledgermq.nameserver", "--bind", plan.nameserver]
        self.nameserver = ServerProcess("nameserver", arguments, logs / "nameserver.log")
        peers = ",".join(f"{name}=127.0.0.1:{ports.raft}" for name, ports in plan.nodes.items())
        for name, ports in plan.nodes.items():
            flags = broker_flags(name, ports, plan, peers, self.folder / name)
            self.nodes[name] = ServerProcess(name, ["-m", "ledgermq.broker", *flags], logs / f"{name}.log")


def broker_flags(name: str, ports: NodePorts, plan: LocalPlan, peers: str, data: Path) -> list[str]:
    """Return the flags of one node; they are the whole configuration, no file is needed."""
    messaging, log = (f"127.0.0.1:{port}" for port in (ports.messaging, ports.log))
    flags: dict[str, Any] = {
        "node": name,
        "data": data,
        "peers": peers,
        "raft-bind": f"127.0.0.1:{ports.raft}",
        "http-bind": f"127.0.0.1:{ports.http}",
        "listener": f"name=default,messaging_bind={messaging},log_bind={log}",
        "nameservers": plan.nameserver,
        "segment-size": plan.segment_size,
        "queues-per-topic": plan.queues_per_topic,
        "auto-create-topics": "true",
    }
    return [part for key, value in flags.items() for part in (f"--{key}", str(value))]


def require_server(what: str = "a broker") -> None:
    """Check that `what` can run here. Raises: MissingExtraError, when this installation is a client only."""
    for module in ("uvloop", "pydantic_settings", "prometheus_client", "sortedcontainers"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(what, "server", module)


def _with_free_ports(plan: LocalPlan, reserved: PortReservations) -> LocalPlan:
    """Keep every port that is free; give a node whose ports are taken the next free set."""
    kept = {name: all(reserved.take(port) for port in ports.all()) for name, ports in plan.nodes.items()}
    nameserver = plan.nameserver_port
    if not reserved.take(nameserver):
        nameserver = local_ports.nameserver_port(reserved.take)
    taken = {port for ports in plan.nodes.values() for port in ports.all()}
    fresh = (ports for ports in local_ports.node_ports(reserved.take) if not taken & set(ports.all()))
    nodes = {name: ports if kept[name] else next(fresh) for name, ports in plan.nodes.items()}
    return LocalPlan(nameserver, nodes, plan.segment_size, plan.queues_per_topic)

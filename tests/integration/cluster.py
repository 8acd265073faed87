"""A cluster of real processes for tests: `python -m ledgermq.nameserver` and `python -m ledgermq.broker`.

    with Cluster(folder, nodes=3) as cluster:
        leader = cluster.wait_leader()
        cluster.kill(leader)                 # kill -9
        cluster.wait_leader(other_than=leader)

Verbs: start_all · add_group · start · kill · kill_leader · kill_all · pause · resume · terminate · restart ·
wait_leader · wait_ready · others · status · address · log.
Ports are free ones of 127.0.0.1; data and logs stay in `folder`. Only processes that this object started get
signals.
"""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import grpc

from ledgermq.proto import admin_pb2, admin_pb2_grpc
from tests.ports import free_ports

from . import nursery

_START_TIMEOUT = 90.0  # a guard against hangs: a machine that is busy is no failure
_POLL = 0.02
T = TypeVar("T")


def wait_until(read: Callable[[], T | None], what: str, timeout: float = _START_TIMEOUT) -> T:
    """Poll until `read` returns something true; fail with `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if value := read():
            return value
        time.sleep(_POLL)
    raise AssertionError(f"did not happen within {timeout:g} s: {what}")


@dataclass
class Process:
    """One child with its log file. `arguments` are kept for a restart."""

    name: str
    arguments: list[str]
    log_path: Path
    ports: dict[str, int] = field(default_factory=dict)
    popen: nursery.Child | None = None

    def start(self) -> None:
        self.popen = nursery.start(self.arguments, self.log_path)

    @property
    def pid(self) -> int:
        assert self.popen is not None, f"{self.name} was never started"
        return self.popen.pid

    @property
    def running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def log(self, lines: int = 30) -> str:
        """Return the last lines that the process wrote."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Cluster:
    """`nameservers` nameservers and `groups` broker groups g0, g1, … of `nodes` brokers each.

    Brokers are numbered n1, n2, … across broker groups.
    """

    module = "ledgermq.broker"

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        groups: int = 1,
        nameservers: int = 1,
        settings: dict[str, str] | None = None,
        module: str = "",
    ) -> None:
        """`module`: what a node runs instead of `Cluster.module`."""
        self.folder, self.module = folder, module or self.module
        folder.mkdir(parents=True, exist_ok=True)
        ports = iter(free_ports(nameservers + 4 * nodes * groups))
        self.nameservers = [self._nameserver(i + 1, next(ports)) for i in range(nameservers)]
        self.groups = {
            f"g{group}": [f"n{group * nodes + i + 1}" for i in range(nodes)] for group in range(groups)
        }
        self.transport = (settings or {}).get("server-transport", "event_loop")
        own = {"segment-size": "64MiB", "max-store-bytes": "64GiB", "auto-create-topics": "true"}
        self._options = {**own, **(settings or {})}  # "64GiB": on a nearly full disk, too, nothing is refused
        self.nodes: dict[str, Process] = {}
        for group in self.groups:
            self._make_nodes(group, ports)

    def _make_nodes(self, group: str, ports: Iterator[int]) -> None:
        names, kinds = self.groups[group], ("raft", "messaging", "log", "http")
        node_ports = {name: {kind: next(ports) for kind in kinds} for name in names}
        peers = ",".join(f"{name}=127.0.0.1:{node_ports[name]['raft']}" for name in names)
        for name in names:
            options = {"group": group, **self._options}
            self.nodes[name] = self._broker(name, node_ports[name], peers, options)

    def _nameserver(self, number: int, port: int) -> Process:
        arguments = ["-m", "ledgermq.nameserver", "--bind", f"127.0.0.1:{port}"]
        return Process(f"ns{number}", arguments, self.folder / f"ns{number}.log", {"bind": port})

    def _broker(self, name: str, ports: dict[str, int], peers: str, options: dict[str, str]) -> Process:
        listener = (
            f"name=default,messaging_bind=127.0.0.1:{ports['messaging']},log_bind=127.0.0.1:{ports['log']}"
        )
        arguments = ["-m", self.module, "--node", name, "--data", str(self.folder / name)]
        arguments += ["--peers", peers, "--raft-bind", f"127.0.0.1:{ports['raft']}"]
        arguments += ["--http-bind", f"127.0.0.1:{ports['http']}", "--listener", listener]
        arguments += ["--nameservers", ",".join(self.nameserver_addresses)]
        for key, value in options.items():
            arguments += [f"--{key}", value]
        return Process(name, arguments, self.folder / f"{name}.log", ports)

    @property
    def nameserver_addresses(self) -> list[str]:
        return [f"127.0.0.1:{process.ports['bind']}" for process in self.nameservers]

    @property
    def nameserver(self) -> str:
        """Return the address of the first nameserver."""
        return self.nameserver_addresses[0]

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_all()

    # -- verbs ---------------------------------------------------------------------------------------------

    def start_all(self) -> None:
        """Start every process that does not run, and wait until all nodes are ready."""
        for process in [*self.nameservers, *self.nodes.values()]:
            if not process.running:
                process.start()
        for name in self.nodes:
            self.wait_ready(name)

    def add_group(self, nodes: int) -> str:
        """Start one more broker group beside those that run, and wait until it is ready; return its name."""
        group, known = f"g{len(self.groups)}", len(self.nodes)
        self.groups[group] = [f"n{known + i + 1}" for i in range(nodes)]
        self._make_nodes(group, iter(free_ports(4 * nodes)))
        self.start_all()
        return group

    def start(self, name: str) -> None:
        """Start a node that does not run; does not wait."""
        self.nodes[name].start()

    def kill(self, name: str) -> None:
        """kill -9, and reap."""
        self._signal(name, signal.SIGKILL)
        self.wait_ended(name)

    def kill_leader(self) -> str:
        """kill -9 of the leader; return which node that was."""
        leader = self.wait_leader()
        self.kill(leader)
        return leader

    def kill_all(self) -> None:
        """kill -9 of every node before any of them can notice that another is gone."""
        for name in self.nodes:
            self._signal(name, signal.SIGKILL)
        for name in self.nodes:
            self.wait_ended(name)

    def others(self, name: str) -> list[str]:
        """Return the other nodes of a node's broker group."""
        members = next(members for members in self.groups.values() if name in members)
        return [member for member in members if member != name]

    def pause(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: int) -> None:
        process = self.nodes[name].popen
        assert process is not None
        process.send_signal(number)

    def terminate(self, name: str) -> int:
        """SIGTERM; return the exit code."""
        self._signal(name, signal.SIGTERM)
        return self.wait_ended(name)

    def wait_ended(self, name: str) -> int:
        """Wait until a node that was told to stop is gone; return its exit code."""
        process = self.nodes[name]
        assert process.popen is not None
        return process.popen.wait(timeout=_START_TIMEOUT)

    def restart(self, name: str) -> None:
        """Start a stopped node again and wait until it is ready."""
        self.start(name)
        self.wait_ready(name)

    def stop_all(self) -> None:
        """End everything that still runs (also what is paused); brokers before nameservers."""
        for process in [*self.nodes.values(), *self.nameservers]:
            if process.popen is not None:
                process.popen.send_signal(signal.SIGCONT)
                process.popen.terminate()
        for process in [*self.nodes.values(), *self.nameservers]:
            if process.popen is None:
                continue
            try:
                process.popen.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()

    def wait_ready(self, name: str, timeout: float = _START_TIMEOUT) -> None:
        """Wait for 200 of /readyz: caught up, and a leader known."""
        process = self.nodes[name]

        def ready() -> bool:
            if not process.running:
                raise AssertionError(f"{name} ended while it was awaited:\n{process.log()}")
            return self.http(name, "/readyz")[0] == 200

        try:
            wait_until(ready, f"{name} ready", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{process.log()}") from None

    def wait_leader(self, other_than: str = "", timeout: float = _START_TIMEOUT, group: str = "g0") -> str:
        """Return the node of the broker group that reports itself as leader, once there is one."""

        def leader() -> str | None:
            for name in self.groups[group]:
                process = self.nodes[name]
                usable = process.running and name != other_than
                if usable and (status := self.status(name)) and status.role == "leader":
                    return name
            return None

        return wait_until(leader, "a leader", timeout)

    def status(self, name: str) -> admin_pb2.GetStatusResponse | None:
        """Return the node's own view, None when it does not answer within a second."""
        with grpc.insecure_channel(self.address(name)) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            try:
                answer: admin_pb2.GetStatusResponse = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=1)
            except grpc.RpcError:
                return None
        return answer

    def terms(self) -> dict[str, int]:
        """Return the term of each node."""
        return {name: wait_until(partial(self.status, name), f"{name} answers").term for name in self.nodes}

    def address(self, name: str, kind: str = "log") -> str:
        """Return host:port of a node's port: log, messaging, http or raft."""
        return f"127.0.0.1:{self.nodes[name].ports[kind]}"

    def http(self, name: str, path: str) -> tuple[int, str]:
        """GET; return (status, text), status 0 when nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{self.address(name, 'http')}{path}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

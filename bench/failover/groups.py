"""Broker group of three nodes whose leader can be ended: as local processes, or as containers.

Owns: how each way ends a leader, and how it comes back. Must not: measure.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from ledgermq.client.demo.docker import compose_command
from ledgermq.proto import admin_pb2, admin_pb2_grpc
from tests.integration.cluster import Cluster, wait_until

ROOT: Final = Path(__file__).resolve().parent.parent.parent
_PROJECT: Final = "ledgermq-failover"
_NODES: Final = ("n1", "n2", "n3")
_NETWORK: Final = f"{_PROJECT}_ledgermq"
_READY_SECONDS: Final = 60.0
IMAGE: Final = os.environ.get("LEDGERMQ_IMAGE", "ledgermq:dev")  # as in the compose file


class Group(Protocol):
    """Three nodes and their nameservers. `end(way, node)` and `restore(way, node)` alternate."""

    nameservers: str
    endpoints: str  # messaging addresses in the official client's form

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def leader(self) -> str:
        """Wait for a leader. Returns its node id."""

    def end(self, way: str, node: str) -> None: ...

    def restore(self, way: str, node: str) -> None:
        """Bring an ended node back. Returns when all nodes are ready."""

    def logs(self) -> Iterable[tuple[str, Iterable[str]]]:
        """Return (source, lines) of everything that runs."""


class ProcessGroup:
    """Processes on loopback."""

    WAYS: Final = ("control", "kill", "hand-over", "silent", "silent-host")

    def __init__(self, folder: Path) -> None:
        self._cluster = Cluster(folder, nodes=len(_NODES))
        self.nameservers = ",".join(self._cluster.nameserver_addresses)
        self.endpoints = ";".join(self._cluster.address(name, "messaging") for name in _NODES)

    def start(self) -> None:
        self._cluster.start_all()

    def stop(self) -> None:
        self._cluster.stop_all()

    def leader(self) -> str:
        return self._cluster.wait_leader()

    def pid(self, node: str) -> int:
        """Return the process of a node."""
        return self._cluster.nodes[node].pid

    def end(self, way: str, node: str) -> None:
        if way == "control":
            return
        if way == "silent-host":
            for process in self._cluster.nameservers:
                os.kill(process.pid, signal.SIGSTOP)
        number = {"kill": signal.SIGKILL, "hand-over": signal.SIGTERM}.get(way, signal.SIGSTOP)
        os.kill(self._cluster.nodes[node].pid, number)

    def restore(self, way: str, node: str) -> None:
        if way in ("silent", "silent-host"):
            for pid in (self.pid(node), *(process.pid for process in self._cluster.nameservers)):
                os.kill(pid, signal.SIGCONT)
        elif way != "control":
            self._cluster.wait_ended(node)
            self._cluster.start(node)
        for name in _NODES:
            self._cluster.wait_ready(name)

    def logs(self) -> Iterable[tuple[str, Iterable[str]]]:
        for process in (*self._cluster.nameservers, *self._cluster.nodes.values()):
            yield process.name, process.log_path.read_text(errors="replace").splitlines()


class ContainerGroup:
    """Containers of deploy/'s compose file with their own addresses, which this host reaches over their
    bridge.

    Published ports would not do: the engine removes them with the container, so the client would be told of a
    loss that a lost host does not report.
    """

    WAYS: Final = ("container-kill", "lost-host")

    def __init__(self, folder: Path, subnet: str) -> None:
        """`subnet`: the first three bytes of a free network, for example 172.31.207."""
        self._compose = compose_command()
        self._file = folder / "addresses.json"  # JSON is YAML
        self._addresses = {name: f"{subnet}.{10 + i}" for i, name in enumerate(("ns1", "ns2", *_NODES))}
        folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(_override(subnet, self._addresses), indent=1))
        self.nameservers = ",".join(f"{self._addresses[name]}:19876" for name in ("ns1", "ns2"))
        self.endpoints = ";".join(f"{self._addresses[name]}:18081" for name in _NODES)

    def start(self) -> None:
        self._run("down", "--volumes", "--remove-orphans", "--timeout", "1")
        self._run("up", "--detach", "ns1", "ns2", *_NODES)
        self._wait_ready()

    def stop(self) -> None:
        self._run("down", "--volumes", "--remove-orphans", "--timeout", "3")

    def leader(self) -> str:
        def leading() -> str | None:
            for name in _NODES:
                status = self._status(name)
                if status is not None and status.role == "leader":
                    return name
            return None

        return wait_until(leading, "a leader", _READY_SECONDS)

    def end(self, way: str, node: str) -> None:
        if way == "container-kill":
            _docker("kill", "--signal", "KILL", self._container(node))
        else:
            _docker("network", "disconnect", _NETWORK, self._container(node))

    def restore(self, way: str, node: str) -> None:
        container = self._container(node)
        if way == "container-kill":
            _docker("start", container)
        else:
            address = self._addresses[node]
            _docker("network", "connect", "--ip", address, "--alias", node, _NETWORK, container)
        self._wait_ready()

    def logs(self) -> Iterable[tuple[str, Iterable[str]]]:
        for name in ("ns1", "ns2", *_NODES):
            command = ["docker", "logs", "--timestamps", self._container(name)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
            )
            yield name, done.stdout.splitlines()

    def _wait_ready(self) -> None:
        """Wait until one node leads and all are in step with it."""

        def ready() -> bool:
            states = [self._status(name) for name in _NODES]
            leaders = [each for each in states if each is not None and each.role == "leader"]
            if None in states or len(leaders) != 1:
                return False
            return all(node.role in ("leader", "follower") and not node.state for node in leaders[0].nodes)

        wait_until(ready, "all nodes ready", _READY_SECONDS)

    def _status(self, name: str) -> admin_pb2.GetStatusResponse | None:
        with grpc.insecure_channel(f"{self._addresses[name]}:18082") as channel:
            try:
                stub = admin_pb2_grpc.AdminServiceStub(channel)
                answer: admin_pb2.GetStatusResponse = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=1)
            except grpc.RpcError:
                return None
        return answer

    def _container(self, name: str) -> str:
        labels = (f"project={_PROJECT}", f"service={name}")
        filters = [part for label in labels for part in ("--filter", f"label=com.docker.compose.{label}")]
        return _docker("ps", "--all", "--quiet", "--no-trunc", *filters).strip()

    def _run(self, *arguments: str) -> str:
        files = ("--file", str(ROOT / "deploy" / "docker-compose.yml"), "--file", str(self._file))
        # The published ports are unused: choose any free ones.
        published = [
            "NS1",
            "NS2",
            *(f"{node.upper()}_{kind}" for node in _NODES for kind in ("MESSAGING", "LOG")),
        ]
        environment = {**os.environ, **dict.fromkeys(published, "0")}
        return _output([*self._compose, "--project-name", _PROJECT, *files, *arguments], environment)


def _override(subnet: str, addresses: dict[str, str]) -> dict[str, Any]:
    """Return the second compose file: fixed addresses, and an external listener that advertises them."""
    services: dict[str, Any] = {}
    for name, address in addresses.items():
        services[name] = {"restart": "no", "networks": {"ledgermq": {"ipv4_address": address}}}
        if name in _NODES:
            listeners = (
                f"name=internal,messaging_bind=0.0.0.0:8081,messaging_advertise={name}:8081,"
                f"log_bind=0.0.0.0:8082,log_advertise={name}:8082;"
                f"name=external,messaging_bind=0.0.0.0:18081,messaging_advertise={address}:18081,"
                f"log_bind=0.0.0.0:18082,log_advertise={address}:18082"
            )
            services[name]["environment"] = {"LEDGERMQ_LISTENER": listeners}
    network = {"ipam": {"config": [{"subnet": f"{subnet}.0/24"}]}}
    return {"services": services, "networks": {"ledgermq": network}}


def _docker(*arguments: str) -> str:
    return _output(["docker", *arguments])


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout


def why_no_containers() -> str:
    """Return what is missing for containers; "" if nothing is."""
    checks: list[tuple[list[str], str]] = [
        (["docker", "info"], "no Docker engine answers; start it: sudo dockerd &"),
        (["docker", "image", "inspect", IMAGE], f"there is no image {IMAGE}; build it: make image"),
    ]
    for command, problem in checks:
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return "there is no docker command; install it: sudo apt-get install -y docker.io docker-compose"
        if done.returncode:
            return problem
    return ""


GROUPS: Final[tuple[tuple[tuple[str, ...], Callable[[Path, str], Group]], ...]] = (
    (ProcessGroup.WAYS, lambda folder, subnet: ProcessGroup(folder)),
    (ContainerGroup.WAYS, ContainerGroup),
)

"""Demo cluster in containers: the compose file of deploy/, with its own project name and ports.

Owns: calls of `docker` and `docker-compose` (or `docker compose`). Must not: touch other projects'
containers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import LedgerMQError, UsageError
from ..local.ports import PortReservations

_PROJECT = "ledgermq-demo"
_FILE = Path("deploy/docker-compose.yml")
_IMAGE = "ledgermq:dev"
_START_SECONDS = 120


class DockerDemoCluster:
    """Two nameservers and three brokers in containers. The volumes are deleted at the end."""

    def __init__(self, folder: Path) -> None:
        self.nodes: Sequence[str] = ("n1", "n2", "n3")
        self._folder = folder
        self._compose = compose_command()
        self._file = _FILE.resolve()
        if not self._file.exists():
            raise UsageError(
                f"there is no {_FILE} here", "", "Run it in the folder of LedgerMQ: make demo DOCKER=1"
            )
        self._require_image()
        names = [
            "NS1",
            "NS2",
            *(f"{node.upper()}_{kind}" for node in self.nodes for kind in ("MESSAGING", "LOG")),
        ]
        self._reserved = PortReservations()
        self._ports = dict(zip(names, self._reserved.unlisted(len(names)), strict=True))
        self.nameserver = f"127.0.0.1:{self._ports['NS1']},127.0.0.1:{self._ports['NS2']}"

    def start(self) -> None:
        self._run("down", "--volumes", "--remove-orphans", "--timeout", "1")
        self._run("up", "--detach", *["ns1", "ns2"], *self.nodes)
        for name in self.nodes:
            self._wait_healthy(name)

    def kill(self, name: str) -> str:
        container = self._container(name)
        self._docker("kill", "--signal", "KILL", container)
        return f"container {container[:12]}"

    def restart(self, name: str) -> None:
        self._docker("start", self._container(name))

    def log_address(self, name: str) -> str:
        return f"127.0.0.1:{self._ports[f'{name.upper()}_LOG']}"

    def log_tail(self, name: str) -> str:
        return self._run("logs", "--no-color", "--tail", "12", name)

    def ports(self) -> str:
        return f"ports {min(self._ports.values())}-{max(self._ports.values())}"

    def stop(self) -> None:
        """Save the logs in the demo's folder, then remove containers, network and volumes."""
        logs = self._folder / "cluster" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "containers.log").write_text(self._run("logs", "--no-color"))
        self._run("down", "--volumes", "--remove-orphans", "--timeout", "3")
        self._reserved.release()

    def _container(self, name: str) -> str:
        """Return the id of the node's container, running or not."""
        listed = self._docker(
            "ps", "--all", "--quiet", "--no-trunc",
            "--filter", f"label=com.docker.compose.project={_PROJECT}",
            "--filter", f"label=com.docker.compose.service={name}",
        )  # fmt: skip
        return listed.strip()

    def _wait_healthy(self, name: str) -> None:
        container = self._container(name)
        command = (
            f"until [ \"$(docker inspect -f '{{{{.State.Health.Status}}}}' {container})\" = healthy ]; "
            "do sleep 0.3; done"
        )
        try:
            subprocess.run(["sh", "-c", command], check=True, timeout=_START_SECONDS, capture_output=True)
        except subprocess.SubprocessError as error:
            raise LedgerMQError(
                f"{name} is not ready after {_START_SECONDS} s:\n{self.log_tail(name)}"
            ) from error

    def _require_image(self) -> None:
        found = subprocess.run(["docker", "image", "inspect", _IMAGE], capture_output=True, check=False)
        if found.returncode != 0:
            raise UsageError(f"there is no image {_IMAGE}, or no Docker engine", "", "Build it: make image")

    def _run(self, *arguments: str) -> str:
        command = [*self._compose, "--project-name", _PROJECT, "--file", str(self._file), *arguments]
        environment = {**os.environ, **{name: str(port) for name, port in self._ports.items()}}
        return _output(command, environment)

    def _docker(self, *arguments: str) -> str:
        return _output(["docker", *arguments], dict(os.environ))


def compose_command() -> list[str]:
    """Return `docker compose` or `docker-compose`, whichever is installed. Raises: UsageError."""
    if shutil.which("docker") is None:
        raise UsageError(
            "there is no docker command", "", "Install it: sudo apt-get install -y docker.io docker-compose"
        )
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose") is None:
        raise UsageError(
            "there is no docker-compose", "", "Install it: sudo apt-get install -y docker-compose"
        )
    return ["docker-compose"]


def _output(command: list[str], environment: dict[str, str]) -> str:
    """Run a command, and return its output. Raises: LedgerMQError."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise LedgerMQError(f"`{' '.join(command)}` failed with exit code {done.returncode}: {said}")
    return done.stdout

"""A standalone Spark cluster of real processes for tests: a master, two workers, Spark Connect on request.

    with StandaloneSpark(folder) as spark:
        run([..., "--master", spark.master])

The workers are on two loopback addresses, so Spark takes them for two hosts: it starts the second attempt of
a slow task on another host only. Each process group has what its process starts, executors too, and is killed
at the end.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from tests.ports import free_ports

from .cluster import wait_until

BIN = Path(sys.executable).parent
_DEPLOY = "org.apache.spark.deploy"
WORKER_HOSTS = ("127.0.0.1", "127.0.0.2")
_SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def spark_environment(**more: str) -> dict[str, str]:
    """Return an environment for processes of Spark on loopback, without settings of who runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "LEDGERMQ_")) and name != "PYTHONPATH"
    }
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}", **more}


class StandaloneSpark:
    """Master and workers with one core each; logs, and what executors leave, stay in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._port, self._page, self._connect_port = free_ports(3)
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start(
                "master", [str(BIN / "spark-class"), f"{_DEPLOY}.master.Master", "--host", "127.0.0.1",
                           "--port", str(self._port), "--webui-port", str(self._page)],
            )  # fmt: skip
            wait_until(lambda: listens(self._port), "the Spark master listens")
            for host in WORKER_HOSTS:
                self._start(
                    f"worker-{host}", [str(BIN / "spark-class"), f"{_DEPLOY}.worker.Worker", self.master,
                                       "--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                                       "--work-dir", str(self.folder / f"work-{host}")],
                    SPARK_LOCAL_IP=host,
                )  # fmt: skip
            wait_until(lambda: self._workers() == len(WORKER_HOSTS), "the Spark workers have registered")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for process in reversed(self._running):
            end(process)

    @contextmanager
    def connect_server(self, settings: Mapping[str, str], **environment: str) -> Iterator[str]:
        """Run a Spark Connect server on this cluster, as its own script starts it; yield its URL."""
        import pyspark

        script = Path(pyspark.__path__[0], "sbin", "start-connect-server.sh")
        chosen = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._connect_port),
            **settings,
        }
        options = [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]
        process = self._start(
            "connect", ["bash", str(script), "--wait", "--master", self.master, *options],
            SPARK_DAEMON_MEMORY="768m", **environment,
        )  # fmt: skip
        try:
            wait_until(
                lambda: listens(self._connect_port) or process.poll() is not None, "Spark Connect listens"
            )
            assert process.poll() is None, self.log("connect")
            yield f"sc://127.0.0.1:{self._connect_port}"
        finally:
            end(process)

    def log(self, name: str) -> str:
        """Return the end of what a process wrote."""
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def _start(self, name: str, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        settings = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
            "SPARK_PID_DIR": str(self.folder),
            "SPARK_LOG_DIR": str(self.folder),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                env=spark_environment(**settings | environment),
            )  # fmt: skip
        self._running.append(process)
        return process

    def _workers(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:  # the page comes after the port
            return 0


def listens(port: int) -> bool:
    """Tell whether something listens at a port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

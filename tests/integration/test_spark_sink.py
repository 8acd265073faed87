"""The sink of Spark: driver, executors and leaders are killed at random points, and each row is stored once.

LEDGERMQ_SINK_KILLS=30 kills 30 times instead of 3; LEDGERMQ_SINK_SEED chooses other points.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import grpc
import pytest

from ledgermq.proto import admin_pb2, admin_pb2_grpc

from .cluster import Cluster, wait_until
from .history import read_topic

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("there is no Java", allow_module_level=True)

KILLS = int(os.environ.get("LEDGERMQ_SINK_KILLS", "3"))
SEED = int(os.environ.get("LEDGERMQ_SINK_SEED", "1"))
ROWS_PER_FILE = 3000
FILES = KILLS // 2 + 3


class Job:
    """The driver process with its JVM and its Python workers, in a process group of their own."""

    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self._arguments = [
            sys.executable, "-m", "tests.integration.spark_sink_job", cluster.nameserver, str(folder),
        ]  # fmt: skip
        self._log = folder / "job.log"
        self._seed = seed
        self.starts = 0
        self.popen = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path.cwd())}
        arguments = [*self._arguments, str(self._seed + self.starts)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                arguments, stdout=log, stderr=log, start_new_session=True, env=environment
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def kill(self) -> None:
        """kill -9 the driver and its JVM. The workers of Python notice by themselves, a little later."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def restart(self) -> None:
        self.kill()
        self.popen = self._start()

    def kill_worker(self, choose: random.Random) -> None:
        """kill -9 of a Python worker of an executor, as soon as there is one."""

        def one() -> int | None:
            if self.popen.poll() is not None:
                return -1
            return choose.choice(found) if (found := workers_of(self.popen.pid)) else None

        pid = wait_until(one, "a worker of Python")
        if pid > 0:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return


def workers_of(driver: int) -> list[int]:
    """Return the Python workers below a driver: children of its JVM's pyspark.daemon."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            stat = (path / "stat").read_text()
            commands[int(path.name)] = (path / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(path.name)] = int(stat.rpartition(")")[2].split()[1])

    def is_below(pid: int) -> bool:
        while pid in parents and pid != driver:
            pid = parents[pid]
        return pid == driver

    daemons = {pid for pid, command in commands.items() if b"pyspark.daemon" in command and is_below(pid)}
    return [pid for pid, parent in parents.items() if parent in daemons]


def stored_count(cluster: Cluster) -> int:
    """Return how many rows the broker group has stored, as one of its nodes knows."""
    request = admin_pb2.DescribeTopicRequest(topic="rows")
    for name in cluster.nodes:
        if cluster.nodes[name].running:
            try:
                with grpc.insecure_channel(cluster.address(name)) as channel:
                    answer = admin_pb2_grpc.AdminServiceStub(channel).DescribeTopic(request, timeout=1)
            except grpc.RpcError:
                continue
            return sum(queue.end_offset for queue in answer.queues)
    return 0


def is_due(cluster: Cluster, job: Job, point: int) -> bool:
    """Tell whether so many rows are stored, or the job has ended."""
    return stored_count(cluster) > point or job.popen.poll() is not None


@pytest.mark.timeout(240 + 40 * KILLS)
def test_each_row_is_stored_once_whatever_is_killed(tmp_path: Path) -> None:
    choose = random.Random(SEED)
    folder = tmp_path / "job"
    (folder / "input").mkdir(parents=True)
    rows = [f"row {number:07d} {'x' * choose.randrange(300)}" for number in range(FILES * ROWS_PER_FILE)]
    for file in range(FILES):
        lines = rows[file * ROWS_PER_FILE : (file + 1) * ROWS_PER_FILE]
        (folder / "input" / f"{file:04d}.txt").write_text("\n".join(lines) + "\n")
    kinds = ["driver", "executor", "leader"] * (KILLS // 3)
    choose.shuffle(kinds)
    points = sorted(choose.randrange(len(rows) * 9 // 10) for _ in kinds)
    done: Counter[str] = Counter()
    with Cluster(tmp_path / "cluster", nodes=3) as cluster:
        cluster.wait_leader()
        job = Job(cluster, folder, SEED)
        try:
            for point, kind in zip(points, kinds, strict=True):
                wait_until(partial(is_due, cluster, job, point), f"{point} rows are stored", timeout=600)
                assert job.popen.poll() in (None, 0), job.log()
                done[kind] += 1
                if kind == "driver":
                    job.restart()
                elif kind == "executor":
                    job.kill_worker(choose)
                else:
                    cluster.restart(cluster.kill_leader())
            assert wait_until(lambda: job.popen.poll() is not None, "the job ends", timeout=600)
            assert job.popen.returncode == 0, job.log()
        finally:
            job.kill()
        stored = read_topic(cluster.address(cluster.wait_leader()), "rows")
    counts = Counter(body.decode() for body in stored.values())
    twice = [row for row, count in counts.items() if count > 1]
    assert not twice, f"{len(twice)} rows are stored more than once: {twice[:3]}"
    assert counts.keys() == set(rows)
    assert done.total() == len(kinds), done

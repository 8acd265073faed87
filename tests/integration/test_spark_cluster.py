"""Check, source and sink on a standalone Spark cluster, by `--master`, spark-submit and Spark Connect.

Executors are processes of their own, on two hosts as far as Spark knows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledgermq.client import Message
from ledgermq.client.sync import Producer
from ledgermq.spark_jobs.package import build_package

from . import spark_cluster_job, spark_connect_job
from .cluster import Cluster
from .history import read_topic
from .standalone_spark import BIN, StandaloneSpark, spark_environment

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("there is no Java", allow_module_level=True)
pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[2]
_SMALL = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
}


@dataclass(frozen=True)
class Place:
    """The Spark cluster, the broker group with a topic `orders`, and an environment of libraries alone."""

    spark: StandaloneSpark
    brokers: Cluster
    folder: Path

    @property
    def dumps(self) -> Path:
        """Return the dumps of all nodes, which are taken once."""
        dumps = self.folder / "dumps"
        if not dumps.exists():
            run(self, "ledgermq", "dump", str(dumps), "--nameserver", self.brokers.nameserver)
        return dumps


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("spark-cluster")
    settings = folder / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in _SMALL.items()))
    make_environment(folder / "env")
    with StandaloneSpark(folder / "spark") as spark, Cluster(folder / "brokers", nodes=3) as brokers:
        brokers.wait_leader()
        with Producer(brokers.nameserver) as producer:
            producer.send_batch(Message("orders", f"order {number}".encode()) for number in range(2000))
        yield Place(spark, brokers, folder)


def make_environment(folder: Path) -> None:
    """Make a Python environment that has all libraries of this one, and not `ledgermq`."""
    venv.create(folder)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(packages, "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def run(place: Place, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed."""
    settings = {"SPARK_CONF_DIR": str(place.folder / "conf"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=place.folder, capture_output=True, text=True,
        timeout=200, check=False, env=spark_environment(**settings | environment),
    )  # fmt: skip
    errors = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("\tat "))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{errors[-6000:]}"
    return done


def test_the_check_runs_on_the_cluster_and_says_how_far_it_is(place: Place) -> None:
    done = run(place, "ledgermq", "check", str(place.dumps), "--master", place.spark.master, "--json")
    report = json.loads(done.stdout)
    assert (report["exit_code"], len(report["nodes"])) == (0, 3)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    scan = [line for line in lines if line["stage"] == "scan"][-1]
    assert scan["tasks"] == scan["of_tasks"] >= 3
    assert scan["bytes"] == scan["of_bytes"] > 0
    assert scan["eta_seconds"] == 0


def test_a_task_that_is_run_twice_at_once_stores_each_row_once(place: Place) -> None:
    folder = place.folder / "job"
    folder.mkdir()
    build_package(place.folder / "ledgermq-spark.zip")
    with tarfile.open(place.folder / "env.tar.gz", "w:gz") as archive:
        archive.add(place.folder / "env", ".")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.pyspark.python": "./env/bin/python",
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    run(
        place, "spark-submit", "--master", place.spark.master, "--py-files", "ledgermq-spark.zip",
        "--archives", "env.tar.gz#env", *options,
        str(Path(spark_cluster_job.__file__)), place.brokers.nameserver, str(folder), PYTHONPATH="",
    )  # fmt: skip
    assert (folder / "attempt-1").exists(), "the slow task was not run a second time"
    result = json.loads((folder / "result.json").read_text())
    rows = spark_cluster_job.ROWS
    assert (result["messages"], result["different"]) == (rows, rows)
    stored = read_topic(place.brokers.address(place.brokers.wait_leader()), "rows")
    assert len(stored) == len(set(stored.values())) == rows
    for each in result["places"]:
        assert "ledgermq-spark.zip" in each["code"], each
        assert "/env/bin/" in each["python"], each


def test_check_source_sink_and_streams_run_through_spark_connect(place: Place) -> None:
    python, package = place.folder / "env" / "bin" / "python", place.folder / "server.zip"
    build_package(package)  # Spark plans streams without what the client has sent
    environment = {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(package)}
    settings = _SMALL | {"spark.executorEnv.PYTHONPATH": str(package)}
    with place.spark.connect_server(settings, **environment) as url:
        done = run(
            place, "python", "-m", "tests.integration.spark_connect_job", url, place.brokers.nameserver,
            str(place.folder / "connect"),
        )  # fmt: skip
        found = json.loads(done.stdout)
        rows = spark_connect_job.ROWS
        assert found["counts"] == {"connected": [rows, rows], "copied": [rows, rows]}
        (progress,) = found["progress"]
        assert progress["batch"] >= 2
        assert progress["lag"] == 0
        checked = run(place, "ledgermq", "check", str(place.dumps), "--master", url, "--json")
        assert json.loads(checked.stdout)["exit_code"] == 0
        scan = [json.loads(line) for line in checked.stderr.splitlines() if '"stage": "scan"' in line][-1]
        assert scan["of_bytes"] > 0


def test_a_master_that_does_not_listen_is_one_sentence(place: Place) -> None:
    for scheme, what in (("spark", "Spark master"), ("sc", "Spark Connect server")):
        command = [str(BIN / "ledgermq"), "check", str(place.dumps), "--master", f"{scheme}://127.0.0.1:1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=spark_environment())
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: no {what} listens at 127.0.0.1:1. "), done.stderr
        assert len(done.stderr.splitlines()) == 1

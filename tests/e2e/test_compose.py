"""The cluster in containers: the lines of deploy/README.md as printed, a killed leader, a cut network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from ledgermq.client.demo.docker import compose_command
from tests.integration.cluster import wait_until
from tests.ports import free_ports

from .conftest import ROOT
from .processes import environment, output_of, run

pytestmark = pytest.mark.docker
PROJECT = "ledgermq-test"
NODES = ("n1", "n2", "n3")


class Compose:
    """The compose file of deploy/ under a project name and on ports of its own."""

    def __init__(self, shims: Path) -> None:
        self.engine = docker.from_env()
        names = ["NS1", "NS2", *(f"{node.upper()}_{kind}" for node in NODES for kind in ("MESSAGING", "LOG"))]
        ports = dict(zip(names, map(str, free_ports(len(names))), strict=True))
        self.nameserver = f"127.0.0.1:{ports['NS1']},127.0.0.1:{ports['NS2']}"
        self.settings = {**ports, "COMPOSE_PROJECT_NAME": PROJECT, "LEDGERMQ_NAMESERVER": self.nameserver}
        if shutil.which("docker-compose") is None:  # only version 2 is here: let the printed name work
            shims.mkdir()
            shim = shims / "docker-compose"
            shim.write_text('#!/bin/sh\nexec docker compose "$@"\n')
            shim.chmod(0o755)
            self.settings["PATH"] = f"{shims}{os.pathsep}{environment()['PATH']}"

    def __call__(self, *arguments: str) -> str:
        command = [*compose_command(), "-f", str(ROOT / "deploy" / "docker-compose.yml"), *arguments]
        return output_of(command, ROOT, timeout=900, **self.settings)

    def shell(self, script: str) -> str:
        return output_of(["bash", "-euo", "pipefail", "-c", script], ROOT, timeout=280, **self.settings)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(list(arguments), LEDGERMQ_NAMESERVER=self.nameserver)

    def container(self, service: str) -> docker.models.containers.Container:
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        return self.engine.containers.list(all=True, filters={"label": labels})[0]

    def health(self, service: str) -> str:
        """Return what the health check of a service says."""
        return str(self.container(service).attrs["State"]["Health"]["Status"])


@pytest.fixture(scope="module")
def compose(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    result = Compose(tmp_path_factory.mktemp("compose") / "bin")
    result("--profile", "spark", "down", "--volumes", "--remove-orphans")
    try:
        result("up", "--detach")
        status = result.cli("cluster", "status", "--wait", "90s")
        assert status.returncode == 0, status.stdout + status.stderr + result("logs", "--tail", "20")
        assert result.cli("topic", "create", "events", "--queues", "4").returncode == 0
        yield result
    finally:
        result("--profile", "spark", "down", "--volumes", "--remove-orphans", "--timeout", "5")
        result.engine.close()


def consume_inside(compose: Compose, count: int, group: str) -> str:
    """Consume from within the network of the containers."""
    return compose(
        "run", "--rm", "--entrypoint", "ledgermq", "check",
        "consume", "events", "--group", group, "--count", str(count), "--timeout", "30",
    )  # fmt: skip


def test_the_host_is_told_its_own_addresses(compose: Compose) -> None:
    status = compose.cli("cluster", "status")
    assert len(re.findall(r"127\.0\.0\.1:\d+", status.stdout)) == 3, status.stdout
    assert "n1:8081" not in status.stdout


def test_host_and_container_send_and_consume_through_a_killed_leader(compose: Compose) -> None:
    assert compose.cli("send", "events", "before").returncode == 0
    leader = compose.cli("cluster", "leader", "-q").stdout.strip()
    compose.container(leader).kill(signal="KILL")
    sent = compose.cli("send", "events", "after")
    assert sent.returncode == 0, sent.stderr
    inside = consume_inside(compose, 2, "inside")
    assert "before" in inside and "after" in inside
    outside = compose.cli("consume", "events", "--group", "outside", "--count", "2", "--timeout", "30")
    assert "before" in outside.stdout and "after" in outside.stdout, outside.stdout + outside.stderr
    compose.container(leader).start()
    status = compose.cli("cluster", "status", "--wait", "90s")
    assert status.returncode == 0, status.stdout


def test_a_leader_without_network_is_replaced_and_comes_back(compose: Compose) -> None:
    leader = compose.cli("cluster", "leader", "-q").stdout.strip()
    network = compose.engine.networks.list(names=[f"{PROJECT}_ledgermq"])[0]
    network.disconnect(compose.container(leader).id)
    try:
        sent = compose.cli("send", "events", "cut off")
        assert sent.returncode == 0, sent.stderr
        assert compose.cli("cluster", "leader", "-q").stdout.strip() not in ("", leader)
    finally:
        network.connect(compose.container(leader).id, aliases=[leader])
    status = compose.cli("cluster", "status", "--wait", "90s")
    assert status.returncode == 0, status.stdout


def test_a_stop_is_clean_and_hands_over(compose: Compose) -> None:
    leader = compose.cli("cluster", "leader", "-q").stdout.strip()
    container = compose.container(leader)
    container.stop(timeout=20)
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 0, container.logs(tail=20).decode()
    assert container.attrs["Config"]["User"] == "10001"
    assert compose.cli("send", "events", "handed over").returncode == 0
    container.start()
    assert compose.cli("cluster", "status", "--wait", "90s").returncode == 0


@pytest.mark.spark
def test_check_sink_and_source_run_on_the_spark_cluster_of_containers(compose: Compose) -> None:
    master = "spark://spark-master:7077"
    compose("--profile", "spark", "up", "--detach", "spark-master", "spark-worker-1", "spark-worker-2")
    wait_until(lambda: compose.health("spark-master") == "healthy", "the Spark workers have registered")
    checked = compose(
        "run", "--rm", "--entrypoint", "sh", "spark",
        "-c", f"ledgermq dump /dumps/cluster && ledgermq check /dumps/cluster --master {master}",
    )  # fmt: skip
    assert "3 replicas identical" in checked, checked
    assert compose.cli("topic", "create", "spark", "--queues", "4").returncode == 0
    job = (
        "from ledgermq.spark_jobs import register\n"
        "from ledgermq.spark_jobs.session import open_session\n"
        f"spark = open_session('test', master='{master}')\n"
        "register(spark)\n"
        "there = dict(nameservers='ns1:9876,ns2:9876')\n"
        "rows = spark.range(0, 5000, numPartitions=4).selectExpr(\"concat('row ', id) AS body\")\n"
        "rows.write.format('ledgermq').options(**there, topic='spark').mode('append').save()\n"
        "read = spark.read.format('ledgermq').options(**there, subscribe='spark').load()\n"
        "print('counted', *read.selectExpr('count(*)', 'count(distinct body)').first())\n"
    )
    done = compose("run", "--rm", "--entrypoint", "python3", "spark", "-c", job)
    assert "counted 5000 5000" in done, done


@pytest.mark.spark
def test_the_lines_of_the_readme_work_as_printed(compose: Compose) -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    found = re.search(r"<!-- test: deploy -->\n```sh\n(.*?)```", page, re.DOTALL)
    assert found is not None
    output = compose.shell(found[1].replace("make image\n", "make image >&2\n"))
    assert "HEALTHY" in output
    assert "3 replicas identical" in output, output

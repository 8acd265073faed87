"""What a session on a cluster is refused for. Without Spark."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.session import check_version
from ledgermq.spark_jobs.spark_cluster import await_executors, check_listening, local_cores
from tests.ports import free_ports


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[*]", 0), ("local[2,4]", None), ("local-cluster[2,1,1024]", None),
     ("spark://h:7077", None)],
)  # fmt: skip
def test_local_masters(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


@pytest.mark.parametrize("url", ["spark://{}", "spark://127.0.0.1:1,{}", "sc://{}/;user_id=ann"])
def test_a_master_that_listens_is_taken(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_listening(url.format(f"127.0.0.1:{server.getsockname()[1]}"))


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://https://127.0.0.1:1", "local-cluster[2,1,1024]", "nonsense"]
)
def test_masters_without_an_address_of_their_own_are_left_to_spark(master: str) -> None:
    check_listening(master)


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "127.0.0.1:port", ":{}", "[::1]:{}"])
def test_a_master_that_does_not_listen_is_refused(address: str) -> None:
    (port,) = free_ports(1)
    with pytest.raises(SparkJobError, match=r"no Spark Connect server listens at .* usual port is 15002"):
        check_listening(f"sc://{address.format(port)}/;token=x")


def fake_session(executors: int, **settings: str) -> Any:
    """Return a session whose cluster has given it so many executors."""
    known = {"spark.driver.host": "10.0.0.1", "spark.driver.port": "4040", **settings}
    conf = SimpleNamespace(
        get=known.__getitem__,
        getBoolean=lambda name, default: known.get(name, str(default)).lower() == "true",
    )
    status = SimpleNamespace(size=lambda: executors + 1)
    scala = SimpleNamespace(conf=lambda: conf, getExecutorMemoryStatus=lambda: status)
    return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala)))


def test_a_cluster_that_gives_no_executor_is_not_waited_for_for_ever() -> None:
    await_executors(fake_session(1), "spark://h:7077", 0)
    with pytest.raises(SparkJobError, match=r"no executor in 0 s.*10\.0\.0\.1:4040: set SPARK_LOCAL_IP"):
        await_executors(fake_session(0), "spark://h:7077", 0)


def test_executors_that_come_when_they_are_needed_are_not_waited_for() -> None:
    await_executors(fake_session(0), "yarn", 0)
    await_executors(fake_session(0, **{"spark.dynamicAllocation.enabled": "true"}), "spark://h:7077", 0)


@pytest.mark.parametrize(("version", "fits"), [("4.3.0", True), ("4.2.1", True), ("5.0.0-preview1", True),
                                               ("4.1.2", False), ("3.5.7", False)])  # fmt: skip
def test_versions_of_spark(version: str, fits: bool) -> None:
    spark: Any = SimpleNamespace(version=version)
    if fits:
        check_version(spark)
        return
    with pytest.raises(SparkJobError, match=f"this is Spark {version}; LedgerMQ needs Spark 4.2 or newer"):
        check_version(spark)

"""`flush = async_timed` and `async_notify`: a majority's page cache is enough, and survives kill -9."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .checks import check_every_node, wait_for_more
from .cluster import Cluster
from .history import Load

TOPIC = "unflushed"


def kill_all(cluster: Cluster) -> None:
    """kill -9 of every node before any of them can notice that another is gone."""
    for process in cluster.nodes.values():
        os.kill(process.pid, signal.SIGKILL)
    for process in cluster.nodes.values():
        assert process.popen is not None
        process.popen.wait()


@pytest.mark.parametrize("mode", ["async_timed", "async_notify"])
def test_killing_all_nodes_loses_nothing_that_was_acknowledged(tmp_path: Path, mode: str) -> None:
    with Cluster(
        tmp_path, nodes=3, settings={"flush": mode, "segment-size": "8MiB", "max-message-bytes": "1MiB"}
    ) as cluster:
        for name in cluster.nodes:
            status = cluster.status(name)
            assert status is not None and status.flush == mode, f"{name} says {status}"
        load = Load(cluster.nameserver, TOPIC)
        with load.running():
            wait_for_more(load, 500)
            kill_all(cluster)
            for name in cluster.nodes:
                cluster.start(name)
            for name in cluster.nodes:
                cluster.wait_ready(name)
            wait_for_more(load)
            leader = cluster.wait_leader()
            assert cluster.terminate(leader) == 0, cluster.nodes[leader].log()
            wait_for_more(load)
            cluster.restart(leader)
        check_every_node(cluster, TOPIC, load.history)

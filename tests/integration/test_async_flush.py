"""`flush = async_timed` and `async_notify`: a majority's page cache is enough, and survives kill -9."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checks import check_every_node, wait_for_more
from .cluster import Cluster
from .history import Load

TOPIC = "unflushed"


@pytest.mark.parametrize("mode", ["async_timed", "async_notify"])
def test_killing_all_nodes_loses_nothing_that_was_acknowledged(tmp_path: Path, mode: str) -> None:
    with Cluster(
        tmp_path, nodes=3, settings={"flush": mode, "segment-size": "8MiB", "max-message-bytes": "1MiB"}
    ) as cluster:
        for name in cluster.nodes:
            status = cluster.status(name)
            assert status is not None and status.flush == mode, f"{name} says {status}"
        with Load(cluster.nameserver, TOPIC).running() as load:
            wait_for_more(load, 500)
            cluster.kill_all()
            cluster.start_all()
            wait_for_more(load)
            leader = cluster.wait_leader()
            assert cluster.terminate(leader) == 0, cluster.nodes[leader].log()
            wait_for_more(load)
            cluster.restart(leader)
        check_every_node(cluster, TOPIC, load.history)

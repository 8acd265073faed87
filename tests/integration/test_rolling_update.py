"""Nodes of the version before, whose streams are plain frames, are updated one after the other under load."""

from __future__ import annotations

from pathlib import Path

from .checks import check_every_node, wait_for_more
from .cluster import Cluster
from .history import Load

FORMER = "tests.integration.former_node"


def test_a_rolling_update_to_calls_and_back_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, module=FORMER) as cluster:
        with Load(cluster.nameserver, "rolling").running() as load:
            for module in ("ledgermq.broker", FORMER):
                for name, process in cluster.nodes.items():
                    wait_for_more(load)
                    assert cluster.terminate(name) == 0, process.log()
                    process.arguments[1] = module
                    cluster.restart(name)
                    wait_for_more(load)
                    print(f"\n{name} runs {module}, terms {cluster.terms()}")
        for name, process in cluster.nodes.items():
            assert "speaks plain frames" in process.log(400), name
        check_every_node(cluster, "rolling", load.history)

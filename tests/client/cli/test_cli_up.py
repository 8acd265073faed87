"""`ledgermq up`: what it finds out before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.client.cli import run_cli
from ledgermq.client.cli import up as cli_up
from ledgermq.nameserver.service import now_ms
from ledgermq.proto import route_pb2

from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served


def register(running: Served[FakeCluster], cluster: str) -> None:
    """Let a group of another cluster appear at the nameserver."""
    route = route_pb2.GroupRoute(cluster=cluster, group="g0", leader_id="n1")
    route.nodes.add(node_id="n1")
    table = running.cluster.nameserver.table
    running.call(table.register, "n1", "i1", route, True, now_ms())


def test_brokers_join_no_cluster_that_would_not_find_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(FakeCluster) as running:
        register(running, "shop")
        assert run_cli(["up", "--data", str(tmp_path / "more"), "--join", running.address]) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert f"the cluster at {running.address} is named shop" in said
        assert f"ledgermq broker --cluster shop --nameservers {running.address}" in said
        register(running, "local")
        assert run_cli(["up", "--data", str(tmp_path / "more"), "--join", running.address]) == 1
        assert "knows several clusters: local, shop" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder_for_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("kept")
    assert run_cli(["up", "--data", str(tmp_path / "file")]) == 1
    assert "cannot be made: it is a file. Point --data to a folder" in " ".join(
        capsys.readouterr().err.split()
    )
    assert (tmp_path / "file").read_text() == "kept"


def test_groups_and_nodes_of_the_cluster_are_known_before_new_ones_are_named() -> None:
    with served(lambda: FakeCluster(FakeGroup("g0"), nodes=2)) as running:
        assert running.run(cli_up._known_by(running.address)) == (frozenset({"g0"}), frozenset({"n1", "n2"}))

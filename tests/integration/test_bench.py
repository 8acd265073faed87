"""`ledgermq bench` against a real cluster: every workload, shortly, and what its document says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ledgermq.client.bench.workloads import TITLES

from .cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


def bench(cluster: Cluster, *options: str) -> tuple[dict[str, Any], str]:
    """Run the command; return its document and what it told on stderr."""
    command = [sys.executable, "-m", "ledgermq.client.cli", "bench", "-n", cluster.nameserver]
    short = ["--seconds", "0.5", "--warm-up", "0.1", "--in-flight", "512", "--json", "-"]
    done = subprocess.run(
        [*command, *short, *options], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_every_workload_runs_and_its_figures_are_whole(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        leader = cluster.wait_leader()
        document, _ = bench(cluster, "--plots", str(tmp_path / "plots"))
        assert [(each["group"], each["leader"], len(each["nodes"])) for each in document["cluster"]] == [
            ("g0", leader, 3)
        ]
        figures = {each["workload"]: each for each in document["workloads"]}
        assert list(figures) == list(TITLES)
        for name, each in figures.items():
            assert each["messages"] > 0 and each["messages_per_second"] > 0, name
            assert sum(each["series"]) == each["messages"], name
            if name != "W4":
                assert sum(count for _, count in each["histogram"]) == each["messages"], name
                assert 0 < each["p50_ms"] <= each["p90_ms"] <= each["p99_ms"] <= each["p999_ms"], name
                assert each["p999_ms"] <= each["max_ms"], name
        stored = sum(figures[name]["messages"] for name in ("W1", "W2", "W3"))
        assert figures["W4"]["messages"] > stored, "the warm-up is read back, too"
        assert figures["W5"]["messages"] == 250
        assert len(list((tmp_path / "plots").iterdir())) == 4

        batches, _ = bench(
            cluster, "-w", "w3,w6", "--batch", "64", "--producers", "4", "--target", "follower"
        )
        pipelined, unary = batches["workloads"]
        assert pipelined["messages_per_call"] == 64
        assert 64 * sum(count for _, count in pipelined["histogram"]) == pipelined["messages"] > 0
        assert unary["messages"] > 0
        topics = [sys.executable, "-m", "ledgermq.client.cli", "topic", "list", "--json"]
        left = subprocess.run([*topics, "-n", cluster.nameserver], cwd=ROOT, capture_output=True, check=True)
        assert json.loads(left.stdout) == []

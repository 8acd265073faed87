"""The power of all three nodes fails at once, again and again: no acknowledged message is lost.

Real processes and real gRPC on storage that drops everything that was not synced (tests/volatile_disk.py).
Each seed chooses how many messages are in flight and when the power fails.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from .cluster import Cluster, wait_until
from .history import Load, read_topic

pytestmark = pytest.mark.long
SEEDS = range(50)
ON_ONE_CLUSTER = 10


class PowerCutCluster(Cluster):
    """Its nodes lose what they did not sync when they are killed."""

    module = "tests.integration.power_cut_node"


def run_seed(cluster: PowerCutCluster, seed: int, *, timeout_ms: int = 30_000) -> None:
    """Produce, cut the power meanwhile, restart, and compare the leader with what it acknowledged."""
    rng = random.Random(seed)
    topic = f"seed-{seed}"
    load = Load(
        cluster.nameserver,
        topic,
        in_flight=rng.choice((1, 8, 64, 256)),
        prefix=topic,
        timeout_ms=timeout_ms,
    )
    with load.running():
        wait_until(lambda: load.count > 0, "the first acknowledgement")
        time.sleep(rng.uniform(0.01, 0.5))  # what the seed chose: where in the run the power goes
        cluster.kill_all()
        acknowledged = load.history.acknowledged.copy()
        load.ask_to_stop()
        cluster.start_all()
        leader = cluster.wait_leader()
    stored = read_topic(cluster.address(leader), topic)
    load.history.check(stored, f"seed {seed}, leader {leader}")
    assert acknowledged, f"seed {seed}: nothing was acknowledged before the power went"


@pytest.mark.parametrize("first", SEEDS[::ON_ONE_CLUSTER])
def test_fifty_power_cuts_lose_no_acknowledged_message(tmp_path: Path, first: int) -> None:
    with PowerCutCluster(tmp_path, nodes=3) as cluster:
        for seed in SEEDS[first : first + ON_ONE_CLUSTER]:
            run_seed(cluster, seed)


def test_the_same_with_a_disk_that_lies_about_syncing_loses_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this one, the test above could pass because it cannot see.

    Either messages are gone, or the nodes notice that promised data is gone and refuse to start: both fail.
    """
    monkeypatch.setenv("LEDGERMQ_TEST_LYING_DISK", "1")
    with (
        PowerCutCluster(tmp_path, nodes=3) as cluster,
        pytest.raises(AssertionError, match=r"will not start|not at their place"),
    ):
        for seed in range(5):
            run_seed(cluster, seed, timeout_ms=3000)

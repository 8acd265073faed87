"""Nodes die at bad moments: during segment rolls, tail truncation, checkpoints, and leadership changes.

`kill -9` of a PowerCutCluster's node is a power cut (tests/volatile_disk.py): only synced data survives.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from ledgermq.client.sync import Consumer
from ledgermq.proto import admin_pb2, admin_pb2_grpc

from .checks import wait_for_more
from .cluster import Cluster, wait_until
from .history import History, Load, describe_topic, read_topic
from .test_power_cut import PowerCutCluster

TOPIC = "crash"
#: Small, so that a few seconds of load fill several.
SMALL_SEGMENTS = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}


def ask_admin(cluster: Cluster, call: Callable[[admin_pb2_grpc.AdminServiceStub], object]) -> bool:
    """Ask any node; return whether it answered. In the middle of crashes a refusal is no failure."""
    for name, process in cluster.nodes.items():
        if process.running:
            with grpc.insecure_channel(cluster.address(name)) as channel:
                try:
                    call(admin_pb2_grpc.AdminServiceStub(channel))
                except grpc.RpcError:
                    continue
                return True
    return False


def transfer_lead(cluster: Cluster) -> bool:
    request = admin_pb2.TransferLeadershipRequest()
    return ask_admin(cluster, lambda stub: stub.TransferLeadership(request, timeout=3))


def write_checkpoints(cluster: Cluster) -> bool:
    """Retention writes a checkpoint first, at the leader, and one on every node when it deletes a segment."""
    request = admin_pb2.CleanRequest(older_than_ms=1)
    return ask_admin(cluster, lambda stub: stub.Clean(request, timeout=5))


def check_every_node(cluster: Cluster, history: History, *, cleaned: bool = False) -> None:
    """Each node, asked alone, serves all that was acknowledged, and all serve the same."""
    leader = cluster.wait_leader()
    info = describe_topic(cluster.address(leader), TOPIC)
    for name in cluster.nodes:
        cluster.wait_ready(name)
    end = _applied(cluster, leader)
    views = {}
    for name in cluster.nodes:
        wait_until(partial(_has_applied, cluster, name, end), f"{name} applied entry {end}")
        views[name] = read_topic(cluster.address(name), info)
        if not cleaned:
            history.check(views[name], name)
    assert len({frozenset(view.items()) for view in views.values()}) == 1, (
        "the nodes serve different messages"
    )


def _has_applied(cluster: Cluster, name: str, index: int) -> bool:
    return _applied(cluster, name) >= index


def _applied(cluster: Cluster, name: str) -> int:
    """Return the last entry that a node says it has applied, 0 when it does not answer."""
    own = _own_status(cluster, name)
    return own.applied_index if own is not None else 0


def _is_ahead_alone(cluster: Cluster, leader: str) -> bool:
    """Tell whether a leader has entries on its disk that are not committed."""
    own = _own_status(cluster, leader)
    return own is not None and own.durable_index > own.commit_index


def _own_status(cluster: Cluster, name: str) -> admin_pb2.NodeStatus | None:
    status = cluster.status(name)
    return next((node for node in status.nodes if node.node_id == name), None) if status is not None else None


@contextmanager
def load_on(cluster: Cluster, in_flight: int = 64) -> Iterator[Load]:
    with Load(cluster.nameserver, TOPIC, in_flight=in_flight, timeout_ms=30_000).running() as load:
        wait_for_more(load, 100)
        yield load


@pytest.mark.parametrize("seed", range(2))
def test_power_cuts_of_any_nodes_and_moves_of_the_lead_under_load_lose_nothing(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with PowerCutCluster(tmp_path, nodes=3, settings=SMALL_SEGMENTS) as cluster:
        with load_on(cluster, rng.choice((8, 64, 256))) as load:
            for _ in range(6):
                if rng.random() < 0.5:
                    transfer_lead(cluster)
                for name in rng.sample(sorted(cluster.nodes), rng.choice((1, 1, 2, 3))):
                    time.sleep(rng.uniform(0, 0.2))  # where in the run the power goes
                    cluster.kill(name)
                for name, process in cluster.nodes.items():
                    if not process.running:
                        time.sleep(rng.uniform(0, 0.3))
                        cluster.start(name)
                wait_for_more(load, 100)
        check_every_node(cluster, load.history)


@pytest.mark.parametrize("mode", ["async_timed", "async_notify"])
def test_killed_processes_lose_nothing_with_asynchronous_flushing(tmp_path: Path, mode: str) -> None:
    """The promise of these modes: a killed process loses nothing, all of them at once neither."""
    rng = random.Random(mode)
    with Cluster(tmp_path, nodes=3, settings={**SMALL_SEGMENTS, "flush": mode}) as cluster:
        with load_on(cluster) as load:
            for _ in range(4):
                for name in rng.sample(sorted(cluster.nodes), rng.choice((1, 2, 3))):
                    cluster.kill(name)
                    time.sleep(rng.uniform(0, 0.1))
                for name, process in cluster.nodes.items():
                    if not process.running:
                        cluster.start(name)
                wait_for_more(load, 100)
        check_every_node(cluster, load.history)


def test_a_deposed_leader_that_loses_power_while_its_tail_is_cut_comes_back_whole(tmp_path: Path) -> None:
    rng = random.Random(3)
    with PowerCutCluster(tmp_path, nodes=3, settings=SMALL_SEGMENTS) as cluster:
        with load_on(cluster, 256) as load:
            for _ in range(2):
                old = cluster.wait_leader()
                followers = cluster.others(old)
                for name in followers:
                    cluster.pause(name)
                wait_until(partial(_is_ahead_alone, cluster, old), f"{old} appends what no other node has")
                cluster.kill(old)
                for name in followers:
                    cluster.resume(name)
                cluster.wait_leader(other_than=old)
                wait_for_more(load, 100)
                for _ in range(3):
                    cluster.start(old)
                    time.sleep(rng.uniform(0.6, 1.4))  # it opens its log, hears the leader, cuts
                    cluster.kill(old)
                cluster.restart(old)
                wait_for_more(load, 100)
        check_every_node(cluster, load.history)


def test_a_leader_that_is_stopped_and_wakes_while_a_follower_is_dead_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(4)
    with Cluster(tmp_path, nodes=3, settings=SMALL_SEGMENTS) as cluster:
        with load_on(cluster) as load:
            for _ in range(3):
                leader = cluster.wait_leader()
                follower = cluster.others(leader)[0]
                cluster.pause(leader)
                cluster.kill(follower)
                time.sleep(rng.uniform(0.1, 1.0))  # it wakes before the other stands for election, or after
                cluster.resume(leader)
                wait_for_more(load, 1)
                cluster.restart(follower)
        check_every_node(cluster, load.history)


def test_power_cuts_while_checkpoints_are_written_and_segments_deleted_keep_the_nodes_equal(
    tmp_path: Path,
) -> None:
    rng = random.Random(5)
    with PowerCutCluster(tmp_path, nodes=3, settings=SMALL_SEGMENTS) as cluster:
        with load_on(cluster, 256) as load:
            for _ in range(4):
                wait_for_more(load, 3000)
                write_checkpoints(cluster)
                time.sleep(rng.uniform(0, 1.5))  # the other nodes write theirs within a second
                for name in rng.sample(sorted(cluster.nodes), rng.choice((1, 2, 3))):
                    cluster.kill(name)
                for name, process in cluster.nodes.items():
                    if not process.running:
                        cluster.start(name)
                wait_for_more(load, 100)
        check_every_node(cluster, load.history, cleaned=True)


def test_checkpoints_of_all_nodes_at_one_index_are_equal_after_a_random_history(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=SMALL_SEGMENTS) as cluster:
        with load_on(cluster) as load:
            with Consumer(cluster.nameserver, group="readers", topic=TOPIC) as consumer:
                for message in consumer.receive(32, timeout_ms=5000)[::2]:
                    message.ack()
            for _ in range(2):
                leader = cluster.kill_leader()
                wait_for_more(load, 2000)
                cluster.restart(leader)
        check_every_node(cluster, load.history)
        found = wait_until(lambda: _common_checkpoint(cluster), "a checkpoint of all nodes at one index")
    contents = {path.read_bytes() for path in found}
    assert len(contents) == 1, f"different contents: {found}"


def _common_checkpoint(cluster: Cluster) -> list[Path]:
    """Let all nodes write checkpoints; return those of the newest index that all have, or nothing."""
    write_checkpoints(cluster)
    folders = [cluster.folder / name / "checkpoint" for name in cluster.nodes]
    names = [{path.name for path in folder.glob("*") if path.name.isdigit()} for folder in folders]
    common = sorted(set.intersection(*names))
    return [folder / common[-1] for folder in folders] if common else []

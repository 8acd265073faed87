"""Real processes: a node whose entries retention deleted is reset to the leader's state and recovers (D8)."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from pathlib import Path

import grpc
import pytest

from ledgermq.client import Producer
from ledgermq.proto import admin_pb2, admin_pb2_grpc, log_pb2, log_pb2_grpc
from ledgermq.proto.route_pb2 import TopicInfo

from .cluster import Cluster, wait_until
from .history import Place, describe_topic, read_topic, run_client
from .replica_checks import dump_and_check

pytestmark = pytest.mark.long
TOPIC = "reset"
SETTINGS = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}
BODY = 24_000
HASTY = "tests.integration.hasty_node"


class Rig:
    """A cluster with a topic, and every place that was acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.random = random.Random(8)
        self.acknowledged: set[Place] = set()

    def send(self, count: int) -> None:
        """Send messages that do not compress, large enough to fill segments, and some small ones."""
        bodies = [self.random.randbytes(BODY if i % 3 else 40) for i in range(count)]
        nameserver = self.cluster.nameserver

        async def produce() -> list[Place]:
            async with Producer(nameserver) as producer:
                receipts = await asyncio.gather(*(producer.send(TOPIC, body) for body in bodies))
                return [(receipt.queue_id, receipt.queue_offset) for receipt in receipts]

        self.acknowledged.update(run_client(produce()))

    def follower(self) -> str:
        leader = self.cluster.wait_leader()
        return self.cluster.others(leader)[0]

    def clean(self) -> int:
        """Delete all but the last segment; return the first entry that is left at the leader."""
        leader = self.cluster.wait_leader()
        before = self.status(leader).first_index
        with grpc.insecure_channel(self.cluster.address(leader)) as channel:
            request = admin_pb2.CleanRequest(even_unexpired=True)
            answer = admin_pb2_grpc.AdminServiceStub(channel).Clean(request, timeout=20)
        assert answer.segments, answer.refusal.message
        wait_until(
            lambda: self.status(leader).first_index >= answer.log_start_index > before, "segments deleted"
        )
        return int(answer.log_start_index)

    def status(self, name: str) -> admin_pb2.GetStatusResponse:
        status = self.cluster.status(name)
        assert status is not None, self.cluster.nodes[name].log()
        return status

    def leave_behind(self, name: str, *, wipe: bool = False) -> None:
        """Stop a node, send, delete what it needs, send more."""
        assert self.cluster.terminate(name) == 0
        if wipe:
            shutil.rmtree(self.cluster.folder / name)
        self.send(120)
        self.clean()
        self.send(60)

    def check_views(self) -> dict[Place, bytes]:
        """Each node alone serves everything acknowledged that retention left, and all serve the same."""
        leader = self.cluster.wait_leader()
        info = describe_topic(self.cluster.address(leader), TOPIC)
        begins = self.begins(leader, info)
        wanted = {place for place in self.acknowledged if place[1] >= begins[place[0]]}
        views: dict[str, dict[Place, bytes]] = {}
        for name in self.cluster.nodes:
            self.cluster.wait_ready(name)

            def read(name: str = name) -> bool:
                views[name] = read_topic(self.cluster.address(name), info, begins)
                return wanted <= views[name].keys()

            wait_until(read, f"{name} serves all that is left")
        assert len(wanted) > 50
        assert len({tuple(sorted(view.items())) for view in views.values()}) == 1, (
            "they serve different messages"
        )
        return views[leader]

    def begins(self, name: str, info: TopicInfo) -> dict[int, int]:
        with grpc.insecure_channel(self.cluster.address(name)) as channel:
            stub = log_pb2_grpc.LogServiceStub(channel)
            answer = stub.QueryOffsets(log_pb2.QueryOffsetsRequest(topic=info.name), timeout=10)
        return {each.queue_id: each.begin_offset for each in answer.offsets}

    def lead(self, name: str) -> None:
        """Hand the lead to a node."""
        leader = self.cluster.wait_leader()
        with grpc.insecure_channel(self.cluster.address(leader)) as channel:
            request = admin_pb2.TransferLeadershipRequest(to_node=name)
            answer = admin_pb2_grpc.AdminServiceStub(channel).TransferLeadership(request, timeout=10)
        assert not answer.refusal.code, answer.refusal.message
        wait_until(lambda: self.status(name).role == "leader", f"{name} leads")

    def check_dumps(self, folder: Path) -> None:
        """`ledgermq dump` and `ledgermq check` find nothing wrong."""
        dump_and_check(self.cluster, folder)


def was_reset(cluster: Cluster, name: str) -> int:
    """How often a node installed a state."""
    return cluster.nodes[name].log(100_000).count("reset: installing the leader's state")


@pytest.mark.parametrize("wipe", [False, True], ids=["behind", "wiped"])
def test_a_node_without_the_entries_that_retention_deleted_comes_back_whole(
    tmp_path: Path, wipe: bool
) -> None:
    with Cluster(tmp_path / "cluster", nodes=3, settings=SETTINGS, module=HASTY) as cluster:
        rig = Rig(cluster)
        rig.send(90)
        victim = rig.follower()
        rig.leave_behind(victim, wipe=wipe)
        process = cluster.nodes[victim]
        if wipe:
            process.arguments.append("--rejoin")
        cluster.start(victim)
        wait_until(lambda: was_reset(cluster, victim) == 1, "the leader's state is installed")
        cluster.wait_ready(victim)
        leader = cluster.wait_leader()
        assert rig.status(victim).first_index == rig.status(leader).first_index
        wait_until(lambda: rig.status(victim).role == "follower", "a voter")
        rig.check_views()

        other = next(name for name in cluster.nodes if name not in (victim, leader))
        cluster.kill(other)
        rig.send(30)  # the leader and the node that was reset are the majority
        cluster.start(other)
        cluster.wait_ready(other)
        wait_until(
            lambda: all(node.state == "" for node in rig.status(leader).nodes), "no node catches up any more"
        )
        rig.lead(victim)
        rig.send(30)
        rig.check_views()
        cluster.kill(victim)
        if wipe:
            process.arguments.remove("--rejoin")
        cluster.start(victim)
        cluster.wait_ready(victim)
        rig.check_views()
        assert was_reset(cluster, victim) == 1, "it starts from its own checkpoint and log"
        rig.check_dumps(tmp_path / "dumps")


#: Points of death: while the state arrives, around the decision, during installation, while the log streams.
DEATHS = (
    "write reset/state 1",
    "rename reset/marker 1",
    "sync_directory /reset 3",
    "unlink commitlog/ 1",
    "rename checkpoint/rebuild 1",
    "write consumequeue/ 1",
    "write manifest 1",
    "unlink reset/marker 1",
    "unlink reset/state 1",
    "write commitlog/ 4",
    "unlink checkpoint/rebuild 1",
)


def is_before_the_decision(death: str) -> bool:
    """Tell whether the old log is still the node's, so that the next start fetches the state once more."""
    return death in ("write reset/state 1", "rename reset/marker 1")


def test_a_node_that_is_killed_anywhere_in_a_reset_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path / "cluster", nodes=3, settings=SETTINGS, module=HASTY) as cluster:
        rig = Rig(cluster)
        rig.send(90)
        victim = rig.follower()
        process = cluster.nodes[victim]
        for death in DEATHS:
            rig.leave_behind(victim)
            monkeypatch.setenv("LEDGERMQ_TEST_DIE_AT", death)
            process.arguments[1] = "tests.integration.dying_node"
            cluster.start(victim)
            wait_until(lambda: not process.running, f"{victim} dies at: {death}")
            assert process.popen is not None
            assert process.popen.returncode == -signal.SIGKILL, f"{death}\n{process.log()}"
            process.arguments[1] = HASTY
            resets = was_reset(cluster, victim)
            cluster.start(victim)
            if is_before_the_decision(death):
                wait_until(lambda: was_reset(cluster, victim) > resets, "the reset begins anew")  # noqa: B023
            rig.check_views()
        rig.lead(victim)
        rig.send(30)
        rig.check_views()
        rig.check_dumps(tmp_path / "dumps")

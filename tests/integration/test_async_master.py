"""async_master in real processes: the master alone stores, slaves serve reads, one is promoted (D24)."""

from __future__ import annotations

import asyncio
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from ledgermq.broker.admin.promotion import STATUS, refusal_by_others
from ledgermq.broker.cluster.forwarding import Forwarder
from ledgermq.client import Producer, PullConsumer
from ledgermq.client.errors import SendTimeoutError
from ledgermq.client.sync import Producer as SyncProducer
from ledgermq.proto import admin_pb2
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.raft.core.reign import Reign
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.folder.group_recovery import inspect, promote_folder, stopped_folder
from ledgermq.raft.types import NodeId

from .checks import check_every_node, leads
from .cluster import Cluster, wait_until
from .history import Load, describe_topic, read_topic, run_client
from .masters import cli, cluster_of, promote, send_officially, wait_level

TOPIC = "orders"


def send(cluster: Cluster, *bodies: bytes) -> None:
    with SyncProducer(cluster.nameserver, timeout_ms=20_000) as producer:
        for body in bodies:
            producer.send(TOPIC, body)


def knows_its_group(cluster: Cluster, name: str) -> bool:
    return "broker group id known" in cluster.nodes[name].log(1000)


def shows_both_slaves(cluster: Cluster) -> subprocess.CompletedProcess[str] | None:
    """Return what `ledgermq cluster status` says; None when one of n2 and n3 did not answer it in time."""
    shown = cli("cluster", "status", "--node", cluster.address("n2"))
    return shown if len(re.findall(r"^n[23] +slave", shown.stdout, re.MULTILINE)) == 2 else None


def test_while_the_master_is_away_slaves_are_read_and_nothing_is_stored(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        nameserver = cluster.nameserver
        await asyncio.to_thread(cluster.kill, "n1")
        async with PullConsumer(nameserver, group="readers") as consumer:
            await consumer.subscribe(TOPIC)
            bodies: set[bytes] = set()
            while len(bodies) < 40:
                messages = await consumer.poll(timeout_ms=10_000)
                assert messages, f"{len(bodies)} of 40 messages are shown"
                bodies |= {message.body for message in messages}
            source = consumer.sources["g0"]
            assert source.stale and source.node_id in ("n2", "n3")
        async with Producer(nameserver, timeout_ms=1500) as producer:
            with pytest.raises(SendTimeoutError, match=r"master n1 .* is away.*cluster promote NODE"):
                await producer.send(TOPIC, b"not taken")

    with cluster_of(tmp_path, "async_master") as cluster:
        send(cluster, *[b"%d" % i for i in range(40)])
        wait_level(cluster, "n1")
        run_client(scenario(cluster))
        status = send_officially(cluster.address("n2", "messaging"), TOPIC, b"nor this", timeout=2)
        assert status.code == v2.HA_NOT_AVAILABLE
        assert "cluster promote NODE" in status.message
        shown = wait_until(partial(shows_both_slaves, cluster), "both slaves have answered in time", 60)
        assert shown.returncode == 2
        assert "master n1 (away)" in shown.stdout and "cluster promote NODE" in shown.stdout

        cluster.restart("n1")  # goes on by itself
        send(cluster, b"back")
        wait_level(cluster, "n1")
        assert set(read_topic(cluster.address("n3"), TOPIC).values()) == {
            *[b"%d" % i for i in range(40)],
            b"back",
        }
        shown = cli("cluster", "status", "--node", cluster.address("n2"))
        assert shown.returncode == 0, shown.stdout
        assert re.search(r"^n1 +master ", shown.stdout, re.MULTILINE)


def test_a_node_that_is_to_be_promoted_is_told_by_the_others_that_the_master_lives(tmp_path: Path) -> None:
    """It asks them over the Raft port. A node that is cut off from the master alone must not lead."""

    async def scenario(cluster: Cluster) -> None:
        forwarder = Forwarder(
            "n2",
            {"n1": cluster.address("n1", "raft"), "n3": cluster.address("n3", "raft")},
            lambda answer: None,
        )
        try:
            answers = [
                admin_pb2.GetStatusResponse.FromString(await forwarder.unary(name, STATUS, b"", (), 10.0))
                for name in ("n1", "n3")
            ]
        finally:
            await forwarder.close()
        assert [(each.node_id, each.leader_id) for each in answers] == [("n1", "n1"), ("n3", "n1")]
        refusal = refusal_by_others("n2", Reign(master=NodeId("n1")), answers[1:])
        assert refusal is not None and "n1 is alive: n3 hears it, though n2 does not" in str(refusal)
        assert all(each.HasField("last_term") and each.last_term for each in answers)

    with cluster_of(tmp_path, "async_master") as cluster:
        send(cluster, b"one")
        wait_level(cluster, "n1")
        asyncio.run(scenario(cluster))


def test_a_promoted_slave_goes_on_and_the_former_master_is_fenced(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "async_master") as cluster:
        send(cluster, b"everywhere")
        wait_until(partial(knows_its_group, cluster, "n2"), "n2 belongs to the group")
        wait_level(cluster, "n1")
        for name in ("n2", "n3"):
            cluster.kill(name)
        only_here = [b"only-at-n1-%d" % i for i in range(5)]
        for body in only_here:  # confirmed: async_master promises the master's disk
            assert send_officially(cluster.address("n1", "messaging"), TOPIC, body).code == v2.OK
        cluster.kill("n1")
        for name in ("n2", "n3"):
            cluster.start(name)
            wait_until(partial(cluster.status, name), f"{name} answers")

        done = promote(cluster, "n2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "does not answer, so how much that is is not known" in done.stdout
        assert "n2 is the master of broker group g0: generation 1" in done.stdout
        send(cluster, b"after")

        cluster.start("n1")
        wait_until(
            lambda: (status := cluster.status("n1")) is not None and status.generation == 1, "n1 is fenced"
        )
        wait_level(cluster, "n2")
        assert "may lead node=n1" not in cluster.nodes["n1"].log(10_000).split("left behind")[1]
        send(cluster, b"with all")
        wait_level(cluster, "n2")
        info = describe_topic(cluster.address("n2"), TOPIC)
        for name in cluster.nodes:
            assert set(read_topic(cluster.address(name), info).values()) == {
                b"everywhere",
                b"after",
                b"with all",
            }

        [kept] = (tmp_path / "n1").glob("quarantine-*")
        out = tmp_path / "kept"
        dumped = cli("dump", "--data", str(kept), str(out))
        assert dumped.returncode == 0, dumped.stdout + dumped.stderr
        stored = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
        assert all(body in stored for body in only_here)

        again = promote(cluster, "n2")
        assert again.returncode == 1 and "is the master already" in again.stderr
        refused = promote(cluster, "n3")
        assert refused.returncode == 1 and "n2 is alive: n3 hears it" in refused.stderr


def test_of_two_nodes_that_were_promoted_beside_each_other_a_person_chooses_one(tmp_path: Path) -> None:
    """What becomes of their messages: tests/raft/folder/test_rival_masters.py."""
    with cluster_of(tmp_path, "async_master") as cluster:
        for name in ("n2", "n3"):
            wait_until(partial(knows_its_group, cluster, name), f"{name} has a group")
        for name in cluster.nodes:
            cluster.kill(name)
        for name in ("n2", "n3"):
            with stopped_folder(tmp_path / name, RealFileSystem()) as folder:
                promote_folder(folder, inspect(folder))
            cluster.start(name)
        wait_until(lambda: "n3 does not lead" in cluster.nodes["n3"].log(1000), "n3 hears n2")
        done = promote(cluster, "n3", "--instead-of", "n2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "n2 is given up" in done.stdout and "generation 2" in done.stdout
        wait_until(
            lambda: (status := cluster.status("n2")) is not None and status.leader_id == "n3",
            "n2 follows n3",
        )
        assert list((tmp_path / "n2").glob("quarantine-*"))


def test_a_master_that_was_cut_off_is_fenced_while_it_runs(tmp_path: Path) -> None:
    """It is stopped (SIGSTOP) with connections that it believes in, and wakes up beside its successor."""
    with cluster_of(tmp_path, "async_master") as cluster:
        with Load(cluster.nameserver, TOPIC, in_flight=8, timeout_ms=60_000).running() as load:
            wait_until(lambda: load.count > 500, "messages")
            wait_until(
                lambda: "broker group id known" in cluster.nodes["n3"].log(1000), "n3 belongs to the group"
            )
            cluster.pause("n1")
            wait_until(
                lambda: all(
                    (status := cluster.status(name)) is not None and not status.leader_id
                    for name in ("n2", "n3")
                ),
                "the slaves have no master",
            )
            done = promote(cluster, "n3")
            assert done.returncode == 0, done.stdout + done.stderr
            seen = load.count
            wait_until(lambda: load.count > seen + 200, "sends go on at the new master")
            cluster.resume("n1")
            wait_until(
                lambda: (status := cluster.status("n1")) is not None and status.generation == 1,
                "n1 is fenced",
            )
            assert not leads(cluster, "n1")
        wait_level(cluster, "n3")
        tail = b"".join(
            path.read_bytes()
            for kept in (tmp_path / "n1").glob("quarantine-*")
            for path in sorted((kept / "commitlog").iterdir())
        )
        stored = set(read_topic(cluster.address("n3"), TOPIC).values())
        for body in load.history.acknowledged:  # what the mode does not promise is at least kept
            assert body in stored or body in tail
        for name in cluster.nodes:
            assert set(read_topic(cluster.address(name), TOPIC).values()) == stored


def test_a_planned_change_of_the_master_loses_nothing(tmp_path: Path) -> None:
    with cluster_of(tmp_path, "async_master", 2) as cluster:
        with Load(cluster.nameserver, TOPIC, in_flight=8, timeout_ms=60_000).running() as load:
            wait_until(lambda: load.count > 300, "messages")
            load.ask_to_stop()
        wait_level(cluster, "n1")
        assert cluster.terminate("n1") == 0
        done = promote(cluster, "n2")
        assert done.returncode == 0, done.stdout + done.stderr
        cluster.restart("n1")
        load.history.unknown[b"after"] = "sent after the promotion"
        send(cluster, b"after")
        check_every_node(cluster, TOPIC, load.history)


def test_slaves_find_their_master_through_a_nameserver(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, "async_master")
    for name in ("n2", "n3"):
        arguments = cluster.nodes[name].arguments
        place = arguments.index("--master")
        del arguments[place : place + 2]
    with cluster:
        send(cluster, b"found")
        wait_level(cluster, "n1")
        assert "master found node=n2 master=n1" in cluster.nodes["n2"].log(1000)

"""The drill "a topic was deleted by mistake": dump, delete, restore to before the deletion, read it all.

Real processes and the command as an operator types it. In the second part retention has deleted the beginning
of the log, so the dump's state stands for it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq.broker import restore
from ledgermq.client.sync import Admin, Producer
from tests.spark_jobs.local_scan import faults

from .checks import check_every_node
from .cluster import Cluster, wait_until
from .history import History, read_topic

CLI = [sys.executable, "-m", "ledgermq.client.cli"]
SETTINGS = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}
BODY = random.Random(1).randbytes(64 << 10)  # so that no compression makes the log short


def cli(*arguments: object, code: int = 0) -> str:
    """Run one command; return what it said."""
    done = subprocess.run(
        [*CLI, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def send(cluster: Cluster, topic: str, bodies: list[bytes]) -> dict[bytes, tuple[int, int]]:
    """Send messages; return where each stands."""
    with Producer(cluster.nameserver) as producer:
        receipts = [producer.send(topic, body, keys=[str(n)]) for n, body in enumerate(bodies)]
    return {body: (each.queue_id, each.queue_offset) for body, each in zip(bodies, receipts, strict=True)}


def dump(cluster: Cluster, folder: Path, *options: str) -> None:
    cli("dump", folder, "--nameserver", cluster.nameserver, *options)


def progress_of(cluster: Cluster) -> list[tuple[int, int, int, int]]:
    """(queue id, begin, committed, end) of the consumer group "billing" in topic t."""
    with Admin(cluster.nameserver) as admin:
        _, queues = admin.describe_group("billing")
    return [(q.queue_id, q.begin_offset, q.committed_offset, q.end_offset) for _, q in queues]


@pytest.mark.long
def test_a_deleted_topic_is_back_in_a_group_that_was_restored_to_before_its_deletion(tmp_path: Path) -> None:
    with Cluster(tmp_path / "first", settings=SETTINGS) as cluster:
        cluster.wait_leader()
        where = send(cluster, "orders", [b"order %d" % n for n in range(100)])
        with Admin(cluster.nameserver) as admin:
            admin.delete_topic("orders")
        send(cluster, "later", [b"after the mistake"])
        dump(cluster, tmp_path / "dumps")
        leader = (
            cluster.kill_leader()
        )  # one copy more, of a stopped node: the tail behind its commit hint counts, too
        cli("dump", tmp_path / "offline", "--data", tmp_path / "first" / leader)

    shown = cli("restore", tmp_path / "dumps", tmp_path / "offline", "--show")
    deleted = re.search(r"entry +([\d,]+) .*topic orders was deleted", shown)
    assert deleted is not None, shown
    index = int(deleted[1].replace(",", "")) - 1
    assert f"before topic orders was deleted: --to-index {index}" in shown, (
        "not before the later topic was created"
    )
    cli(
        "restore", tmp_path / "dumps", tmp_path / "offline", "--data", tmp_path / "again", "--to-index", index
    )
    with Cluster(tmp_path / "again", settings=SETTINGS) as restored:
        restored.wait_leader()
        with Admin(restored.nameserver) as admin:
            assert "later" not in {topic.name for topic in admin.topics()}
        where |= send(restored, "orders", [b"goes on"])
        check_every_node(restored, "orders", History(acknowledged=dict(where)))
        dump(restored, tmp_path / "checked")
    for name in restored.nodes:
        assert faults(tmp_path / "checked" / name) == [], "the checks of ledgermq check, without Spark"


@pytest.mark.long
def test_a_log_whose_beginning_was_deleted_is_restored_from_the_state_in_the_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(tmp_path / "first", nodes=1, settings=SETTINGS) as cluster:
        cluster.wait_leader()
        send(cluster, "t", [b"%d" % n + BODY for n in range(40)])
        with Admin(cluster.nameserver) as admin:
            admin.create_group("billing")
            admin.reset_offsets("billing", "t", "latest")
        cli("admin", "clean", "--even-unexpired", "--yes", "--nameserver", cluster.nameserver)
        leader = cluster.wait_leader()
        segments = tmp_path / "first" / leader / "commitlog"
        wait_until(lambda: not (segments / f"{0:020d}").exists(), "the first segment is deleted")
        send(cluster, "t", [b"behind", b"the state"])
        dump(cluster, tmp_path / "dumps")
        progress = progress_of(cluster)
        begins = {queue: begin for queue, begin, *_ in progress}
        stored = read_topic(cluster.address(leader), "t", begins)
    without = tmp_path / "without"
    shutil.copytree(tmp_path / "dumps", without)
    for manifest in without.glob("*/manifest.json"):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"state": None}))
    assert restore.main([str(without), "--data", str(tmp_path / "no")]) == 1
    assert "message export" in capsys.readouterr().err

    assert restore.main([str(tmp_path / "dumps"), "--data", str(tmp_path / "again")]) == 0
    with Cluster(tmp_path / "again", nodes=1, settings=SETTINGS) as restored:
        restored.wait_leader()
        assert read_topic(restored.address("n1"), "t", begins) == stored and stored
        assert progress_of(restored) == progress
        send(restored, "t", [b"goes on"])
        dump(restored, tmp_path / "checked")
    assert faults(tmp_path / "checked" / "n1") == [], "the checks of ledgermq check, without Spark"

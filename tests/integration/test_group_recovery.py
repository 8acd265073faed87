"""Two of three nodes are lost for ever: the third's folder and copies of it become the broker group again.

Real processes, and the command as an operator types it. Everything that the survivor had is on every node; a
lost node that comes back with its old folder is refused with an explanation; the Spark check agrees.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq.client.sync import Producer
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.identity import read_identity

from .checks import check_every_node
from .cluster import Cluster, wait_until
from .history import Load, Place, read_topic
from .replica_checks import dump_and_check

TOPIC = "survives"
CLI = [sys.executable, "-m", "ledgermq.client.cli"]
SETTINGS = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}


def recover(data: Path, *flags: str) -> tuple[int, str]:
    """Run `ledgermq cluster recover` without a terminal; return the exit code and what it said."""
    done = subprocess.run(
        [*CLI, "cluster", "recover", "--data", str(data), *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def recover_at_a_terminal(data: Path, answer: str) -> tuple[int, str]:
    """Run it at a terminal and type `answer` at the question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*CLI, "cluster", "recover", "--data", str(data)], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said, typed = b"", False
    while True:
        if not select.select([ours], [], [], 60)[0]:
            process.kill()
            break
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed: it ended
            break
        if not piece:
            break
        said += piece
        if b"Type the broker group's name" in said and not typed:
            os.write(ours, answer.encode() + b"\n")
            typed = True
    os.close(ours)
    return process.wait(), said.decode()


def snapshot(data: Path) -> dict[str, bytes]:
    """Everything in a folder but the lock, whose holder's number may change."""
    paths = [path for path in sorted(data.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(data)): path.read_bytes() for path in paths}


def fill(cluster: Cluster) -> tuple[str, Load]:
    """Send under load while the last node alone is killed, then lose the other two; return the survivor."""
    leader = cluster.wait_leader()
    survivor = cluster.others(leader)[0]
    with Load(cluster.nameserver, TOPIC, in_flight=16).running() as load:
        wait_until(lambda: load.count > 3000, "messages of more than one segment")
        cluster.kill(survivor)
        wait_until(lambda: load.count > 3300, "messages that the survivor never gets")
    for name in cluster.nodes:
        if name != survivor:
            cluster.kill(name)
    return survivor, load


@pytest.mark.long
def test_a_group_that_lost_two_of_three_nodes_goes_on_from_the_third(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=SETTINGS) as cluster:
        survivor, load = fill(cluster)
        lost = cluster.others(survivor)
        for name in lost:
            (tmp_path / name).rename(tmp_path / f"{name}-old")
        data, group = tmp_path / survivor, "g0"

        _check_that_nothing_happens_unasked(data, survivor)
        shown = json.loads(recover(data, "--show", "--json")[1])
        assert (shown["node"], shown["broker_group"], shown["warning"]) == (survivor, group, "")
        shutil.copytree(data, tmp_path / "trial")
        told = json.loads(recover(tmp_path / "trial", "--yes-lose-data", group, "--json")[1])
        assert (told["last_index"], told["to_clone"]) == (shown["last_index"], sorted(lost))
        assert told["new_group_id"] != told["group_id"] == shown["group_id"]
        code, text = recover_at_a_terminal(data, group)
        assert code == 0, text
        assert "Lost for ever" in text
        for name in lost:
            shutil.copytree(data, tmp_path / name)
            code, text = recover(tmp_path / name, "--clone-for", name, "--json")
            assert code == 0, text
            told = json.loads(text)
            assert (told["cloned_for"], told["last_index"]) == (name, shown["last_index"])
            assert told["recovered_from_group_id"] == shown["group_id"]
        cluster.start_all()

        stored = read_topic(cluster.address(survivor), TOPIC)
        assert len(stored) > 2900
        known = load.history.acknowledged
        assert {body for place, body in stored.items()} <= set(known) | set(load.history.unknown)
        missing = [place for body, place in known.items() if stored.get(place) != body]
        assert missing, "nothing was lost, so no majority was"
        _check_prefix(stored, known)
        load.history.acknowledged = {body: place for body, place in known.items() if place in stored}
        load.history.unknown |= {
            body: "lost or not" for body in known if body not in load.history.acknowledged
        }
        check_every_node(cluster, TOPIC, load.history)

        with Producer(cluster.nameserver) as producer:
            receipt = producer.send(TOPIC, b"afterwards")
        load.history.acknowledged[b"afterwards"] = (receipt.queue_id, receipt.queue_offset)
        check_every_node(cluster, TOPIC, load.history)
        _check_old_folder_is_refused(cluster, lost[0])
        _check_rejoin(cluster, lost[0], load)
        _check_dumps(cluster, tmp_path)


def _check_that_nothing_happens_unasked(data: Path, survivor: str) -> None:
    """Looking, no terminal, and wrong names change nothing."""
    before = snapshot(data)
    code, text = recover(data, "--show")
    assert code == 0, text
    for words in (
        f"{survivor} of broker group g0",
        "last entry",
        "ago)",
        "committed",
        "highest",
        "all verified",
    ):
        assert words in text
    code, text = recover(data)
    assert code == 1
    assert "there is no terminal" in text
    code, text = recover(data, "--yes-lose-data", "g1")
    assert code == 1
    assert '"g1" is not the name of this broker group, which is g0; nothing was changed' in text
    code, text = recover_at_a_terminal(data, "yes")
    assert code == 1
    assert '"yes" is not the name' in text
    assert snapshot(data) == before


def _check_prefix(stored: dict[Place, bytes], known: dict[bytes, Place]) -> None:
    """What is missing was behind everything that is there, queue by queue."""
    ends = dict(sorted(stored))
    for body, (queue, offset) in known.items():
        if offset <= ends.get(queue, -1):
            assert stored[queue, offset] == body


def _check_old_folder_is_refused(cluster: Cluster, name: str) -> None:
    """A lost node comes back as it was: it is refused, says so, and the others go on."""
    cluster.terminate(name)
    data = cluster.folder / name
    data.rename(cluster.folder / f"{name}-clone")
    (cluster.folder / f"{name}-old").rename(data)
    cluster.nodes[name].log_path.write_bytes(b"")
    cluster.start(name)
    words = f"broker group g0 was recovered without the data folder of {name}"
    wait_until(lambda: words in cluster.nodes[name].log(1000), "the old folder is refused")
    others = [other for other in cluster.nodes if other != name]
    wait_until(lambda: all(words in cluster.nodes[n].log(1000) for n in others), "the others say so, too")
    with Producer(cluster.nameserver) as producer:
        producer.send(TOPIC, b"with two of three")
    cluster.kill(name)


def _check_rejoin(cluster: Cluster, name: str, load: Load) -> None:
    """The way back that the refusal names."""
    load.history.unknown[b"with two of three"] = "sent while the old folder was there"
    process = cluster.nodes[name]
    process.arguments.append("--rejoin")
    cluster.start(name)
    cluster.wait_ready(name)

    def votes() -> bool:
        status = cluster.status(cluster.wait_leader())
        return status is not None and all(p.role != "learner" for p in status.nodes)

    wait_until(votes, f"{name} votes again")
    process.arguments.remove("--rejoin")
    identity = read_identity(RealFileSystem(), cluster.folder / name / "identity", name)
    assert identity.recovery is None
    check_every_node(cluster, TOPIC, load.history)


def _check_dumps(cluster: Cluster, folder: Path) -> None:
    """Spark finds all three logs equal."""
    assert json.loads(dump_and_check(cluster, folder / "dumps", "--json").stdout)

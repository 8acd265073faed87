"""Logs of real nodes are damaged: each node repairs its own with the same bytes from the others.

One cluster for the module. The files, `ledgermq dump` and `ledgermq check` tell whether a log is whole.
"""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledgermq.proto import admin_pb2

from .cluster import Cluster, wait_until
from .history import Place, read_topic
from .replica_checks import dump_and_check
from .test_damage_at_rest import SEGMENT, SETTINGS, TOPIC, _fill, _last_log_byte, _segments, flip

pytestmark = pytest.mark.long
OFTEN = {"scrub-bytes-per-second": "256MiB", "scrub-interval-hours": "0.0003"}


@dataclass
class Repaired:
    """The cluster, a follower of it, and what its topic holds."""

    cluster: Cluster
    victim: str
    stored: dict[Place, bytes]

    @property
    def data(self) -> Path:
        return self.cluster.folder / self.victim

    def others(self) -> list[str]:
        return self.cluster.others(self.victim)

    def said(self) -> str:
        return self.cluster.nodes[self.victim].log(2000)

    def forget_what_was_said(self) -> None:
        self.cluster.nodes[self.victim].log_path.write_bytes(b"")

    def stop(self) -> None:
        assert self.cluster.terminate(self.victim) == 0
        self.forget_what_was_said()

    def read_at_start(self) -> None:
        """Remove the entry index, so that the start finds damage, not the first reader or the scrubber."""
        for path in (self.data / "entryindex").iterdir():
            path.unlink()

    def check(self, dump_to: Path | None = None) -> None:
        """Check that all nodes serve the same and have equal bytes; with `dump_to`, also dump and check."""

        for name in self.cluster.nodes:
            self.cluster.wait_ready(name)
            wait_until(
                functools.partial(self._serves_everything, name),
                f"{name} serves everything",
            )
        wait_until(self._has_equal_files, "the files are equal")
        if dump_to is not None:
            dump_and_check(self.cluster, dump_to)

    def _serves_everything(self, name: str) -> bool:
        return read_topic(self.cluster.address(name), TOPIC) == self.stored

    def _has_equal_files(self) -> bool:
        mine, *others = ([path.read_bytes() for path in _segments(self.cluster.folder / name)]
                         for name in (self.victim, *self.others()))  # fmt: skip
        logs = [b"".join(raw[:SEGMENT] for raw in each).rstrip(b"\0") for each in (mine, *others)]
        return len(set(logs)) == 1


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repaired]:
    folder = tmp_path_factory.mktemp("repair")
    with Cluster(folder, nodes=3, settings=SETTINGS | OFTEN) as cluster:
        asyncio.run(_fill(cluster.nameserver))
        leader = cluster.wait_leader()
        victim = cluster.others(leader)[0]
        yield Repaired(cluster, victim, read_topic(cluster.address(leader), TOPIC))


def flip_sealed(data: Path) -> None:
    flip(_segments(data)[0], 300_000)


def flip_open(data: Path) -> None:
    path = _segments(data)[-1]
    flip(path, _last_log_byte(path) // 2)


def flip_tail(data: Path) -> None:
    path = _segments(data)[-1]
    flip(path, _last_log_byte(path) - 20)


def zero_segment(data: Path) -> None:
    path = _segments(data)[1]
    path.write_bytes(bytes(path.stat().st_size))


def lose_segment(data: Path) -> None:
    _segments(data)[1].unlink()


@pytest.mark.parametrize("damage", [flip_sealed, flip_open, flip_tail, zero_segment, lose_segment])
def test_a_stopped_node_whose_log_is_damaged_starts_whole(
    repaired: Repaired, damage: Callable[[Path], None]
) -> None:
    repaired.stop()
    damage(repaired.data)
    repaired.read_at_start()
    repaired.cluster.restart(repaired.victim)
    assert re.search(rf"log damaged node={repaired.victim} path=\S+ position=\d+", repaired.said())
    assert "log repaired" in repaired.said()
    repaired.check()


def log_check(repaired: Repaired, name: str) -> admin_pb2.LogCheck:
    status = repaired.cluster.status(name)
    assert status is not None
    return next(node.log_check for node in status.nodes if node.node_id == name)


def has_repaired_more_than(repaired: Repaired, name: str, count: int) -> bool:
    return log_check(repaired, name).repaired > count


def test_the_scrubber_of_a_running_node_finds_damage_and_repairs_it(repaired: Repaired) -> None:
    leader = repaired.cluster.wait_leader()
    for name in (repaired.victim, leader):
        found = log_check(repaired, name).found
        path = _segments(repaired.cluster.folder / name)[1]
        with path.open("r+b") as file:  # in place: the node has the file open
            file.seek(200_000)
            old = file.read(3)
            file.seek(200_000)
            file.write(bytes(byte ^ 1 for byte in old))
        wait_until(
            functools.partial(has_repaired_more_than, repaired, name, found),
            f"the scrubber of {name} repairs it",
        )
        assert "bytes repaired" in log_check(repaired, name).last
        status, text = repaired.cluster.http(name, "/metrics")
        assert status == 200
        assert re.search(r'^ledgermq_raft_damaged_ranges_total\{found_by="scrub"\} [1-9]', text, re.MULTILINE)
        assert re.search(r"^ledgermq_raft_repaired_ranges_total [1-9]", text, re.MULTILINE)
        assert re.search(r"^ledgermq_raft_scrubbed_bytes_total [1-9]", text, re.MULTILINE)
    shown = subprocess.run(
        [
            str(Path(sys.executable).with_name("ledgermq")), "cluster", "status", "--nameserver",
            repaired.cluster.nameserver,
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert f"{leader}: damage found in its log" in " ".join(shown.stdout.split()), shown.stdout
    repaired.check()


def test_a_damaged_queue_file_of_a_running_node_is_rebuilt(repaired: Repaired) -> None:
    path = next((repaired.data / "consumequeue").glob(f"{TOPIC}@*/1/*"))
    repaired.stop()  # its units are in the file then
    repaired.cluster.restart(repaired.victim)
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(300)
        file.write(bytes(byte ^ 1 for byte in before[300:340]))
    wait_until(lambda: path.read_bytes()[: len(before)] == before, "it is made again from the log")
    wait_until(lambda: "queue file rebuilt" in repaired.said(), "it says so")
    repaired.check()


def test_without_the_others_a_damaged_node_waits_and_says_so_and_they_make_it_whole(
    repaired: Repaired,
) -> None:
    cluster, victim = repaired.cluster, repaired.victim
    for name in cluster.nodes:
        assert cluster.terminate(name) == 0
    repaired.forget_what_was_said()
    flip_tail(repaired.data)
    damaged = _segments(repaired.data)[-1].read_bytes()
    for _ in range(2):  # it can be stopped while it waits, and says the same when it starts again
        cluster.start(victim)
        wait_until(lambda: f"{victim} does not start yet" in repaired.said(), "it says what it waits for")
        assert re.search(r"nothing was cut off. It waits for a member that has entry \d+", repaired.said())
        assert "ledgermq broker --rejoin" in repaired.said()
        assert _segments(repaired.data)[-1].read_bytes() == damaged
        status, text = cluster.http(victim, "/livez")
        assert status == 200 and "repairing" in text and "waits for a member" in text, (
            "it is not killed for that"
        )
        assert cluster.http(victim, "/startupz")[0] == 503
        assert cluster.terminate(victim) == 0
        repaired.forget_what_was_said()
    cluster.start(victim)
    wait_until(lambda: f"{victim} does not start yet" in repaired.said(), "it waits")
    for name in repaired.others():
        cluster.start(name)
    cluster.wait_ready(victim)
    repaired.check()


def test_kill_in_the_middle_of_a_repair_and_the_next_start_ends_it(
    repaired: Repaired, tmp_path: Path
) -> None:
    cluster, victim = repaired.cluster, repaired.victim
    repaired.stop()
    for path in _segments(repaired.data)[:-1]:
        path.write_bytes(bytes(path.stat().st_size))
    flip_tail(repaired.data)
    repaired.read_at_start()
    killed = 0
    for _ in range(10):
        cluster.start(victim)
        wait_until(
            lambda: (repaired.data / "repair").exists() or cluster.http(victim, "/readyz")[0] == 200,
            "it repairs, or has done so",
        )
        if not (repaired.data / "repair").exists():
            break
        cluster.kill(victim)
        killed += 1
    assert killed
    if not cluster.nodes[victim].running:
        cluster.start(victim)
    repaired.check(tmp_path / "dumps")

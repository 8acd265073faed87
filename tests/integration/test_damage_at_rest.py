"""A byte changes in the data folder of a stopped node: the node recovers, or refuses and gives the remedy.

It never serves wrong data. Scrubbing is off, so damage stays until a read finds it (test_repair.py covers the
rest). One cluster serves the module; the folder of one follower is saved, and each case starts from the copy.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledgermq.client import Producer
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.sync import Consumer
from ledgermq.proto.entry import HEADER_SIZE, decode_header
from ledgermq.proto.route_pb2 import TopicInfo
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.identity import read_identity

from .cluster import Cluster, wait_until
from .history import Place, describe_topic, read_topic
from .replica_checks import dump_and_check

pytestmark = pytest.mark.long
TOPIC = "rest"
SEGMENT = 1 << 20
REJOIN = "ledgermq broker --rejoin"
SETTINGS = {"segment-size": "1MiB", "max-message-bytes": "128KiB"}


@dataclass
class Damaged:
    """The cluster, the follower that is damaged, and its saved folders: stopped in order, and killed."""

    cluster: Cluster
    victim: str
    saved: dict[str, Path]
    info: TopicInfo
    stored: dict[Place, bytes]

    @property
    def data(self) -> Path:
        return self.cluster.folder / self.victim

    def restore(self, kind: str) -> None:
        if self.cluster.nodes[self.victim].running:
            self.cluster.kill(self.victim)
        shutil.rmtree(self.data)
        shutil.copytree(self.saved[kind], self.data)
        self.cluster.nodes[self.victim].log_path.write_bytes(b"")

    def start(self) -> bool:
        """Start the victim; return whether it became ready, and not ended instead."""
        process = self.cluster.nodes[self.victim]
        process.start()
        wait_until(
            lambda: not process.running or self.cluster.http(self.victim, "/readyz")[0] == 200,
            f"{self.victim} is ready or has ended",
        )
        return process.running

    def said(self) -> str:
        return self.cluster.nodes[self.victim].log(1000)


def flip(path: Path, position: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


async def _fill(nameserver: str) -> None:
    async with Producer(nameserver) as producer:
        for first in range(0, 2400, 100):
            bodies = [f"{number}-".encode().ljust(1000, b".") for number in range(first, first + 100)]
            await asyncio.gather(*(producer.send(TOPIC, body) for body in bodies))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    folder = tmp_path_factory.mktemp("rest")
    with Cluster(folder, nodes=3, settings=SETTINGS | {"scrub-bytes-per-second": "0"}) as cluster:
        asyncio.run(_fill(cluster.nameserver))
        leader = cluster.wait_leader()
        victim = cluster.others(leader)[0]
        stored = read_topic(cluster.address(leader), TOPIC)
        # A node that has just started does not know its broker group's id yet, so it could ask no other node.
        record = folder / victim / "identity"
        wait_until(
            lambda: read_identity(RealFileSystem(), record, victim).group_id != 0, "the group has its id"
        )
        # Without its key index a node also reads whole segments at its start, and finds what a test damages.
        runs = [folder / victim / "keyindex" / path.name for path in _segments(folder / victim)[:-1]]
        wait_until(lambda: all(run.exists() for run in runs), f"{victim} has the key index of whole segments")
        saved = {"stopped": folder / "stopped", "killed": folder / "killed"}
        assert cluster.terminate(victim) == 0
        shutil.copytree(folder / victim, saved["stopped"])
        cluster.restart(victim)
        cluster.kill(victim)
        shutil.copytree(folder / victim, saved["killed"])
        yield Damaged(cluster, victim, saved, describe_topic(cluster.address(leader), TOPIC), stored)


def _segments(data: Path) -> list[Path]:
    found = sorted((data / "commitlog").iterdir())
    return [path for path in found if path.read_bytes()[:SEGMENT].strip(b"\0")]


def _last_log_byte(path: Path) -> int:
    return len(path.read_bytes()[:SEGMENT].rstrip(b"\0")) - 1


@pytest.mark.parametrize(("kind", "block"), [("stopped", 0), ("stopped", 1), ("killed", 2), ("killed", 3)])
def test_a_damaged_copy_of_term_and_vote_is_not_needed(damaged: Damaged, kind: str, block: int) -> None:
    damaged.restore(kind)
    flip(damaged.data / "hardstate", block * 4096 + 30)
    assert damaged.start(), damaged.said()
    assert read_topic(damaged.cluster.address(damaged.victim), damaged.info) == damaged.stored


@pytest.mark.parametrize("name", ["identity", "manifest"])
def test_a_record_of_who_the_node_is_stands_twice_and_damaged_in_both_copies_it_refuses_to_start(
    damaged: Damaged, name: str
) -> None:
    damaged.restore("killed")
    whole = (damaged.data / name).read_bytes()
    flip(damaged.data / name, 60)
    assert damaged.start(), damaged.said()
    assert (damaged.data / name).read_bytes() == whole, "it stands twice, and does again"
    damaged.restore("killed")
    for position in (60, 4096 + 70):
        flip(damaged.data / name, position)
    before = (damaged.data / name).read_bytes()
    assert not damaged.start()
    assert re.search(rf"will not start: .*/{name} is damaged.*{REJOIN}; nothing was changed", damaged.said())
    assert (damaged.data / name).read_bytes() == before


@pytest.mark.parametrize("what", ["index", "mark", "newest checkpoint"])
def test_what_can_be_rebuilt_or_is_there_twice_is_not_missed(damaged: Damaged, what: str) -> None:
    damaged.restore("stopped")
    if what == "index":
        for path in (damaged.data / "entryindex").iterdir():
            flip(path, 200)
    elif what == "mark":
        for path in _segments(damaged.data):
            flip(path, SEGMENT + 20)
    else:
        checkpoints = sorted(path for path in (damaged.data / "checkpoint").iterdir() if path.name.isdigit())
        older = checkpoints[-1].with_name(f"{int(checkpoints[-1].name) + 1:020d}")
        shutil.copy(checkpoints[-1], older)
        flip(older, 100)
    assert damaged.start(), damaged.said()
    assert read_topic(damaged.cluster.address(damaged.victim), damaged.info) == damaged.stored


@pytest.mark.parametrize("kind", ["stopped", "killed"])
def test_a_log_that_ends_in_damage_is_never_cut(damaged: Damaged, kind: str) -> None:
    damaged.restore(kind)
    path = _segments(damaged.data)[-1]
    before = path.read_bytes()
    flip(path, _last_log_byte(path) - 20)
    assert damaged.start(), damaged.said()
    assert re.search(rf"log damaged node={damaged.victim} path=.*{path.name} position=\d+", damaged.said())
    assert "log repaired" in damaged.said() and "torn tail" not in damaged.said()
    assert path.read_bytes()[: _last_log_byte(path) + 1].startswith(before[:SEGMENT].rstrip(b"\0"))
    assert read_topic(damaged.cluster.address(damaged.victim), damaged.info) == damaged.stored


def test_without_a_usable_checkpoint_a_whole_log_makes_the_state_again(damaged: Damaged) -> None:
    damaged.restore("stopped")
    for path in (damaged.data / "checkpoint").iterdir():
        flip(path, 100)
    assert damaged.start(), damaged.said()
    assert "checkpoint set aside" in damaged.said()
    assert read_topic(damaged.cluster.address(damaged.victim), damaged.info) == damaged.stored


def test_a_node_that_meets_damage_while_it_serves_repairs_it_and_hands_out_nothing_wrong(
    damaged: Damaged,
) -> None:
    """After a clean stop the log is believed unread: the first reader finds it, and waits for the repair."""
    damaged.restore("stopped")
    path = _segments(damaged.data)[0]
    before = path.read_bytes()
    flip(path, 300_000)
    assert damaged.start(), damaged.said()
    assert read_topic(damaged.cluster.address(damaged.victim), damaged.info) == damaged.stored
    assert re.search(r"log damaged .*found_by=read", damaged.said())
    assert path.read_bytes()[:SEGMENT] == before[:SEGMENT]


def test_a_node_that_meets_a_damaged_queue_file_rebuilds_it_and_hands_out_nothing_wrong(
    damaged: Damaged,
) -> None:
    """Queue files are trusted unread: the first reader finds damage, and waits for a rebuild from the log."""
    damaged.restore("stopped")
    path = next((damaged.data / "consumequeue").glob(f"{TOPIC}@*/0/*"))
    before = path.read_bytes()
    flip(path, 1)
    assert damaged.start(), damaged.said()
    assert read_topic(damaged.cluster.address(damaged.victim), damaged.info) == damaged.stored
    assert re.search(r"queue file rebuilt path=.*consumequeue/", damaged.said())
    assert path.read_bytes()[: len(before)] == before


def test_a_flipped_byte_is_found_by_dump_and_check_with_node_index_and_offset(
    damaged: Damaged, tmp_path: Path
) -> None:
    damaged.restore("stopped")
    path = _segments(damaged.data)[1]
    first = decode_header(path.read_bytes()[:HEADER_SIZE])
    flip(path, 500)  # in the first entry of the second segment
    assert damaged.start(), damaged.said()
    said = dump_and_check(damaged.cluster, tmp_path / "dumps", code=1).stdout
    assert re.search(rf"{damaged.victim}\b.*\b{first.index:,}\b", said), said
    assert f"{first.physical_offset:,}" in said or str(first.physical_offset) in said, said


def test_a_damaged_leader_is_replaced_and_consumers_get_what_was_sent(tmp_path: Path) -> None:
    with Cluster(tmp_path, nodes=3, settings=SETTINGS | {"scrub-bytes-per-second": "0"}) as cluster:
        nameserver = cluster.nameserver
        asyncio.run(_fill(nameserver))
        sent = set(read_topic(cluster.address(cluster.wait_leader()), TOPIC).values())
        for name in cluster.nodes:
            cluster.terminate(name)
        for name in ("n1", "n2"):
            flip(_segments(tmp_path / name)[0], 300_000)
        for name in cluster.nodes:
            cluster.start(name)
        got: set[bytes] = set()

        def drained() -> bool:
            # A supervisor would start them again; the one that is whole has them catch up
            for name in ("n1", "n2"):
                if not cluster.nodes[name].running:
                    cluster.start(name)
            try:
                with Consumer(nameserver, group="g", topic=TOPIC) as consumer:
                    while batch := consumer.receive(32, timeout_ms=2000):
                        for message in batch:
                            got.add(message.body)
                            message.ack()
            except LedgerMQError:
                return False
            return got >= sent

        wait_until(drained, "everything is received", 120)
        assert got == sent

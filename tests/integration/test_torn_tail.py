"""A node dies during a write: its torn last turn is cut off, and it catches up to the same log."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, decode_header
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.hard_state import HardStateFile
from ledgermq.raft.log.segment import read_marks

from .checks import check_every_node, wait_for_more
from .cluster import Cluster
from .history import Load

TOPIC = "torn"
SEGMENT_SIZE = 64 << 20


@dataclass(frozen=True)
class Tail:
    """The end of a dead node's log: its open segment, and the entries that its last turn wrote."""

    path: Path
    last: EntryHeader
    turn_start: int  # physical offset where the last turn began to write

    def write(self, position: int, data: bytes) -> None:
        with self.path.open("r+b") as segment:
            segment.seek(position)
            segment.write(data)


def read_tail(folder: Path) -> Tail:
    """Walk over the only segment of a log. The node must not run."""
    path = sorted((folder / "commitlog").iterdir())[0]
    raw, position, last = path.read_bytes(), 0, None
    while raw[position : position + HEADER_SIZE].strip(b"\0"):
        last = decode_header(raw, position)
        position += last.size
    assert last is not None and position < SEGMENT_SIZE, "the log has left its first segment"
    with_marks = RealFileSystem().open(path, writable=False)
    mark, _ = read_marks(with_marks, SEGMENT_SIZE)
    with_marks.close()
    assert mark is not None
    return Tail(path, last, mark.start)


def acked_floor(folder: Path) -> int:
    found = HardStateFile.open(RealFileSystem(), folder / "hardstate", writable=False)
    found.close()
    return found.state.floor_index


def cut_the_last_entry(tail: Tail) -> None:
    """Its second half never reached the disk."""
    half = tail.last.size // 2
    tail.write(tail.last.physical_offset + half, bytes(tail.last.size - half))


def leave_garbage(tail: Tail) -> None:
    """The next turn left blocks that are no entry."""
    tail.write(tail.last.end, os.urandom(10_000))


def leave_half_an_entry(tail: Tail) -> None:
    """The next turn left the beginning of an entry."""
    with tail.path.open("rb") as segment:
        segment.seek(tail.last.physical_offset)
        raw = segment.read(HEADER_SIZE + 8)
    tail.write(tail.last.end, raw)


def leave_a_hole(tail: Tail) -> None:
    """The next turn left its third block only."""
    tail.write(tail.last.end + 8192, os.urandom(4096))


TEARS: list[Callable[[Tail], None]] = [
    cut_the_last_entry,
    leave_garbage,
    leave_half_an_entry,
    leave_a_hole,
]


def kill_and_tear(cluster: Cluster, load: Load, name: str, tear: Callable[[Tail], None]) -> None:
    """kill -9 a node under load while its last entry is above its recorded acknowledgement; tear its tail."""
    folder = cluster.folder / name
    while True:
        wait_for_more(load, 50)
        cluster.kill(name)
        tail = read_tail(folder)
        if tail.last.index > acked_floor(folder) and tail.last.physical_offset >= tail.turn_start:
            tear(tail)
            return
        cluster.restart(name)  # it died right after a floor was stored: that entry could not be torn any more


def test_a_node_with_a_torn_tail_recovers_and_serves_the_same_as_the_others(cluster: Cluster) -> None:
    with Load(cluster.nameserver, TOPIC, in_flight=16).running() as load:
        for number, tear in enumerate(TEARS):
            leader = cluster.wait_leader()
            followers = cluster.others(leader)
            # A leader's last writes may be on no other node; a follower's last writes were acknowledged.
            name = followers[0] if number % 2 == 0 else leader
            kill_and_tear(cluster, load, name, tear)
            wait_for_more(load, 50)
            cluster.restart(name)
            assert "torn tail cut" in cluster.nodes[name].log(1000).rpartition("log recovered")[0]
    check_every_node(cluster, TOPIC, load.history)


def test_all_nodes_with_torn_tails_have_what_was_acknowledged(cluster: Cluster, tmp_path: Path) -> None:
    """The blocks behind the last turn hold messages that were never acknowledged."""
    with Load(cluster.nameserver, TOPIC, in_flight=16).running() as load:
        wait_for_more(load)
        for name in cluster.nodes:
            cluster.kill(name)
        for name, tear in zip(cluster.nodes, (leave_garbage, leave_half_an_entry, leave_a_hole), strict=True):
            tear(read_tail(tmp_path / name))
        cluster.start_all()
        wait_for_more(load)
    check_every_node(cluster, TOPIC, load.history)

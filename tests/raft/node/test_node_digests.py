"""Real nodes digest the blocks of their logs: when, of what, and when a digest counts no more."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgermq.proto.block_digest import Digests, block_digests
from ledgermq.proto.digest_file import SegmentDigests, decode_digests, encode_digests
from ledgermq.proto.entry import HEADER_DTYPE, HEADER_SIZE, EntryKind, decode_header
from ledgermq.raft.errors import DamagedLogError
from ledgermq.raft.log.digest_store import digest_path
from ledgermq.raft.types import LogIndex, NodeId

from ..node_cluster import SEGMENT, Cluster

pytestmark = pytest.mark.long
OFTEN: dict[str, Any] = {"scrub_interval_s": 0.2, "scrub_bytes_per_second": 256 << 20}
NEVER: dict[str, Any] = {"scrub_bytes_per_second": 0}


async def filled(cluster: Cluster, count: int = 14) -> None:
    """Start all nodes; the logs get more than two segments."""
    await cluster.start()
    rng = random.Random(5)
    await cluster.send(*(rng.randbytes(200_000) for _ in range(count)))
    await cluster.settle()


def file_of(cluster: Cluster, name: str, start: int = 0) -> Path:
    return digest_path(cluster.folder / name / "blockdigest", start)


def expected(cluster: Cluster, name: str, start: int) -> Digests:
    """Digests of a sealed segment, from its file."""
    raw = (cluster.folder / name / "commitlog" / f"{start:020d}").read_bytes()[:SEGMENT]
    found, at = b"", 0
    while at < SEGMENT:
        header = decode_header(raw, at)
        found += raw[at : at + HEADER_SIZE]
        at += header.size
        assert header.kind is not EntryKind.FILLER or at == SEGMENT
    table = np.frombuffer(found, HEADER_DTYPE)
    return block_digests(table, table["crc"], table["physical_offset"].astype(np.int64))


async def digests(cluster: Cluster, name: str) -> list[SegmentDigests]:
    read: list[int] = []
    found = await cluster.nodes[name].care.digests(read.append)
    cluster.read_bytes = sum(read)  # type: ignore[attr-defined]
    return found


def read_bytes(cluster: Cluster) -> int:
    count: int = cluster.read_bytes  # type: ignore[attr-defined]
    return count


@pytest.mark.cluster.with_args(**OFTEN)
async def test_the_scrubber_digests_what_it_reads_and_all_nodes_get_the_same(cluster: Cluster) -> None:
    await filled(cluster)
    names = sorted(cluster.nodes)
    await cluster.until(
        lambda: all(file_of(cluster, name, start).exists() for name in names for start in (0, SEGMENT)),
        "both sealed segments are digested everywhere",
    )
    for start in (0, SEGMENT):
        rows = [decode_digests(file_of(cluster, name, start).read_bytes()).rows for name in names]
        assert all(np.array_equal(each, expected(cluster, names[0], start)) for each in rows)
    made = decode_digests(file_of(cluster, "n1").read_bytes())
    assert made.incarnation == cluster.nodes["n1"].storage.incarnation
    # a later pass reads everything again, and says so
    await cluster.until(
        lambda: decode_digests(file_of(cluster, "n1").read_bytes()).read_from_ms > made.read_to_ms
    )


@pytest.mark.cluster.with_args(**NEVER)
async def test_missing_damaged_and_foreign_digests_are_made_again_on_request(cluster: Cluster) -> None:
    await filled(cluster)
    assert not file_of(cluster, "n1").exists()
    made = await digests(cluster, "n1")
    assert [each.start for each in made] == [0, SEGMENT] and read_bytes(cluster) >= 2 * SEGMENT
    for each in made:
        assert np.array_equal(each.rows, expected(cluster, "n1", each.start))
    again = await digests(cluster, "n1")
    assert [each.read_to_ms for each in again] == [each.read_to_ms for each in made]
    open_part = read_bytes(cluster)
    assert open_part < SEGMENT  # of the last segment, whose first block is not complete
    good = file_of(cluster, "n1").read_bytes()
    stale = replace(made[0], first=replace(made[0].first, prev_crc=5))
    cut = replace(made[0], last=replace(made[0].last, crc=5))
    for wrong in (
        b"", good[:-1], good[:50] + b"\xff" + good[51:], encode_digests(replace(made[0], incarnation=1)),
        encode_digests(stale), encode_digests(cut), file_of(cluster, "n1", SEGMENT).read_bytes(),
    ):  # fmt: skip
        file_of(cluster, "n1").write_bytes(wrong)
        assert np.array_equal((await digests(cluster, "n1"))[0].rows, made[0].rows)
        assert read_bytes(cluster) == open_part + SEGMENT
        assert decode_digests(file_of(cluster, "n1").read_bytes()).incarnation == made[0].incarnation


@pytest.mark.cluster.with_args(**NEVER)
async def test_damage_is_never_digested_and_a_repair_drops_what_was_said_before(cluster: Cluster) -> None:
    await filled(cluster)
    path = cluster.folder / "n1" / "commitlog" / f"{0:020d}"
    good = path.read_bytes()
    made = await digests(cluster, "n1")
    damaged = bytearray(good)
    damaged[300_000] ^= 1
    path.write_bytes(damaged)
    # The digest tells what was read before the disk changed, and when.
    assert (await digests(cluster, "n1"))[0].read_to_ms == made[0].read_to_ms
    again = await cluster.nodes["n1"].care.digests(lambda count: None, reread=True)
    assert [each.start for each in again] == [SEGMENT], "read again, it is seen"
    assert not file_of(cluster, "n1").exists()
    assert [each.start for each in await digests(cluster, "n1")] == [SEGMENT]
    assert not file_of(cluster, "n1").exists()
    path.write_bytes(good)
    await digests(cluster, "n1")
    path.write_bytes(damaged)
    error = DamagedLogError(NodeId("n1"), path, 300_000, 300_000, "seen by a reader")
    assert await cluster.nodes["n1"].care.damage_at_read(error)
    assert path.read_bytes() == good and not file_of(cluster, "n1").exists()


@pytest.mark.cluster.with_args(**NEVER)
async def test_retention_takes_the_digests_with_the_segment(cluster: Cluster) -> None:
    await filled(cluster)
    node = cluster.nodes["n1"]
    await digests(cluster, "n1")
    assert file_of(cluster, "n1").exists()
    node.delete_segments_before(LogIndex(node.applied_index))
    await cluster.until(lambda: not file_of(cluster, "n1").exists(), "the digests are gone")
    assert [each.start for each in await digests(cluster, "n1")] == [
        start for start in (SEGMENT,) if start >= node.log.first_offset
    ]


@pytest.mark.cluster.with_args(**NEVER)
async def test_a_restart_keeps_digests_and_removes_those_of_deleted_segments(cluster: Cluster) -> None:
    await filled(cluster)
    made = await digests(cluster, "n2")
    await cluster.stop("n2")
    (cluster.folder / "n2" / "blockdigest" / "leftover.preparing").write_bytes(b"x")
    await cluster.start("n2")
    await cluster.settle()
    assert sorted(path.name for path in (cluster.folder / "n2" / "blockdigest").iterdir()) == [
        f"{each.start:020d}" for each in made
    ]
    again = await digests(cluster, "n2")
    assert [each.read_to_ms for each in again] == [each.read_to_ms for each in made]


@pytest.mark.cluster.with_args(**OFTEN)
async def test_the_scrubber_digests_again_what_it_had_repaired(cluster: Cluster) -> None:
    await filled(cluster)
    path = cluster.folder / "n3" / "commitlog" / f"{0:020d}"
    await cluster.until(file_of(cluster, "n3").exists)
    damaged = bytearray(path.read_bytes())
    damaged[400_000] ^= 1
    path.write_bytes(damaged)
    await cluster.until(lambda: cluster.nodes["n3"].status().log_check.repaired >= 1, "repaired")
    await cluster.until(file_of(cluster, "n3").exists, "digested again")
    await cluster.settle()
    assert np.array_equal((await digests(cluster, "n3"))[0].rows, expected(cluster, "n1", 0))

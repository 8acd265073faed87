"""Digest dumps on real Spark: equal replicas, every kind of damage, and what is fetched to name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledgermq.broker.backup import stream
from ledgermq.proto.block_digest import BLOCK_SIZE
from ledgermq.proto.digest_file import DIGESTS, decode_digests, encode_digests
from ledgermq.proto.dumped_log import UnusableDumpError, find_logs
from ledgermq.proto.entry import HEADER_SIZE, EntryKind, decode_header
from ledgermq.spark_jobs.digest_compare import Fetch
from ledgermq.spark_jobs.dump_folder import NodeDump
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.findings import Severity
from ledgermq.spark_jobs.verdict import DumpVerdict
from ledgermq.spark_jobs.verification import verify

from .dump_maker import Log, fetch_from_data, make_data, make_dumps, make_log, reseal, take_dump
from .fault_injector import FOLDER_KINDS, KINDS, damage_folder, inject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

LARGE = {"segment_size": 16 << 20, "max_body": 40_000}


def run(spark: SparkSession, dumps: Path, fetch: Fetch | None = fetch_from_data) -> DumpVerdict:
    return verify(spark, dumps, dumps / "report", fetch=fetch)


def errors(verdict: DumpVerdict) -> list[tuple[str, str, int]]:
    return [(f.node, str(f.kind), f.index) for f in verdict.findings if f.severity is Severity.ERROR]


def fetched(dumps: Path) -> int:
    return sum(path.stat().st_size for path in dumps.glob("*/fetched/*"))


def diverged(log: Log, *, behind: int) -> int:
    """Change an entry behind an offset so that all checksums fit again. Returns its index."""
    entry = next(e for e in log.entries if e.physical_offset > behind and e.kind is EntryKind.RECORDS)
    raw = log.segments[0]
    raw[entry.physical_offset + HEADER_SIZE + 48] ^= 1  # the tag in the section header
    for before, each in zip([entry, *log.entries[entry.index :]], log.entries[entry.index :], strict=False):
        at = before.physical_offset
        reseal(raw, at)
        reseal(raw, each.physical_offset, prev_crc=int.from_bytes(raw[at + 4 : at + 8], "little"))
    log.entries[-1] = decode_header(raw, log.entries[-1].physical_offset)
    return entry.index


def large_dumps(dumps: Path) -> tuple[Log, int]:
    """Two equal replicas, and n3 with another history from the second block on."""
    log = make_dumps(dumps, make_log(200, **LARGE), nodes=("n1", "n2"), digests=True)
    other = make_log(200, **LARGE)
    index = diverged(other, behind=5 << 20)
    take_dump(other, dumps, "n3", digests=True)
    return log, index


def test_equal_replicas_are_consistent_and_only_edges_are_fetched(
    spark: SparkSession, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    log = make_dumps(dumps, make_log(200, **LARGE), digests=True)
    verdict = run(spark, dumps)
    assert (verdict.exit_code, verdict.findings) == (0, ())
    assert verdict.headline == f"3 replicas identical to index {len(log.entries)}"
    assert fetched(dumps) == 0  # every node has the bytes of its last block
    raw = sum(path.stat().st_size for path in dumps.glob("*/commitlog/*"))
    assert raw <= 3 * (log.end % BLOCK_SIZE) and log.end > 2 * BLOCK_SIZE
    assert (
        verdict.digests_read["n1"][0] > 0
        and "Compared by digests" in (dumps / "report" / "report.html").read_text()
    )


def test_the_digests_of_nodes_are_those_that_the_check_computes(spark: SparkSession, tmp_path: Path) -> None:
    """A whole dump and a digest dump of the same log are compared with each other."""
    dumps = tmp_path / "dumps"
    log = make_log(300)
    take_dump(log, dumps, "n1")
    take_dump(log, dumps, "n2", digests=True)
    take_dump(log, dumps, "n3", commit=150, digests=True)
    verdict = run(spark, dumps)
    assert (errors(verdict), verdict.exit_code) == ([], 0)


@pytest.mark.parametrize("seed", range(len(KINDS)), ids=KINDS)
def test_every_kind_of_damage_to_a_log_is_found(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    dumps = tmp_path / "dumps"
    log = make_log(120, seed=3)
    for node in ("n1", "n3"):
        take_dump(log, dumps, node, digests=True)
    take_dump(log, dumps, "n2", digests=True, damage=lambda folder: inject(log, folder, seed))
    assert any((dumps / "n2" / DIGESTS).iterdir())
    verdict = run(spark, dumps)
    found = errors(verdict)
    assert verdict.exit_code == 1 and {node for node, _, _ in found} == {"n2"}
    whole = tmp_path / "whole"
    for node in ("n1", "n3"):
        take_dump(log, whole, node)
    take_dump(log, whole, "n2", damage=lambda folder: inject(log, folder, seed))
    about_messages = ("consume-queue", "queue-offset")  # digests know entries only
    wanted = [
        each for each in errors(verify(spark, whole, whole / "report")) if each[1] not in about_messages
    ]
    assert sorted(each for each in found if each[1] not in about_messages) == sorted(wanted)


@pytest.mark.parametrize("kind", FOLDER_KINDS)
def test_every_kind_of_damage_to_the_folder_of_a_stopped_node_is_found(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Digest dumps of data folders give the findings that whole dumps of them give."""
    log, other = make_log(160), make_log(160, seed=9)
    assert len(log.segments) >= 4
    for node in ("n1", "n2", "n3"):
        data = make_data(log, tmp_path / f"data-{node}", node)
        if node == "n2":
            damage_folder(log, data, kind, other)
        for name, flags in (("dumps", ["--digests"]), ("whole", [])):
            assert stream.main(["--data", str(data), "--out", str(tmp_path / name), *flags]) == 0
    digested = sorted(path.name for path in (tmp_path / "dumps" / "n2" / DIGESTS).iterdir())
    assert digested
    verdict = run(spark, tmp_path / "dumps")
    found = errors(verdict)
    assert verdict.exit_code == 1 and {node for node, _, _ in found} == {"n2"}
    about_messages = ("consume-queue", "queue-offset")
    wanted = errors(verify(spark, tmp_path / "whole", tmp_path / "whole" / "report"))
    assert sorted(found) == sorted(each for each in wanted if each[1] not in about_messages)


def test_a_divergence_is_fetched_and_drilled_to_its_first_entry(spark: SparkSession, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    log, index = large_dumps(dumps)
    verdict = run(spark, dumps)
    assert errors(verdict) == [("n3", "divergence", index)]
    assert 0 < fetched(dumps) <= 3 * (log.end - BLOCK_SIZE)
    assert errors(run(spark, dumps, None)) == [("n3", "divergence", index)]  # nothing is fetched twice


def test_nodes_that_cannot_be_reached_any_more_leave_it_incomplete(
    spark: SparkSession, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    make_dumps(dumps, make_log(200, **LARGE), digests=True)
    falsify(dumps / "n2", 1)

    def unreachable(dump: NodeDump, ranges: list[tuple[int, int]]) -> None:
        (Path(dump.folder) / "fetched").mkdir(exist_ok=True)
        (Path(dump.folder) / "fetched" / f"{ranges[0][0]:020d}").write_bytes(b"cut off")
        raise SparkJobError("it is gone")

    for fetch, reason in ((unreachable, "it is gone"), (None, "--nameserver")):
        verdict = run(spark, dumps, fetch)
        assert verdict.exit_code == 3 and "not checked: n1, n2, n3" in verdict.headline
        assert {str(finding.kind) for finding in verdict.findings} == {"not-compared"}
        assert "the digests of 1 block differ" in verdict.findings[0].detail
        assert reason in verdict.findings[0].detail


def test_a_divergence_shows_in_the_open_part_even_if_nothing_can_be_fetched(
    spark: SparkSession, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    large_dumps(dumps)
    verdict = run(spark, dumps, None)
    assert verdict.exit_code == 1
    assert {(f.node, str(f.kind)) for f in verdict.findings} == {
        ("n3", "divergence"), ("n1", "not-compared"), ("n2", "not-compared"), ("n3", "not-compared")
    }  # fmt: skip


def falsify(node: Path, row: int) -> int:
    """Change a digest in a dump so that its file is whole. Returns where its block's entries begin."""
    path = node / DIGESTS / f"{0:020d}"
    made = decode_digests(path.read_bytes())
    rows = made.rows.copy()
    rows["lane_a"][row] ^= 1
    path.write_bytes(encode_digests(replace(made, rows=rows)))
    return int(rows["first_offset"][row])


def test_a_digest_that_is_not_that_of_its_bytes_is_named(spark: SparkSession, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    make_dumps(dumps, make_log(200, **LARGE), digests=True)
    offset = falsify(dumps / "n2", 1)
    verdict = run(spark, dumps)
    assert errors(verdict) == [("n2", "digest", -1)]
    assert verdict.findings[0].offset == offset


def test_damage_after_the_digest_was_made_is_seen_when_its_block_is_fetched(
    spark: SparkSession, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    large_dumps(dumps)
    log = make_log(200, **LARGE)
    entry = next(e for e in log.entries if 5 << 20 < e.physical_offset < 7 << 20)
    disk = tmp_path / "data-n1" / "commitlog" / f"{0:020d}"
    raw = bytearray(disk.read_bytes())
    raw[entry.end - 20] ^= 1
    disk.write_bytes(raw)
    assert ("n1", "crc", entry.index) in errors(run(spark, dumps))


@pytest.mark.parametrize("damage", ["flip", "other-node", "other-log", "missing"])
def test_a_damaged_or_foreign_digest_file_is_refused_with_one_sentence(
    spark: SparkSession, tmp_path: Path, damage: str
) -> None:
    dumps = tmp_path / "dumps"
    make_dumps(dumps, digests=True)
    path = dumps / "n2" / DIGESTS / f"{65536:020d}"
    if damage == "flip":
        raw = bytearray(path.read_bytes())
        raw[100] ^= 1
        path.write_bytes(raw)
    elif damage == "missing":
        path.unlink()
    elif damage == "other-node":
        path.write_bytes((dumps / "n1" / DIGESTS / path.name).read_bytes())
    else:
        take_dump(make_log(60, seed=2), tmp_path / "others", "n2", digests=True)
        path.write_bytes((tmp_path / "others" / "n2" / DIGESTS / path.name).read_bytes())
    words = {"flip": "is damaged", "missing": "cannot be read"}.get(damage, "is of another log")
    with pytest.raises(SparkJobError, match=words) as raised:
        run(spark, dumps)
    assert str(path) in str(raised.value) and "ledgermq dump --digests" in str(raised.value)


def test_a_digest_dump_is_no_backup(tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", digests=True)
    with pytest.raises(UnusableDumpError, match="holds digests of a log, not the log"):
        find_logs([tmp_path / "dumps"])

"""The whole verification on real Spark: good dumps, and every kind of damage that a dump can have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledgermq.proto.entry import HEADER_SIZE, EntryKind, decode_header, encode_entry
from ledgermq.proto.record import RecordFlags
from ledgermq.spark_jobs import duplicate_ids
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.findings import Kind, Severity
from ledgermq.spark_jobs.verdict import DumpVerdict
from ledgermq.spark_jobs.verification import verify

from .dump_maker import Log, flip_bit, make_dumps, make_log, overwrite, reseal, segment_of, take_dump

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


def run(spark: SparkSession, dumps: Path, *, strict: bool = False) -> DumpVerdict:
    return verify(spark, dumps, dumps / "report", strict=strict)


def errors(verdict: DumpVerdict) -> list[tuple[str, str, int]]:
    return [(f.node, str(f.kind), f.index) for f in verdict.findings if f.severity is Severity.ERROR]


def test_equal_replicas_are_consistent_and_leave_all_report_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = make_dumps(tmp_path / "dumps")
    verdict = run(spark, tmp_path / "dumps")
    assert (verdict.exit_code, verdict.findings) == (0, ())
    assert verdict.headline == f"3 replicas identical to index {len(log.entries)}"
    messages = sum(map(len, log.units.values()))
    assert [node.totals.records for node in verdict.nodes] == [messages] * 3
    report = tmp_path / "dumps" / "report"
    names = {"blocks.parquet", "findings.parquet", "groups.parquet", "report.html", "report.json"}
    assert names <= {path.name for path in report.iterdir()}
    assert json.loads((report / "report.json").read_text())["exit_code"] == 0
    assert spark.read.parquet(str(report / "groups.parquet")).count() == 3


def test_one_flipped_bit_is_one_finding_with_node_index_and_offset(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = make_dumps(tmp_path / "dumps")
    entry = next(e for e in log.entries[30:] if e.kind is EntryKind.RECORDS)
    flip_bit(tmp_path / "dumps" / "n1", entry.physical_offset + HEADER_SIZE + 200)
    verdict = run(spark, tmp_path / "dumps")
    assert verdict.exit_code == 1
    assert [finding.line() for finding in verdict.findings] == [
        f"FOUND n1 index {entry.index:,} offset {entry.physical_offset:,} (crc)"
    ]
    assert "this copy was changed" in verdict.findings[0].detail


def test_a_dropped_entry_is_found_as_a_gap(spark: SparkSession, tmp_path: Path) -> None:
    log = make_dumps(tmp_path / "dumps")
    entry = log.entries[20]
    path, position = segment_of(tmp_path / "dumps" / "n2", entry.physical_offset)
    raw = path.read_bytes()
    path.write_bytes(raw[:position] + raw[position + entry.size :])
    verdict = run(spark, tmp_path / "dumps")
    assert verdict.exit_code == 1
    assert ("n2", "gap", entry.index) in errors(verdict)
    assert {node for node, _, _ in errors(verdict)} == {"n2"}


def test_a_diverged_tail_with_fitting_checksums_names_the_odd_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_dumps(tmp_path / "dumps", make_log(60), nodes=("n1", "n2"))
    take_dump(make_log(60, fork_at=41), tmp_path / "dumps", "n3")
    verdict = run(spark, tmp_path / "dumps")
    assert verdict.exit_code == 1
    assert errors(verdict) == [("n3", "divergence", 41)]
    assert verdict.findings[0].count == 20


def test_a_divergence_far_from_the_ends_is_found_by_its_block(spark: SparkSession, tmp_path: Path) -> None:
    sizes = {"segment_size": 16 << 20, "max_body": 40_000}
    make_dumps(tmp_path / "dumps", make_log(200, **sizes), nodes=("n1", "n2"))
    log = make_log(200, **sizes)
    assert log.end > 9 << 20
    entry = next(e for e in log.entries if e.physical_offset > 5 << 20 and e.kind is EntryKind.RECORDS)
    # Another tag in the section header: all checksums are right again, only this entry and its chain differ.
    raw = log.segments[0]
    raw[entry.physical_offset + HEADER_SIZE + 48] ^= 1
    for before, each in zip([entry, *log.entries[entry.index :]], log.entries[entry.index :], strict=False):
        at = before.physical_offset
        reseal(raw, at)
        reseal(raw, each.physical_offset, prev_crc=int.from_bytes(raw[at + 4 : at + 8], "little"))
    log.entries[-1] = decode_header(raw, log.entries[-1].physical_offset)
    take_dump(log, tmp_path / "dumps", "n3")
    verdict = run(spark, tmp_path / "dumps")
    assert errors(verdict) == [("n3", "divergence", entry.index)]


def test_missing_segment_truncated_file_and_swapped_entries(spark: SparkSession, tmp_path: Path) -> None:
    log = make_dumps(tmp_path / "dumps")
    first = next(e for e in log.entries if e.physical_offset >= 65536)
    (tmp_path / "dumps" / "n1" / "commitlog" / f"{65536:020d}").unlink()
    last = tmp_path / "dumps" / "n2" / "commitlog" / f"{131072:020d}"
    last.write_bytes(last.read_bytes()[:-100])
    a, b = log.entries[3], log.entries[4]
    path, position = segment_of(tmp_path / "dumps" / "n3", a.physical_offset)
    raw = path.read_bytes()
    middle = position + a.size
    path.write_bytes(
        raw[:position] + raw[middle : middle + b.size] + raw[position:middle] + raw[middle + b.size :]
    )
    verdict = run(spark, tmp_path / "dumps")
    found = errors(verdict)
    assert verdict.exit_code == 1
    assert ("n1", "missing-segment", first.index) in found
    assert ("n2", "crc", len(log.entries)) in found or ("n2", "missing-range", len(log.entries)) in found
    assert {kind for node, kind, _ in found if node == "n3"} >= {"offset", "gap", "chain"}


def test_term_regression_broken_numbering_and_wrong_consume_queue(
    spark: SparkSession, tmp_path: Path
) -> None:
    dumps = tmp_path / "dumps"
    take_dump(_bad_history(), dumps, "n1", voters=("n1",))
    queue = next((dumps / "n1").glob("consumequeue/*/0/*"))
    raw = bytearray(queue.read_bytes())
    raw[20 * 3 + 12] ^= 1
    queue.write_bytes(raw)
    kinds = [(kind, index) for _, kind, index in errors(run(spark, dumps))]
    assert ("term", 4) in kinds
    assert ("queue-offset", 5) in kinds
    assert ("consume-queue", 2) in kinds


def _bad_history() -> Log:
    log = Log()
    log.append(EntryKind.NOOP, [], term=3)
    log.append_messages(0, [b"a"] * 5, term=3)
    log.append_messages(0, [b"b"] * 5, term=3)
    log.append(EntryKind.NOOP, [], term=2)
    log.append_messages(0, [b"c"] * 5, term=3, base=12)
    return log


def test_a_missing_voter_is_incomplete_unless_something_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    log = make_dumps(tmp_path / "dumps", nodes=("n1", "n3"))
    verdict = run(spark, tmp_path / "dumps")
    assert verdict.exit_code == 3
    assert verdict.headline == f"2 replicas identical to index {len(log.entries)}; not checked: n2"
    flip_bit(tmp_path / "dumps" / "n3", 500)
    assert run(spark, tmp_path / "dumps").exit_code == 1


def test_a_suffix_above_the_commit_point_is_a_note(spark: SparkSession, tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", make_log(60), nodes=("n1", "n2"))
    take_dump(make_log(60, fork_at=51), tmp_path / "dumps", "n3", commit=50)
    verdict = run(spark, tmp_path / "dumps")
    assert verdict.exit_code == 0
    assert [(f.node, str(f.kind), f.count) for f in verdict.findings] == [("n3", "not-committed", 10)]
    assert verdict.agreed_index == 50
    assert run(spark, tmp_path / "dumps", strict=True).exit_code == 1


def test_nodes_with_different_commit_points_are_compared_as_far_as_both_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    for node, count in (("n1", 60), ("n2", 55), ("n3", 40)):
        take_dump(make_log(count), tmp_path / "dumps", node)
    assert run(spark, tmp_path / "dumps").exit_code == 0
    shutil.rmtree(tmp_path / "dumps" / "n2")
    take_dump(make_log(55, fork_at=52), tmp_path / "dumps", "n2")
    found = errors(run(spark, tmp_path / "dumps"))
    assert found == [("n1 and n2", "divergence", 52)]


def test_a_copy_of_a_log_inside_a_message_confuses_nobody(spark: SparkSession, tmp_path: Path) -> None:
    log = make_log(10)
    start = log.end + HEADER_SIZE + 64 + 64 + len(b"sysrest")
    inner_at = start + (-start % 8)
    inner = encode_entry(
        EntryKind.NOOP,
        [],
        section_count=0,
        index=999,
        term=9,
        physical_offset=inner_at,
        timestamp=1,
        prev_crc=0,
    )
    log.append_messages(0, [bytes(inner_at - start) + bytes(inner) * 3], term=9)
    log.append_messages(1, [b"after"], term=9)
    make_dumps(tmp_path / "dumps", log)
    for node in ("n1", "n2", "n3"):
        # Without index points (a manifest is not to be trusted) the result must be the same.
        path = tmp_path / "dumps" / node / "manifest.json"
        fields = json.loads(path.read_text())
        path.write_text(json.dumps(fields | {"index_points": [[11, inner_at]]}))
    verdict = run(spark, tmp_path / "dumps")
    assert (verdict.exit_code, verdict.findings) == (0, ())


def test_an_empty_group_is_consistent(spark: SparkSession, tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", Log())
    verdict = run(spark, tmp_path / "dumps")
    assert (verdict.exit_code, verdict.findings) == (0, ())
    assert verdict.headline == "3 replicas identical to index 0"


def test_the_data_source_gives_entries_and_messages(spark: SparkSession, tmp_path: Path) -> None:
    from ledgermq.spark_jobs.dump_source import FORMAT, LedgerMQDump

    log = make_dumps(tmp_path / "dumps")
    spark.dataSource.register(LedgerMQDump)
    entries = spark.read.format(FORMAT).load(str(tmp_path / "dumps"))
    assert entries.where("node = 'n2' and crc_ok").count() == len(log.entries) + len(log.segments) - 1
    messages = (
        spark.read.format(FORMAT)
        .option("rows", "messages")
        .option("nodes", "n1")
        .load(str(tmp_path / "dumps"))
    )
    rows = messages.where("queue_id = 1").orderBy("queue_offset").collect()
    assert [row.queue_offset for row in rows] == list(range(len(log.units[1])))
    assert all(len(row.body) == row.body_size for row in rows)
    without = (
        messages.sparkSession.read.format(FORMAT)
        .options(rows="messages", body="false")
        .load(str(tmp_path / "dumps"))
    )
    assert without.where("body is not null").count() == 0


def test_message_ids_that_are_stored_more_than_once_are_named_on_request(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = make_log(40)
    for queue, bodies in (
        (0, [b"twice", b"x"]),
        (1, [b"once"]),
        (0, [b"twice", b"y"]),
        (0, [b"twice", b"z"]),
    ):
        last = log.append_messages(queue, bodies, term=9)
    dumps = tmp_path / "dumps"
    make_dumps(dumps, log)
    assert run(spark, dumps).findings == ()
    verdict = verify(spark, dumps, dumps / "report", duplicates=True)
    (found,) = verdict.findings
    assert (verdict.exit_code, found.kind, found.severity) == (0, Kind.DUPLICATE_ID, Severity.INFO)
    assert found.index == last.index and last.physical_offset < found.offset < last.end
    end = len(log.units[0])
    assert f"is stored 3 times, first and last at queue 0 offset {end - 6:,} (index {41:,})" in found.detail
    assert f"queue 0 offset {end - 2:,} (index {last.index:,})" in found.detail
    assert verify(spark, dumps, dumps / "report", duplicates=True, strict=True).exit_code == 1


def test_only_the_first_duplicates_are_named_and_copies_of_the_brokers_are_none(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    for _ in range(2):
        log.append_messages(0, [b"a", b"b", b"c", b"d"], term=1)
    log.append_messages(1, [b"e"], term=1)
    log.append_messages(1, [b"e"], term=1, flags=RecordFlags.COPY)
    dumps = tmp_path / "dumps"
    make_dumps(dumps, log)
    monkeypatch.setattr(duplicate_ids, "MAX_NAMED", 3)
    verdict = verify(spark, dumps, dumps / "report", duplicates=True)
    assert [each.count for each in verdict.findings] == [1, 1, 2]


def test_digests_cannot_be_searched_for_duplicates(spark: SparkSession, tmp_path: Path) -> None:
    make_dumps(tmp_path / "dumps", digests=True)
    with pytest.raises(SparkJobError, match="Take whole dumps: ledgermq dump DIR"):
        verify(spark, tmp_path / "dumps", tmp_path / "report", duplicates=True)


def test_all_zeros_in_place_of_entries_are_a_missing_range(spark: SparkSession, tmp_path: Path) -> None:
    log = make_dumps(tmp_path / "dumps")
    first, last = log.entries[10], log.entries[14]
    overwrite(tmp_path / "dumps" / "n1", first.physical_offset, bytes(last.end - first.physical_offset))
    verdict = run(spark, tmp_path / "dumps")
    assert errors(verdict) == [("n1", "missing-range", first.index)]
    assert f"index {first.index:,} to {last.index:,} are lost" in verdict.findings[0].detail

"""`ledgermq message export`: what a dump holds of a topic, as lines that another program can read."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from ledgermq.client.cli import run_cli
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.proto.entry import EntryKind
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, encode_section, seal_section
from tests.spark_jobs.dump_maker import START_MS, Log, flip_bit, take_dump

GONE_TOPIC_ID = 11
ID = bytes(range(16))


def gone_topic(log: Log, base: int, bodies: list[bytes], **labels: object) -> None:
    """Append messages of a topic that no manifest names: it was deleted since."""
    encoder = RecordEncoder("gone", born_host="h", compress_above=64)
    records, at = [], SECTION_HEADER_SIZE
    for body in bodies:
        records.append(encoder.encode(at, body, (ID, "01" + ID.hex().upper()), START_MS - 5, **labels))  # type: ignore[arg-type]
        at += len(records[-1])
    section = encode_section(SectionKind.RECORDS, records, len(records), topic_id=GONE_TOPIC_ID, queue_id=2)
    seal_section(section, base_queue_offset=base, entry_distance=64)
    log.append(EntryKind.RECORDS, [bytes(section)], term=1, section_count=1)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.append(EntryKind.NOOP, [], term=1)
    log.append_messages(0, [b"another topic"], term=1)
    gone_topic(log, 0, [b"plain", b"\xff\x00", b"long " * 100], tag="a", keys=["k1"], properties={"p": "ü"})
    gone_topic(log, 3, [b"later"])
    return log


def export(tmp_path: Path, *flags: str, code: int = 0) -> list[dict[str, object]]:
    out = tmp_path / "out.ndjson"
    out.unlink(missing_ok=True)
    assert run_cli(["message", "export", str(tmp_path / "dumps"), "--out", str(out), *flags]) == code
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_messages_of_a_deleted_topic_are_written_with_labels_and_bodies(tmp_path: Path, log: Log) -> None:
    take_dump(log, tmp_path / "dumps", "n1")
    plain, binary, long, later = export(tmp_path, "--topic", "gone")
    assert plain == {
        "message_id": "01" + ID.hex().upper(), "topic": "gone", "topic_id": GONE_TOPIC_ID,
        "broker_group": "g0",
        "queue_id": 2, "queue_offset": 0, "index": 3, "store_timestamp": log.entries[2].timestamp,
        "born_timestamp": START_MS - 5, "tag": "a", "keys": ["k1"], "message_group": "",
        "properties": {"p": "ü"},
        "body": "plain", "body_encoding": "utf-8",
    }  # fmt: skip
    assert (binary["body_encoding"], base64.b64decode(str(binary["body"]))) == ("base64", b"\xff\x00")
    assert long["body"] == "long " * 100
    assert (later["queue_offset"], later["tag"]) == (3, "")


def test_times_and_topics_limit_what_is_written(tmp_path: Path, log: Log) -> None:
    take_dump(log, tmp_path / "dumps", "n1")
    at = log.entries[3].timestamp
    assert [each["body"] for each in export(tmp_path, "-t", "gone", "--from", str(at))] == ["later"]
    assert len(export(tmp_path, "-t", "gone", "--to", str(at))) == 3
    (foreign,) = export(
        tmp_path, "-t", "orders", code=1
    )  # what the test's log holds there is no message of ours
    assert foreign["body"] is None and "cannot be read" in str(foreign["error"])
    assert export(tmp_path, "-t", "nothing") == []


def test_damage_is_read_from_another_dump_and_told_when_there_is_none(
    tmp_path: Path, log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("n1", "n2"):
        take_dump(log, tmp_path / "dumps", name)
    flip_bit(tmp_path / "dumps" / "n2", log.entries[2].physical_offset + 200)
    assert len(export(tmp_path, "-t", "gone")) == 4
    flip_bit(tmp_path / "dumps" / "n1", log.entries[2].physical_offset + 200)
    assert export(tmp_path, "-t", "gone", code=1) == []
    assert "incomplete: the entry behind 2" in capsys.readouterr().err
    later = str(log.entries[-1].timestamp + 1)
    assert export(tmp_path, "-t", "gone", "--to", later, code=1) == [], "the damage is before that time"
    before = str(log.entries[0].timestamp)
    assert export(tmp_path, "-t", "gone", "--to", before) == []


def test_what_a_stopped_node_did_not_know_to_be_committed_is_marked(tmp_path: Path, log: Log) -> None:
    take_dump(log, tmp_path / "dumps", "n1", commit=3)
    assert [each.get("committed", True) for each in export(tmp_path, "-t", "gone")] == [True] * 3 + [False]


def test_a_file_that_is_there_is_kept(tmp_path: Path, log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    take_dump(log, tmp_path / "dumps", "n1")
    (tmp_path / "mine").write_text("mine")
    flags = ["--topic", "gone", "--out", str(tmp_path / "mine")]
    assert run_cli(["message", "export", str(tmp_path / "dumps"), *flags]) == 1
    assert "cannot be made: File exists" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_folder_without_dumps_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["message", "export", str(tmp_path), "--topic", "t"]) == 1
    assert "holds no dump" in capsys.readouterr().err

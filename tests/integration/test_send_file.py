"""`ledgermq send --file` stores every line or row of a file once, and names what it could not store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from ledgermq.client.cli import run_cli

from .cluster import Cluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("send_file")
    with Cluster(folder, settings={"auto-create-topics": "false"}) as result:
        result.wait_leader()
        yield result


def test_lines_and_rows_are_stored_once(
    cluster: Cluster, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = [f'{{"number": {number}}}' for number in range(20_000)]
    text, table = tmp_path / "events.jsonl", tmp_path / "events.parquet"
    text.write_text("\n".join(lines) + "\n")
    parquet.write_table(
        pyarrow.table({"body": [line.encode() for line in lines], "tag": ["x"] * 20_000}), table
    )
    at = ["-n", cluster.nameserver]
    assert run_cli(["topic", "create", "filed", *at]) == 0
    assert run_cli(["send", "filed", "--file", str(text), "--key", "of-a-line", *at]) == 0
    capfdbinary.readouterr()
    assert run_cli(["send", "filed", "--file", str(table), "--json", *at]) == 0
    receipts = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert len({(each["queue_id"], each["queue_offset"]) for each in receipts}) == 20_000
    assert run_cli(["consume", "filed", "-g", "g", "--count", "40000", "--timeout", "60", "--json", *at]) == 0
    found = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    of_lines = sorted(each["body"] for each in found if each["keys"] == ["of-a-line"])
    of_rows = sorted(each["body"] for each in found if each["tag"] == "x")
    assert of_lines == of_rows == sorted(lines)


def test_what_fails_is_named_by_its_line(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, at = tmp_path / "lines.txt", ["-n", cluster.nameserver]
    text.write_text("one\ntwo\nthree\n")
    assert run_cli(["send", "nowhere", "--file", str(text), "--timeout", "2", *at]) == 1
    assert "3 messages were read; of these were not acknowledged: 1-3" in capfd.readouterr().err

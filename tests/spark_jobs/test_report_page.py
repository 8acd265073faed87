"""The report page and the console: what a person sees."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ledgermq.spark_jobs.dump_folder import find_dumps
from ledgermq.spark_jobs.findings import ADVICE, Finding, Kind, Severity, advice_for
from ledgermq.spark_jobs.group_checks import attribute_changes
from ledgermq.spark_jobs.node_checks import totals
from ledgermq.spark_jobs.report_page import draw_logs, render_page
from ledgermq.spark_jobs.verdict import DumpVerdict, Making, make_verdict
from ledgermq.spark_jobs.verify import main, print_verdict

from .dump_maker import make_dumps
from .local_scan import scan_node


def make_result(tmp_path: Path, *findings: Finding) -> DumpVerdict:
    make_dumps(tmp_path / "dumps")
    dumps = find_dumps(tmp_path / "dumps")
    sums = {dump.node: totals(scan_node(Path(dump.folder))[1]) for dump in dumps}
    return make_verdict(str(tmp_path / "dumps"), dumps, sums, findings, strict=False, seconds=1.5)


def crc(detail: str = "stored checksum") -> Finding:
    return Finding("n1", 70_000, 1044, Kind.CRC, Severity.ERROR, detail, 70_500, path="commitlog/x")


def test_the_page_needs_no_network_and_says_the_verdict(tmp_path: Path) -> None:
    page = render_page(make_result(tmp_path))
    assert "CONSISTENT" in page and "INCONSISTENT" not in page
    assert "3 replicas identical to index 60" in page
    assert "http:" not in page and "https:" not in page and "<script" not in page


def test_foreign_text_is_escaped(tmp_path: Path) -> None:
    page = render_page(make_result(tmp_path, crc("<script>alert(1)</script>")))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_each_node_has_a_row_and_damage_is_drawn_where_it_is(tmp_path: Path) -> None:
    drawing = draw_logs(make_result(tmp_path, crc()))
    assert [track.node for track in drawing.tracks] == ["n1", "n2", "n3"]
    (damaged,) = [bar for bar in drawing.tracks[0].bars if bar.css == "damaged"]
    assert 92 < damaged.x < 1080 and damaged.width >= 4
    assert all(bar.css == "agree" for track in drawing.tracks[1:] for bar in track.bars)


def test_every_kind_of_finding_has_advice() -> None:
    assert set(ADVICE) == set(Kind)


def test_the_runbook_gives_the_advice_of_the_report_word_for_word() -> None:
    text = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text, re.MULTILINE)
    assert dict(rows) == {str(kind): advice for kind, advice in ADVICE.items()}


def test_a_copy_that_was_changed_later_says_nothing_of_its_node(tmp_path: Path) -> None:
    """Whatever the change broke, the advice is another dump; no node is to be made anew for it."""
    change = Finding("n1", 65_536, -1, Kind.CHANGED_DUMP, Severity.ERROR, "changed", 131_072)
    (finding,) = attribute_changes([crc(), change])
    assert (finding.kind, finding.in_copy) == (Kind.CRC, True)
    assert advice_for([finding]) == [(Kind.CHANGED_DUMP, ADVICE[Kind.CHANGED_DUMP])]
    verdict = make_result(tmp_path, finding)
    assert [node.state for node in verdict.nodes] == ["copy changed", "consistent", "consistent"]
    page = render_page(verdict)
    assert "the node is innocent" in page and "rejoin" not in page and "entryindex" not in page
    other = attribute_changes([replace(crc(), node="n2"), change])
    assert [kind for kind, _ in advice_for(other)] == [Kind.CRC, Kind.CHANGED_DUMP]


def test_the_page_says_when_by_what_and_how_it_was_made(tmp_path: Path) -> None:
    made = Making(1_750_000_000_000, "ledgermq 9.8", "ledgermq check '<dumps>'")
    page = render_page(replace(make_result(tmp_path), made=made))
    assert "checked 2025-06-15 15:06:40 UTC by ledgermq 9.8" in page
    assert "ledgermq check &#39;&lt;dumps&gt;&#39;" in page


def test_the_console_names_each_fault_and_ends_with_the_verdict(tmp_path: Path) -> None:
    text = io.StringIO()
    console = Console(file=text, width=120)
    print_verdict(make_result(tmp_path, crc()), tmp_path / "report", console)
    lines = text.getvalue().splitlines()
    assert any(line.startswith("FOUND n1 index 1,044 offset 70,000 (crc)") for line in lines)
    assert lines[-1].startswith("INCONSISTENT  3 replicas checked: 1 fault in n1")


def test_a_wrong_folder_ends_with_code_2_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err


def test_a_report_folder_that_cannot_be_made_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_dumps(tmp_path / "dumps", nodes=("n1",))
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "dumps"), "--out", str(tmp_path / "file" / "x")]) == 2
    assert "Point --out at" in capsys.readouterr().err

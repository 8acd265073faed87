"""`ledgermq spark analyze` without Spark: what the terminal shows, what is refused before Spark starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")
from ledgermq.client.trace.events import TRACE_TOPIC
from ledgermq.spark_jobs import session
from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.topics.analysis_figures import Analysis
from ledgermq.spark_jobs.topics.analyze import main, print_analysis
from ledgermq.spark_jobs.topics.topic_analysis import AnalysisRequest, look_at
from tests.client.fakes import FakeCluster, FakeGroup
from tests.client.served import Served, served

from .analysis_maker import analysis, empty, figures, topic_figures


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    with served(lambda: FakeCluster(FakeGroup(topics={"orders": 2, TRACE_TOPIC: 1}))) as running:
        yield running


def printed(capsys: pytest.CaptureFixture[str], found: Analysis) -> list[str]:
    print_analysis(found, Path("/reports/x"))
    return capsys.readouterr().out.splitlines()


def test_the_terminal_shows_topics_and_their_tags(capsys: pytest.CaptureFixture[str]) -> None:
    many = replace(topic_figures(), tags=[(f"t{n}", figures(9)) for n in range(15)], tag_count=40)
    lines = printed(capsys, analysis(many, empty("quiet")))
    head = "TOPIC TAG MESSAGES BYTES KEYS QUEUEING p50 p99 END TO END p50 p99 REDELIVERED GIVEN UP PARKED"
    assert lines[0].split() == head.split()
    assert lines[1].split()[:4] == ["orders", "(all)", "3,007", "2.0"]
    assert [line.split()[0] for line in lines[2:12]] == [f"t{n}" for n in range(10)]
    assert lines[12].strip() == "(30 more)"
    assert lines[13].split() == ["quiet", "(all)", "0", "0", "B", "0", "0"]
    assert lines[-2:] == ["report: /reports/x/report.html", "every tag and hour: /reports/x/hours.parquet"]


def test_without_traces_it_shows_no_columns_for_them_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, analysis(topic_figures(traced=False), has_trace_topic=False))
    assert "REDELIVERED" not in lines[0]
    assert any(line.startswith("The brokers keep no traces") for line in lines)


def test_tags_do_not_reach_the_terminal_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    topic = replace(topic_figures(), tags=[("\x1b[2J[red]" + "x" * 100, figures(1))])
    text = "\n".join(printed(capsys, analysis(topic)))
    assert "\\x1b[2J[red]xx" in text and "\x1b" not in text and "x" * 50 not in text


def test_every_pass_ends_at_the_same_offsets(cluster: Served[FakeCluster]) -> None:
    look = look_at(AnalysisRequest(cluster.address, ("orders",), 0, 0, 20))
    assert look.ends == {"orders": {"g0": {"0": 0, "1": 0}}}
    assert (look.has_trace_topic, look.parked.places) == (True, {})


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ("ordres", 'Did you mean "orders"?'),
        ("orders,nothing", 'topic "nothing" does not exist'),
        (" , ", "no topic is named"),
    ],
)
def test_wrong_topics_are_told_before_spark_starts_and_nothing_is_written(
    cluster: Served[FakeCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str], topics: str, text: str
) -> None:
    assert main([topics, "--nameserver", cluster.address, "--out", str(tmp_path / "report")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and text in captured.err and "Traceback" not in captured.err
    assert len(captured.err.splitlines()) == 1 and captured.out == ""
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_files_is_told_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["orders", "--nameserver", "127.0.0.1:1", "--out", str(tmp_path)]) == 2
    assert "thesis.txt, which no analysis wrote" in capsys.readouterr().err


def test_another_version_of_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    with pytest.raises(SparkJobError, match=r"this is Spark 3\.5\.9; LedgerMQ needs Spark 4.2 or newer"):
        session.open_session("x")

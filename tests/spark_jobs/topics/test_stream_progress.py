"""What the listener makes of the progress of streaming queries. Without a session."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")

from ledgermq.spark_jobs.topics.stream_offsets import PartPositions, encode_positions
from ledgermq.spark_jobs.topics.stream_progress import (
    QueryProgress,
    StreamProgress,
    query_progress,
    shown_on,
)


def offsets(topic_id: int = 7, **queues: int) -> dict[str, Any]:
    """Return offsets of the topic `orders`; names of queues are q0, q1, …"""
    part = PartPositions(1, topic_id, {int(name[1:]): offset for name, offset in queues.items()})
    return encode_positions({("orders", "g0"): part})


def document(batch: int = 3, **source: Any) -> dict[str, Any]:
    found = {
        "endOffset": offsets(q0=10, q1=20), "latestOffset": offsets(q0=15, q1=20, q2=100),
        "numInputRows": 40, "processedRowsPerSecond": 50.0, **source,
    }  # fmt: skip
    return {"id": "abc", "name": None, "batchId": batch, "sources": [found]}


def test_lag_is_what_the_brokers_have_and_the_query_has_not_read() -> None:
    progress = query_progress(document())
    assert progress == QueryProgress("abc", 3, 40, 50.0, 105)
    assert progress.fields() == {
        "query": "abc", "batch": 3, "rows": 40, "rows_per_second": 50.0, "lag": 105, "eta_seconds": 2.1,
    }  # fmt: skip
    assert progress.text() == "abc   batch 3   40 rows   50 rows/s   lag 105, 0:02 left"


def test_offsets_may_be_text_as_in_spark_s_own_objects() -> None:
    text: dict[str, Any] = {
        name: json.dumps(document()["sources"][0][name]) for name in ("endOffset", "latestOffset")
    }
    assert query_progress(document(**text)).lag == 105


def test_a_topic_that_was_created_again_is_behind_by_all_it_has() -> None:
    assert query_progress(document(latestOffset=offsets(8, q0=6))).lag == 6


@pytest.mark.parametrize("end", [None, "5", '{"logOffset": 3}', "not JSON", {"v": 1}])
def test_other_sources_have_no_lag(end: Any) -> None:
    progress = query_progress(document(endOffset=end, latestOffset=end))
    assert (progress.lag, progress.eta_seconds) == (None, None)
    assert progress.text() == "abc   batch 3   40 rows   50 rows/s"


def test_what_is_read_needs_no_time_and_a_query_at_rest_promises_none() -> None:
    assert query_progress(document(latestOffset=offsets(q0=10))).eta_seconds == 0
    assert query_progress(document(processedRowsPerSecond=None)).eta_seconds is None
    assert query_progress({"id": "x"}) == QueryProgress("x", -1, 0, 0.0, None)


def test_a_query_is_shown_now_and_then_and_at_its_end() -> None:
    now = 0.0
    shown: list[int] = []
    listener = StreamProgress(lambda each: shown.append(each.batch), 10.0, lambda: now)
    for batch, now in ((1, 0.0), (2, 5.0), (3, 10.0), (4, 12.0)):  # noqa: B007
        listener.take("run", document(batch))
    assert shown == [1, 3]
    listener.end("run")
    assert shown == [1, 3, 4]
    assert [each.batch for each in listener.queries()] == [4]


def test_the_end_of_a_query_that_was_just_shown_is_not_shown_again() -> None:
    shown: list[QueryProgress] = []
    listener = StreamProgress(shown.append)
    listener.take("run", document())
    listener.end("run")
    listener.end("another")
    assert len(shown) == 1


def test_lines_for_people_and_for_programs() -> None:
    for as_json in (False, True):
        file = io.StringIO()
        shown_on(Console(file=file, width=200), as_json=as_json).take("run", document())
        (line,) = file.getvalue().splitlines()
        assert (json.loads(line)["lag"] == 105) if as_json else line.endswith("lag 105, 0:02 left")

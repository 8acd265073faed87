"""What an analysis says in JSON, and what it says of figures that it does not have."""

from __future__ import annotations

import json
from dataclasses import replace

from ledgermq.spark_jobs.topics.analysis_figures import NO_TRACE_TOPIC

from .analysis_maker import HOUR, analysis, empty, topic_figures


def test_json_has_every_figure_under_its_name() -> None:
    found = json.loads(json.dumps(analysis(topic_figures(), empty("other")).fields()))
    assert (found["format"], found["messages"], found["from_ms"], found["to_ms"]) == (
        "ledgermq-analysis", 3_007, None, None,
    )  # fmt: skip
    orders, other = found["topics"]
    assert (orders["topic"], orders["messages"], orders["bytes"]) == ("orders", 3_007, 3_007 * 700)
    assert orders["queueing_ms"] == {"p50": 4, "p90": 9, "p99": 120, "most": 4_500}
    assert orders["end_to_end_ms"]["p99"] == 9_000
    assert [each["tag"] for each in orders["tags"]] == ["new", None]
    assert orders["hours"][0]["hour_ms"] == HOUR
    assert (other["messages"], other["queueing_ms"], other["traced"]) == (0, None, None)


def test_what_is_not_known_is_null_and_a_note_says_why() -> None:
    without = analysis(topic_figures(traced=False), has_trace_topic=False)
    assert without.notes() == [NO_TRACE_TOPIC]
    assert without.fields()["topics"][0]["redeliveries"] is None
    (note,) = analysis(topic_figures(), topic_figures("dark", traced=False), empty("none")).notes()
    assert note.startswith("No trace tells of messages of dark being consumed")
    assert analysis().notes() == []


def test_what_could_not_be_counted_is_told() -> None:
    notes = replace(analysis(), unlisted_parked=1_234, unreadable_traces=5).notes()
    assert [note.split(" ", 1)[0] for note in notes] == ["5", "1,234"]

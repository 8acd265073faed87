"""The page of an analysis, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("jinja2", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.topics.analysis_page import draw_hours, render_analysis

from .analysis_maker import HOUR, HOUR_MS, analysis, empty, figures, topic_figures


def test_the_page_has_the_figures_and_needs_no_network() -> None:
    page = render_analysis(analysis())
    assert page.startswith("<!doctype html>")
    for text in (
        "3,007",
        "4 ms · 120 ms",
        "12 ms · 9 s",
        "without a tag",
        "3 more tags are in",
        "2026-01-31 14:00",
    ):
        assert text in page, text
    assert "analysed 2026-01-31 12:00:00 UTC by ledgermq 9.8 in 2.5 s" in page
    assert "http:" not in page and "https:" not in page and "<script" not in page


def test_foreign_text_is_escaped() -> None:
    topic = topic_figures()
    page = render_analysis(analysis(replace(topic, tags=[("<script>\x1b[2J\u202e", figures(9))])))
    assert "&lt;script&gt;\\x1b[2J\\u202e" in page
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "&#39;&lt;orders&gt;&#39;" in page


def test_without_traces_their_columns_are_left_out_and_it_says_why() -> None:
    page = render_analysis(analysis(topic_figures(traced=False), has_trace_topic=False))
    assert "The brokers keep no traces" in page
    assert '<th class="n">Redelivered</th>' not in page and "traced consumptions" not in page
    assert '<th class="n">Redelivered</th>' in render_analysis(analysis())


def test_a_topic_without_messages_says_so() -> None:
    assert "No messages in this time." in render_analysis(analysis(empty("quiet")))


def test_hours_stand_where_their_time_is() -> None:
    topic = topic_figures(hours=2)
    far = replace(topic, hours=[*topic.hours, (HOUR + 9 * HOUR_MS, figures(4_000))])
    drawing = draw_hours(far)
    first, second, last = drawing.bars
    assert (first.x, round((last.x - first.x) / (second.x - first.x), 1)) == (70, 9)
    assert last.x + last.width <= 1090 and drawing.most == 4_000
    assert last.height > first.height >= 1
    assert [line.css for line in drawing.lines] == [
        "queueing p50", "queueing p99", "whole p50", "whole p99",
    ]  # fmt: skip
    p50, p99 = (line.dots[0][1] for line in drawing.lines[:2])
    assert 146 <= p99 < p50 <= 240
    assert len(drawing.times) <= 7


def test_delays_of_clocks_that_differ_stay_on_the_drawing() -> None:
    topic = topic_figures(traced=False, hours=1)
    ((hour, found),) = topic.hours
    assert found.queueing is not None
    odd = replace(found, queueing=replace(found.queueing, p50=-40, p99=10**12))
    drawing = draw_hours(replace(topic, hours=[(hour, odd)]))
    assert [line.dots[0][1] for line in drawing.lines] == [240.0, 146.0]
    none = draw_hours(replace(topic, hours=[(hour, replace(found, queueing=None))]))
    assert none.lines == () and none.delays

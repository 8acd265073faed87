"""Made-up figures of analyses, for tests of what is shown of them."""

from __future__ import annotations

from ledgermq.spark_jobs.topics.analysis_figures import Analysis, Delays, MessageFigures, TopicFigures

HOUR = 1_769_860_800_000  # 2026-01-31 12:00 UTC, ms
HOUR_MS = 3_600_000


def figures(messages: int, *, traced: bool = True) -> MessageFigures:
    known = MessageFigures(messages, messages * 700, messages // 2, 3, Delays(4, 9, 120, 4_500))
    if not traced:
        return known
    return MessageFigures(
        known.messages, known.size, known.distinct_keys, known.parked, known.queueing,
        messages, Delays(12, 80, 9_000, 61_000), messages // 10, 1,
    )  # fmt: skip


def topic_figures(name: str = "orders", *, traced: bool = True, hours: int = 3) -> TopicFigures:
    tags = [("new", figures(3_000, traced=traced)), (None, figures(7, traced=traced))]
    found = [(HOUR + number * HOUR_MS, figures(1_000 + number, traced=traced)) for number in range(hours)]
    return TopicFigures(name, figures(3_007, traced=traced), tags, found, tag_count=5, hour_count=hours)


def empty(name: str) -> TopicFigures:
    return TopicFigures(name, MessageFigures(0, 0, 0, 0, None), [], [], 0, 0)


def analysis(*topics: TopicFigures, has_trace_topic: bool = True) -> Analysis:
    return Analysis(
        topics or (topic_figures(),), 0, 0, has_trace_topic, made_ms=HOUR, seconds=2.5,
        software="ledgermq 9.8", command="ledgermq spark analyze '<orders>'",
    )  # fmt: skip

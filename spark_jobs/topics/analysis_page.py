"""Report page of an analysis, which a person opens in a browser.

Owns: the drawing of a topic's hours (messages as bars, delays as lines above one axis of time). Must not:
load anything from a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ledgermq.client.durations import duration

from ..page_templates import human_bytes, page_template, utc_text
from .analysis_figures import Analysis, Delays, MessageFigures, TopicFigures

_HOUR_MS: Final = 3_600_000
_LEFT, _RIGHT = 70.0, 1090.0
_BARS_TOP, _BARS_BOTTOM = 14.0, 120.0
_LINES_TOP, _LINES_BOTTOM = 146.0, 240.0
#: Delays of the axis, ms: a power of ten each.
_DELAYS: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)


@dataclass(frozen=True, slots=True)
class HourBar:
    """The messages of an hour, in the drawing's units."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class DelayLine:
    """One percentile over the hours; `points` as SVG takes them."""

    css: str
    points: str
    dots: tuple[tuple[float, float, str], ...]  # x, y, title


@dataclass(frozen=True, slots=True)
class HoursDrawing:
    """The hours of a topic."""

    bars: tuple[HourBar, ...]
    most: int  # messages of the highest bar
    lines: tuple[DelayLine, ...]
    times: tuple[tuple[float, str], ...]  # x, label
    delays: tuple[tuple[float, str], ...]  # y, label


def render_analysis(analysis: Analysis) -> str:
    """Return the whole page."""
    return page_template("topics/analysis.html.j2").render(
        analysis=analysis,
        names=", ".join(topic.name for topic in analysis.topics),
        drawings={topic.name: draw_hours(topic) for topic in analysis.topics if topic.hours},
        notes=analysis.notes(),
        human_bytes=human_bytes,
        delay=delay_text,
        hour=hour_text,
        begin=utc_text(analysis.from_ms),
        end=utc_text(analysis.to_ms),
        made=utc_text(analysis.made_ms),
    )


def draw_hours(topic: TopicFigures) -> HoursDrawing:
    """Lay out the hours of a topic, of which there is at least one."""
    first, last = topic.hours[0][0], topic.hours[-1][0]
    step = (_RIGHT - _LEFT) / ((last - first) // _HOUR_MS + 1)
    most = max(figures.messages for _, figures in topic.hours)

    def x_of(hour: int) -> float:
        return round(_LEFT + (hour - first) / _HOUR_MS * step, 1)

    bars = []
    for hour, figures in topic.hours:
        height = round(max(1.0, (_BARS_BOTTOM - _BARS_TOP) * figures.messages / max(most, 1)), 1)
        title = f"{hour_text(hour)}: {figures.messages:,} messages, {human_bytes(figures.size)}"
        width = round(min(max(step - 1, 1.0), 60.0), 1)
        bars.append(HourBar(x_of(hour), round(_BARS_BOTTOM - height, 1), width, height, title))
    kinds: list[tuple[str, str, Callable[[MessageFigures], Delays | None]]] = [
        ("queueing", "queueing", lambda figures: figures.queueing),
        ("whole", "end to end", lambda figures: figures.end_to_end),
    ]
    found = [
        (f"{css} {part}", [(hour, getattr(delays, part)) for hour, figures in topic.hours
                           if (delays := of(figures)) is not None], f"{name} {part}")
        for css, name, of in kinds
        for part in ("p50", "p99")
    ]  # fmt: skip
    highest = max((value for _, line, _ in found for _, value in line), default=1)
    scale = [each for each in _DELAYS if each < 10 * highest] or [1]
    top = max(math.log10(scale[-1]), 1.0)

    def y_of(value: float) -> float:
        share = min(max(math.log10(max(value, 1.0)) / top, 0.0), 1.0)
        return round(_LINES_BOTTOM - (_LINES_BOTTOM - _LINES_TOP) * share, 1)

    middle = min(step, 60.0) / 2
    lines = tuple(_line(css, name, values, x_of, y_of, middle) for css, values, name in found if values)
    return HoursDrawing(
        tuple(bars),
        most,
        lines,
        _times(first, last, x_of),
        tuple((y_of(each), delay_text(each)) for each in scale),
    )


def _line(
    css: str,
    name: str,
    values: Sequence[tuple[int, int]],
    x_of: Callable[[int], float],
    y_of: Callable[[float], float],
    middle: float,
) -> DelayLine:
    dots = tuple(
        (round(x_of(hour) + middle, 1), y_of(value), f"{hour_text(hour)}: {name} {delay_text(value)}")
        for hour, value in values
    )
    return DelayLine(css, " ".join(f"{x},{y}" for x, y, _ in dots), dots)


def _times(first: int, last: int, x_of: Callable[[int], float]) -> tuple[tuple[float, str], ...]:
    """Return at most seven hours with their labels."""
    hours = (last - first) // _HOUR_MS + 1
    every = -(-hours // 7)
    return tuple(
        (x_of(first + at * _HOUR_MS), hour_text(first + at * _HOUR_MS)) for at in range(0, hours, every)
    )


def hour_text(hour_ms: int) -> str:
    """Return the begin of an hour: 2026-01-31 12:00."""
    return utc_text(hour_ms)[:16]


def delay_text(value: int | None) -> str:
    """Return a delay as a person reads it; "" where it is not known."""
    return "" if value is None else duration(value)

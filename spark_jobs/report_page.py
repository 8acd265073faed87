"""Report page, which a person opens after a check.

Owns: the drawing of the logs (one row per node over the log's offsets). findings.py has the advice for each
finding. Must not: load anything from a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .findings import Finding, Kind, Severity, advice_for
from .page_templates import human_bytes, page_template, utc_text
from .verdict import DumpVerdict

#: Maximum number of findings in the page's table. The others are in the Parquet file.
MAX_ROWS: Final = 500
_LEFT, _RIGHT, _ROW, _TOP = 92.0, 1080.0, 46.0, 30.0
_THINNEST: Final = 4.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A drawn range of one node's log, in the drawing's units."""

    x: float
    width: float
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class Track:
    """One node's row in the drawing."""

    node: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[Bar, ...]  # places with findings
    commit_x: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """The logs of all nodes over one axis of physical offsets."""

    tracks: tuple[Track, ...]
    ticks: tuple[tuple[float, str], ...]
    agreed_x: float
    height: float


def render_page(verdict: DumpVerdict) -> str:
    """Return the whole page."""
    ok = verdict.exit_code == 0
    return page_template("report.html.j2").render(
        verdict=verdict,
        ok=ok,
        word={0: "CONSISTENT", 1: "INCONSISTENT", 3: "INCOMPLETE"}.get(verdict.exit_code, "UNKNOWN"),
        drawing=draw_logs(verdict),
        findings=verdict.findings[:MAX_ROWS],
        hidden=max(0, len(verdict.findings) - MAX_ROWS),
        advice=advice_for(verdict.findings),
        human_bytes=human_bytes,
        when=utc_text(max((node.dump.log_time_ms for node in verdict.nodes), default=0)),
        digests=digests_text(verdict),
        checked_at=utc_text(verdict.made.at_ms),
    )


def draw_logs(verdict: DumpVerdict) -> Drawing:
    """Lay out one row per node: ranges that agree, are not committed, are damaged or missing."""
    dumps = [node.dump for node in verdict.nodes]
    lo = min(dump.first_offset for dump in dumps)
    hi = max(max(dump.end_offset, dump.commit_offset) for dump in dumps)
    scale = (_RIGHT - _LEFT) / max(1, hi - lo)

    def x_of(offset: int) -> float:
        return round(_LEFT + (min(max(offset, lo), hi) - lo) * scale, 1)

    def bar(start: int, end: int, css: str, title: str) -> Bar:
        width = max(_THINNEST, x_of(end) - x_of(start))
        return Bar(min(x_of(start), _RIGHT - width), round(width, 1), css, title)

    tracks = []
    for row, node in enumerate(verdict.nodes):
        dump = node.dump
        bars = [
            bar(dump.first_offset, dump.commit_offset, "agree", f"committed, to index {dump.commit_index:,}")
        ]
        if dump.end_offset > dump.commit_offset:
            bars.append(bar(dump.commit_offset, dump.end_offset, "open", "not committed"))
        own = [
            finding for finding in verdict.findings if _concerns(finding, dump.node) and finding.offset >= 0
        ]
        for finding in own:
            end = dump.commit_offset if finding.kind is Kind.DIVERGENCE else finding.end_offset
            bars.append(bar(finding.offset, max(end, finding.offset), _css(finding), finding.line()))
        marks = [
            bar(finding.offset, finding.offset, "mark", f"{finding.line()}: {finding.detail}")
            for finding in own
            if finding.severity is Severity.ERROR
        ]
        y = _TOP + row * _ROW
        tracks.append(Track(dump.node, y, tuple(bars), tuple(marks), x_of(dump.commit_offset)))
    agreed = min(dump.commit_offset for dump in dumps)
    return Drawing(tuple(tracks), _ticks(lo, hi, x_of), x_of(agreed), _TOP + len(tracks) * _ROW + 26)


def _concerns(finding: Finding, node: str) -> bool:
    return node in finding.node.split(" and ") or finding.node == "?"


def _css(finding: Finding) -> str:
    if finding.severity is not Severity.ERROR:
        return "open"
    if finding.kind is Kind.DIVERGENCE:
        return "diverged"
    return "missing" if finding.kind in (Kind.MISSING_RANGE, Kind.MISSING_SEGMENT) else "damaged"


def _ticks(lo: int, hi: int, x_of: object) -> tuple[tuple[float, str], ...]:
    """Return about eight round offsets with their labels."""
    assert callable(x_of)
    step = 1 << 12
    while (hi - lo) // step > 8:
        step *= 2
    first = -(-lo // step) * step
    return tuple((x_of(offset), human_bytes(offset)) for offset in range(first, hi + 1, step))


def digests_text(verdict: DumpVerdict) -> str:
    """Return what the nodes' digests stand for, and since when they may be outdated; "" if there are none."""
    times = [each for each in verdict.digests_read.values() if each[1]]
    if not times:
        return ""
    oldest, newest = utc_text(min(a for a, _ in times)), utc_text(max(b for _, b in times))
    return (
        f"Compared by digests of what the nodes read intact from their disks, {oldest} to {newest}. A change "
        "of the bytes since then is found when the node reads them again."
    )

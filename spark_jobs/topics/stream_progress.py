"""Progress of streaming queries, from Spark's listener: rows per second, and how far each query is behind.

    listener = shown_on(console, as_json=False)
    spark.streams.addListener(listener)

Owns: what a query's progress means for a person or a program. Needs Spark; `session` checks that it is there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from rich.console import Console

from ..errors import SparkJobError
from .stream_offsets import decode_positions

#: Queries that ended and are still shown.
MAX_QUERIES: Final = 1000
_PERSON_SECONDS: Final = 10.0
_PROGRAM_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """A query after its newest micro-batch. `lag`: messages that the brokers had and it had not read; None:
    no source of it says so.
    """

    query: str  # its name, or else its id
    batch: int
    rows: int
    rows_per_second: float
    lag: int | None

    @property
    def eta_seconds(self) -> float | None:
        """Return when the lag is read at this rate, if nobody sends more; None: not known."""
        if self.lag is None or (self.lag and not self.rows_per_second):
            return None
        return self.lag / self.rows_per_second if self.lag else 0.0

    def fields(self) -> dict[str, Any]:
        """Return a line for programs."""
        eta = self.eta_seconds
        return {
            "query": self.query,
            "batch": self.batch,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "lag": self.lag,
            "eta_seconds": None if eta is None else round(eta, 1),
        }

    def text(self) -> str:
        """Return a line for a person."""
        text = f"{self.query}   batch {self.batch:,}   {self.rows:,} rows"
        text += f"   {self.rows_per_second:,.0f} rows/s"
        if self.lag is None:
            return text
        eta = self.eta_seconds
        left = f", {round(eta) // 60}:{round(eta) % 60:02d} left" if eta else ""
        return f"{text}   lag {self.lag:,}{left}"


def query_progress(found: Mapping[str, Any]) -> QueryProgress:
    """Return what the JSON document of Spark's progress says."""
    sources = found.get("sources") or []
    lags = [lag for each in sources if (lag := _lag_of(each)) is not None]
    return QueryProgress(
        query=str(found.get("name") or found.get("id")),
        batch=int(found.get("batchId", -1)),
        # The query's own count is missing in Spark Connect.
        rows=sum(int(each.get("numInputRows") or 0) for each in sources),
        rows_per_second=sum(float(each.get("processedRowsPerSecond") or 0) for each in sources),
        lag=sum(lags) if lags else None,
    )


def _lag_of(source: Mapping[str, Any]) -> int | None:
    """Return how many messages one source is behind; None: it is no topic."""
    end, latest = _document(source.get("endOffset")), _document(source.get("latestOffset"))
    try:
        read, there = decode_positions(end), decode_positions(latest)
    except SparkJobError:
        return None
    lag = 0
    for key, part in there.items():
        known = read.get(key)
        before = known.queues if known is not None and known.topic_id == part.topic_id else {}
        lag += sum(max(0, last - before.get(queue, 0)) for queue, last in part.queues.items())
    return lag


def _document(offset: Any) -> Any:
    """Return an offset as an object: Spark shows some as text."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None


class StreamProgress(StreamingQueryListener):
    """Keeps the newest progress of each query, and shows it. Spark calls it in a thread of its own."""

    def __init__(
        self, show: Callable[[QueryProgress], None] = lambda _: None, every_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`show` is called for a query at most once in `every_s`, and when it ends."""
        self._show, self._every_s, self._clock = show, every_s, clock
        self._lock = threading.Lock()
        self._newest: dict[str, QueryProgress] = {}  # by the run of the query
        self._shown: dict[str, tuple[float, QueryProgress]] = {}  # when and what was shown last, by run

    def queries(self) -> list[QueryProgress]:
        """Return the newest progress of each query, in the order of their starts."""
        with self._lock:
            return list(self._newest.values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.take(str(event.progress.runId), json.loads(event.progress.json))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.end(str(event.runId))

    def take(self, run: str, found: Mapping[str, Any]) -> None:
        """Take the progress of a query."""
        newest, now = query_progress(found), self._clock()
        with self._lock:
            self._newest[run] = newest
            while len(self._newest) > MAX_QUERIES:
                self._newest.pop(next(iter(self._newest)))
            before = self._shown.get(run)
            is_due = before is None or now - before[0] >= self._every_s
            if is_due:
                self._shown[run] = now, newest
        if is_due:
            self._show(newest)

    def end(self, run: str) -> None:
        """Show the last progress of a query, unless that was shown."""
        with self._lock:
            newest = self._newest.get(run)
            _, shown = self._shown.pop(run, (0.0, None))
        if newest is not None and newest is not shown:
            self._show(newest)


def shown_on(console: Console, *, as_json: bool = False) -> StreamProgress:
    """Return a listener that prints: a line of JSON a second, or a line for people every ten."""

    def show(progress: QueryProgress) -> None:
        if as_json:
            console.file.write(json.dumps(progress.fields()) + "\n")
            console.file.flush()
        else:
            console.print(progress.text(), markup=False, highlight=False)

    return StreamProgress(show, _PROGRAM_SECONDS if as_json else _PERSON_SECONDS)

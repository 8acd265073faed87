"""Analysis of topics: messages, bytes, keys, delays, redeliveries and parked messages, by tag and hour.

    wanted = AnalysisRequest("127.0.0.1:9876", ("orders",), from_ms=0, to_ms=0, top=20)
    with Analyst(spark, look_at(wanted)) as analyst:
        analyst.topics()       # what a page shows: bounded
        analyst.hour_batches()  # every (topic, tag, hour), as Arrow: for Parquet

Owns: the queries. Spark aggregates in one pass over the topics, for all groupings together; rows of messages
never come to the driver. If there are traces, a second pass without bodies and keys compares what they tell
with the stored messages. Must not: write files, print, import Spark when it is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from ledgermq.client.errors import TopicNotFoundError
from ledgermq.client.sync import Admin
from ledgermq.client.trace.events import TRACE_TOPIC

from .analysis_figures import Delays, MessageFigures, TopicFigures
from .parked_places import ParkedPlaces, as_rows, find_parked
from .read_plan import resolve
from .source_options import parse_source_options
from .topic_look import TopicLook
from .traced_deliveries import COLUMNS, delivery_batches

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

#: Hours of a topic that a page shows, the latest ones: a week.
MAX_HOURS: Final = 168
#: A trace is stored later than the message that it tells of, by another node's clock; ms.
_SLACK_MS: Final = 60_000
#: With fewer traced messages every executor gets all of them, and the messages are not shuffled.
_FEW_TRACED: Final = 100_000
#: Relative standard deviation of the number of keys, and 1 / error of the percentiles' ranks.
KEYS_ERROR: Final = 0.02
_ACCURACY: Final = 1000
_PERCENTILES: Final = (0.5, 0.9, 0.99)
#: Grouping sets over topic, tag and hour -> Spark's grouping_id of each.
_SETS: Final = (("topic", "tag", "hour"), ("topic", "tag"), ("topic", "hour"), ("topic",))
_BY_HOUR, _OF_TAG, _OF_HOUR, _OF_TOPIC = range(4)
_PLACE: Final = ("topic", "queue_group", "queue", "offset")
#: Rows of a batch for Parquet.
_ROWS: Final = 10_000
HOUR_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("tag", pa.string()),  # null: without a tag
        ("hour", pa.timestamp("ms", "UTC")),  # of the store time
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("distinct_keys", pa.int64()),
        ("parked", pa.int64()),
        *((f"queueing_ms_{name}", pa.int64()) for name in ("p50", "p90", "p99", "max")),
        # null where there are no traces
        ("traced", pa.int64()),
        *((f"end_to_end_ms_{name}", pa.int64()) for name in ("p50", "p90", "p99", "max")),
        ("redeliveries", pa.int64()),
        ("given_up", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """What to analyse."""

    nameservers: str
    topics: tuple[str, ...]
    from_ms: int  # stored at or after; 0: from the first message
    to_ms: int  # stored before; 0: up to now
    top: int  # tags per topic in the result for people


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """What the brokers said before Spark was started."""

    request: AnalysisRequest
    ends: Mapping[str, Mapping[str, Mapping[str, int]]]  # topic -> broker group -> queue -> end offset
    parked: ParkedPlaces = field(default_factory=ParkedPlaces)
    has_trace_topic: bool = False


def look_at(request: AnalysisRequest) -> BrokerLook:
    """Ask the brokers which messages there are. Every pass reads the same ones, up to the same offsets.

    Raises: LedgerMQError (a topic does not exist, a broker group does not answer), SparkJobError.
    """
    given = {"nameservers": request.nameservers, "subscribe": ",".join(request.topics)}
    if request.to_ms:
        given["endingTimestamp"] = str(request.to_ms)
    options = parse_source_options(given, streaming=False)
    ends: dict[str, dict[str, dict[str, int]]] = {}
    with TopicLook(options) as look:
        positions = resolve(options.end, look.states(options.end.timestamp, complete=True), "endingOffsets")
    for (topic, broker_group), part in positions.items():
        queues = {str(queue): offset for queue, offset in part.queues.items()}
        ends.setdefault(topic, {})[broker_group] = queues
    with Admin(request.nameservers) as admin:
        parked = find_parked(admin, request.topics)
        try:
            admin.describe_topic(TRACE_TOPIC)
        except TopicNotFoundError:
            return BrokerLook(request, ends, parked)
    return BrokerLook(request, ends, parked, has_trace_topic=True)


class Analyst:
    """Runs the queries of one analysis, and keeps their result in Spark until it is closed."""

    def __init__(self, spark: SparkSession, look: BrokerLook) -> None:
        self.unreadable_traces = 0
        self._spark = spark
        self._look = look
        self._kept: list[DataFrame] = []
        self._figures = self._keep(self._with_traces(self._of_messages()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._kept:
            frame.unpersist()

    def topics(self) -> list[TopicFigures]:
        """Return what a person looks at, in the order of the request."""
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self._ranked().collect():
            found.setdefault((row.topic, row.level), []).append(row)
        return [
            _topic_figures(
                topic, *(found.get((topic, level), []) for level in (_OF_TOPIC, _OF_TAG, _OF_HOUR))
            )
            for topic in self._look.request.topics
        ]

    def _ranked(self) -> DataFrame:
        """Return the totals, tags with most messages and latest hours of each topic, in one query."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        level, rank = f.col("level"), f.col("rank")
        alike = Window.partitionBy("topic", "level")
        order = f.when(level == _OF_HOUR, f.col("hour_ms")).otherwise(f.col("messages"))
        return (
            self._figures.where(level != _BY_HOUR)
            .withColumn("rank", f.row_number().over(alike.orderBy(order.desc(), "tag")))
            .withColumn("alike", f.count(f.lit(1)).over(alike))
            .where(rank <= f.when(level == _OF_HOUR, MAX_HOURS).otherwise(self._look.request.top))
            .orderBy("rank")
        )

    def hour_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the figures of every (topic, tag, hour), sorted, a partition of Spark at a time."""
        from pyspark.sql import functions as f

        rows = self._figures.where(f.col("level") == _BY_HOUR).orderBy("topic", "hour_ms", "tag")
        waiting: list[dict[str, Any]] = []
        for row in rows.toLocalIterator(prefetchPartitions=True):
            waiting.append(_hour_row(row))
            if len(waiting) == _ROWS:
                yield pa.RecordBatch.from_pylist(waiting, HOUR_SCHEMA)
                waiting = []
        if waiting:
            yield pa.RecordBatch.from_pylist(waiting, HOUR_SCHEMA)

    def _keep(self, frame: DataFrame) -> DataFrame:
        """Let Spark keep a result that several queries use."""
        frame = frame.persist()
        self._kept.append(frame)
        return frame

    def _read(self, columns: Sequence[str]) -> DataFrame:
        request = self._look.request
        options = {
            "nameservers": request.nameservers,
            "subscribe": ",".join(request.topics),
            "columns": ",".join(columns),
            "endingOffsets": json.dumps(self._look.ends),
        }
        if request.from_ms:
            options["startingTimestamp"] = str(request.from_ms)
        return self._spark.read.format("ledgermq").options(**options).load()

    def _of_messages(self) -> DataFrame:
        """Return what the messages themselves tell, for all groupings."""
        from pyspark.sql import functions as f

        rows = self._with_parked(
            self._read([*_PLACE, "tag", "keys", "body", "born_time", "store_time"])
        ).select(
            "topic",
            "tag",
            _hour().alias("hour"),
            f.octet_length("body").cast("bigint").alias("size"),
            (f.unix_millis("store_time") - f.unix_millis("born_time")).alias("queued"),
            "parked",
            f.posexplode_outer("keys").alias("position", "key"),
        )
        # A message is as many rows as it has keys, at least one; what is not about keys counts the first one.
        first = f.coalesce(f.col("position"), f.lit(0)) == 0
        queued = f.when(first, f.col("queued"))
        return _grouped(
            rows,
            f.sum(f.when(first, 1).otherwise(0)).alias("messages"),
            f.sum(f.when(first, f.col("size")).otherwise(0)).alias("size"),
            f.approx_count_distinct("key", KEYS_ERROR).alias("distinct_keys"),
            f.sum(f.when(first, f.col("parked")).otherwise(0)).alias("parked"),
            *_delays(queued, "queued"),
        )

    def _with_parked(self, messages: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        rows = as_rows(self._look.parked)
        if not rows:
            return messages.withColumn("parked", f.lit(0))
        kinds = [
            ("topic", pa.string()), ("queue_group", pa.string()), ("queue", pa.int32()),
            ("offset", pa.int64()), ("parked", pa.int64()),
        ]  # fmt: skip
        places = self._spark.createDataFrame(pa.Table.from_pylist(rows, pa.schema(kinds)))
        return messages.join(f.broadcast(places), list(_PLACE), "left").fillna(0, ["parked"])

    def _with_traces(self, figures: DataFrame) -> DataFrame:
        """Add what traces tell: null where there are none."""
        from pyspark.sql import functions as f

        traced = self._traced() if self._look.has_trace_topic else None
        if traced is None:
            unknown = f.lit(None).cast("bigint")
            for name in ("traced", "redeliveries", "given_up", "took_most"):
                figures = figures.withColumn(name, unknown)
            return figures.withColumn("took", f.lit(None).cast("array<bigint>"))
        group = ("level", "topic", "tag", "hour_ms")
        same = [figures[name].eqNullSafe(traced[name]) for name in group]
        return figures.join(traced, same, "left").drop(*(traced[name] for name in group))

    def _traced(self) -> DataFrame | None:
        """Return what traces tell of the messages, for all groupings; None: nothing."""
        from pyspark.sql import functions as f

        request = self._look.request
        options = {"nameservers": request.nameservers, "subscribe": TRACE_TOPIC, "columns": "body"}
        if request.from_ms:
            options["startingTimestamp"] = str(max(request.from_ms - _SLACK_MS, 1))
        bodies = self._spark.read.format("ledgermq").options(**options).load()
        told = bodies.mapInArrow(partial(delivery_batches, frozenset(request.topics)), COLUMNS)
        pairs = self._keep(
            told.groupBy(*_PLACE, "message_id", "consumer_group").agg(
                f.min("done_ms").alias("done_ms"),
                f.sum("redelivered").alias("redelivered"),
                f.sum("given_up").alias("given_up"),
                f.sum("unreadable").alias("unreadable"),
            )
        )
        counts = pairs.select(f.count("topic"), f.coalesce(f.sum("unreadable"), f.lit(0)))
        ((count, self.unreadable_traces),) = counts.collect()
        if not count:
            return None
        # Anyone may write traces: what counts is the message at that place, if it has that id.
        messages = self._read([*_PLACE, "message_id", "tag", "born_time", "store_time"])
        deliveries = pairs.where("topic IS NOT NULL").drop("unreadable")
        deliveries = f.broadcast(deliveries) if count <= _FEW_TRACED else deliveries
        rows = messages.join(deliveries, [*_PLACE, "message_id"]).select(
            "topic",
            "tag",
            _hour().alias("hour"),
            (f.col("done_ms") - f.unix_millis("born_time")).alias("took"),
            "redelivered",
            "given_up",
        )
        return _grouped(
            rows,
            f.count(f.lit(1)).alias("traced"),
            f.sum("redelivered").alias("redeliveries"),
            f.sum("given_up").alias("given_up"),
            *_delays(f.col("took"), "took"),
        )


def _hour() -> Column:
    from pyspark.sql import functions as f

    return f.date_trunc("hour", "store_time")


def _delays(delay: Column, name: str) -> list[Column]:
    from pyspark.sql import functions as f

    found = f.percentile_approx(delay, list(_PERCENTILES), _ACCURACY).alias(name)
    return [found, f.max(delay).alias(f"{name}_most")]


def _grouped(rows: DataFrame, *columns: Column) -> DataFrame:
    """Aggregate for every grouping set. `level` tells them apart: a tag is also null where there is none."""
    from pyspark.sql import functions as f

    grouped = rows.groupingSets([list(each) for each in _SETS], "topic", "tag", "hour")
    return (
        grouped.agg(f.grouping_id().cast("int").alias("level"), *columns)
        .withColumn("hour_ms", f.unix_millis("hour"))
        .drop("hour")
    )


def _topic_figures(
    topic: str, totals: Sequence[Row], tags: Sequence[Row], hours: Sequence[Row]
) -> TopicFigures:
    """Return the figures of a topic from rows that are ordered by rank."""
    return TopicFigures(
        topic,
        _figures(totals[0]) if totals else MessageFigures(0, 0, 0, 0, None),
        [(row.tag, _figures(row)) for row in tags],
        [(row.hour_ms, _figures(row)) for row in reversed(hours)],
        tags[0].alike if tags else 0,
        hours[0].alike if hours else 0,
    )


def _figures(row: Row) -> MessageFigures:
    return MessageFigures(
        row.messages,
        row.size,
        row.distinct_keys,
        row.parked,
        _percentiles(row.queued, row.queued_most),
        row.traced,
        _percentiles(row.took, row.took_most),
        row.redeliveries,
        row.given_up,
    )


def _percentiles(found: Sequence[int] | None, most: int | None) -> Delays | None:
    return Delays(found[0], found[1], found[2], most) if found and most is not None else None


def _hour_row(row: Row) -> dict[str, Any]:
    figures = _figures(row)
    found = {"topic": row.topic, "tag": row.tag, "hour": row.hour_ms, "bytes": figures.size}
    for name in ("messages", "distinct_keys", "parked", "traced", "redeliveries", "given_up"):
        found[name] = getattr(figures, name)
    for name, delays in (("queueing", figures.queueing), ("end_to_end", figures.end_to_end)):
        for part in ("p50", "p90", "p99", "most") if delays is not None else ():
            column = f"{name}_ms_{'max' if part == 'most' else part}"
            found[column] = getattr(delays, part)
    return found

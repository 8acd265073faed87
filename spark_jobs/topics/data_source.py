"""Spark data source `ledgermq`: topics as DataFrames, in batches and in streams. `sink.py` writes them.

    ledgermq.spark_jobs.register(spark)
    spark.read.format("ledgermq").option("subscribe", "orders").load()
    spark.readStream.format("ledgermq").option("subscribe", "orders").load()

Owns: what Spark calls, and the translation of errors. Planning runs on the driver, `read` on executors: the
readers are pickled in between, so they hold plain values, and connections only where they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ledgermq.client.consume.bulk_reader import QueueRange
from ledgermq.client.consume.fetched_records import tag_hashes
from ledgermq.client.errors import LedgerMQError
from ledgermq.client.sync.bulk_reader import BulkReader

from ..errors import SparkJobError
from .clear_errors import with_clear_errors
from .message_columns import COLUMNS, message_batches, record_table
from .pushed_filters import PushedBounds
from .read_plan import QueueState, advance, lose, narrowed, ranges_between, resolve, tasks_of
from .sink import TopicSink
from .source_options import ReadBoundary, SourceOptions, check_columns, parse_source_options, read_columns
from .stream_offsets import Positions, decode_positions, encode_positions
from .topic_look import TopicLook

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

_LATEST = ReadBoundary("latest")


class LedgerMQDataSource(TopicSink):
    """Topics of a cluster, to read and to write. `register` puts it under its name."""

    @with_clear_errors
    def schema(self) -> str:
        return read_columns(self.options)

    @with_clear_errors
    def reader(self, schema: StructType) -> TopicBatchReader:
        return TopicBatchReader(self.options, schema)

    @with_clear_errors
    def streamReader(self, schema: StructType) -> TopicStreamReader:
        return TopicStreamReader(self.options, schema)


class PushingDataSource(LedgerMQDataSource):
    """The same for sessions that push filters down. Without that setting Spark would refuse every read."""

    @with_clear_errors
    def reader(self, schema: StructType) -> PushingBatchReader:
        return PushingBatchReader(self.options, schema)


def register_source(spark: SparkSession) -> None:
    """Make the source known to a session, and let it push filters down to Python sources."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PushingDataSource)


class TopicTask(InputPartition):
    """One task: ranges of queues, read one after the other."""

    def __init__(self, ranges: tuple[QueueRange, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class _TopicReads:
    """Options and schema, and the reading that both kinds of readers do on executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, streaming: bool) -> None:
        self.options: SourceOptions = parse_source_options(options, streaming=streaming)
        self.schema = schema
        _check_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task. Raises: SparkJobError."""
        if not isinstance(partition, TopicTask):
            return  # nothing to read: Spark then passes its own partition
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        try:
            with BulkReader(self.options.nameservers, cluster=self.options.cluster) as reader:
                for wanted in partition.ranges:
                    yield from self._read_range(reader, wanted, schema)
        except LedgerMQError as error:
            raise SparkJobError(str(error)) from None

    def _read_range(
        self, reader: BulkReader, wanted: QueueRange, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        tags = tag_hashes(self.options.tags)
        fail = self.options.fail_on_data_loss
        at = wanted.start
        for fetched in reader.answers(wanted):
            if fetched.begin > at:
                lose(
                    f'offsets {at:,} to {min(fetched.begin, wanted.end):,} of topic "{wanted.topic}" broker '
                    f'group "{wanted.broker_group.name}" queue {wanted.queue_id} were deleted by retention '
                    "while they were being read",
                    fail=fail,
                )
                at = fetched.begin
                continue
            table = record_table(wanted.queue, fetched.sections, fetched.headers, fetched.store_timestamps)
            chosen = (table.offsets >= at) & (table.offsets < wanted.end)
            if tags is not None:
                chosen &= np.isin(table.headers["tag_hash"], tags)
            yield from message_batches(table.chosen(chosen), schema, lenient=not fail)
            at = fetched.next_offset

    def _tasks(self, ranges: Sequence[QueueRange]) -> list[InputPartition]:
        return [TopicTask(each) for each in tasks_of(ranges, self.options.min_partitions)]


class TopicBatchReader(_TopicReads, DataSourceReader):
    """Reads what topics hold between two positions, once."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=False)
        self.bounds = PushedBounds()

    @with_clear_errors
    def partitions(self) -> Sequence[InputPartition]:
        given, bounds = self.options, self.bounds
        with TopicLook(given) as look:
            states = look.states(given.start.timestamp, complete=True)
            start = resolve(given.start, states, "startingOffsets")
            later = states if not given.end.timestamp else look.states(given.end.timestamp, complete=True)
            end = resolve(given.end, later, "endingOffsets")
            lows = _offsets_at(look, bounds.first_time)
            highs = _offsets_at(look, bounds.end_time)
        states = [state for state in states if bounds.wants(state)]
        kept = {_key(state) for state in states}
        ranges = narrowed(
            [
                each
                for each in ranges_between(start, end, later, fail=given.fail_on_data_loss)
                if (each.topic, each.broker_group.name, each.queue_id) in kept
            ],
            lows,
            highs,
        )
        if bounds.first_offset is not None or bounds.end_offset is not None:
            first, last = bounds.first_offset or 0, bounds.end_offset
            ranges = narrowed(
                ranges,
                dict.fromkeys(kept, first),
                dict.fromkeys(kept, last) if last is not None else {},
            )
        return self._tasks(ranges)


class PushingBatchReader(TopicBatchReader):
    """A batch reader that is told the filters of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.bounds.take(filters)
        return filters  # Spark applies all of them again


class TopicStreamReader(_TopicReads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. One object lives on the driver as long as its query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=True)
        self._initial: dict[str, Any] | None = None
        self._cap: Positions | None = None
        self._look: TopicLook | None = None
        self._states: list[QueueState] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_look": None, "_states": [], "_cap": None}

    @property
    def look(self) -> TopicLook:
        if self._look is None:
            self._look = TopicLook(self.options)
        return self._look

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_messages) if self.options.max_messages else ReadAllAvailable()

    @with_clear_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins. Spark asks twice; the answer must be the same."""
        if self._initial is None:
            start = self.options.start
            states = self.look.states(start.timestamp, complete=True)
            self._initial = encode_positions(resolve(start, states, "startingOffsets"))
        return self._initial

    @with_clear_errors
    def prepareForTriggerAvailableNow(self) -> None:
        states = self.look.states(complete=True)
        self._cap = resolve(_LATEST, states, "")

    @with_clear_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = decode_positions(start)
        self._states = self.look.states(complete=False, former=before)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = advance(before, self._states, most, self._cap, fail=self.options.fail_on_data_loss)
        return start if found == before else encode_positions(found)

    @with_clear_errors
    def reportLatestOffset(self) -> dict[str, Any]:
        return encode_positions(resolve(_LATEST, self._states, ""))

    @with_clear_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        before, after = decode_positions(start), decode_positions(end)
        now = self.look.states(complete=False, former=after)
        # A broker group may fall silent between latestOffset and here: the tasks wait for its nodes.
        states = list({_key(state): state for state in (*self._states, *now)}.values())
        if not _covers(states, before, after):
            states = self.look.states(complete=True, former=after)  # says which one is down
        return self._tasks(ranges_between(before, after, states, fail=self.options.fail_on_data_loss))

    def commit(self, end: dict[str, Any]) -> None:
        """Show the progress at the brokers. The checkpoint is what counts, so failures are only logged."""
        if not self.options.consumer_group:
            return
        try:
            self.look.commit(decode_positions(end))
        except (LedgerMQError, SparkJobError) as error:
            logger.warning("progress not committed group=%s: %s", self.options.consumer_group, error)

    def stop(self) -> None:
        if self._look is not None:
            self._look.close()
            self._look = None


def _key(state: QueueState) -> tuple[str, str, int]:
    return (*state.part, state.queue_id)


def _covers(states: Iterable[QueueState], start: Positions, end: Positions) -> bool:
    """Tell whether there is an answer about every broker group in which the positions differ."""
    answered = {state.part for state in states}
    return all(part in answered for part, positions in end.items() if start.get(part) != positions)


def _offsets_at(look: TopicLook, timestamp: int | None) -> dict[tuple[str, str, int], int]:
    """Return the first offset at or after a time, by topic, broker group and queue."""
    if timestamp is None or timestamp <= 0:
        return {}
    return {
        _key(state): state.time_offset
        for state in look.states(timestamp, complete=True)
        if state.time_offset is not None
    }


def _check_schema(schema: StructType) -> None:
    """Refuse a user's schema with other columns or types. Raises: SparkJobError."""
    check_columns(schema.fieldNames())
    for field in schema:
        if field.dataType.simpleString() != COLUMNS[field.name]:
            raise SparkJobError(
                f'column "{field.name}" of a topic is {COLUMNS[field.name]}, not '
                f"{field.dataType.simpleString()}; convert it in the query"
            )

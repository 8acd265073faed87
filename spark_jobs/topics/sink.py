"""The sink of `format("ledgermq")`: streams and batch writes into topics, each row exactly once (D39).

    query = rows.writeStream.format("ledgermq").option("topic", "orders").option("checkpointLocation", DIR)
    rows.write.format("ledgermq").option("topic", "orders").option("writeId", "monday").mode("append").save()

A stream is recognised by the id of its query, which its checkpoint keeps; a batch write by its `writeId`.
Without one, task retries and speculation store nothing twice, and a repeat of the whole write does; the
brokers forget such a write an hour after it ended.
Each task is one attempt at a part of the batch for each topic (`ledgermq.client.batches`).

Owns: the writers that Spark calls. Must not: create a session; executors import this.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ledgermq.client.batches.part_writer import BatchClient, PartWriter, WrittenPart
from ledgermq.client.batches.row_packer import Row
from ledgermq.client.errors import AttemptEndedError
from ledgermq.client.sync.loop_thread import LoopThread, make

from ..errors import SparkJobError
from .clear_errors import with_clear_errors
from .row_columns import rows_by_topic
from .sink_options import SinkOptions, check_append, check_schema, checked_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "ledgermq"
#: Topics that one task may write to: each has a stream of its own.
MAX_TOPICS: Final = 256
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class PartitionWritten(WriterCommitMessage):
    """What a task reports: its parts, one for each topic."""

    parts: tuple[WrittenPart, ...]


class TopicSink(DataSource):
    """The part of the data source that writes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @with_clear_errors
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch write. Raises: SparkJobError."""
        options = checked_options(self.options, streaming=False)
        check_append(overwrite=overwrite)
        check_schema(schema, options)
        return BatchWriter(options, ordered="message_group" in schema.fieldNames())

    @with_clear_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a stream. Raises: SparkJobError."""
        options = checked_options(self.options, streaming=True)
        check_append(overwrite=overwrite)
        check_schema(schema, options)
        return StreamWriter(options, ordered="message_group" in schema.fieldNames())


class BatchWriter(DataSourceArrowWriter):
    """Writes the partitions of a batch write. It is pickled for the executors."""

    def __init__(self, options: SinkOptions, *, ordered: bool) -> None:
        self.options = options
        self.ordered = ordered
        self.job = f"write {options.write_id or uuid.uuid4()}"

    @with_clear_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionWritten:
        """Write one partition. Runs on an executor. Raises: SparkJobError."""
        context = _context()
        return write_partition(
            self.options, iterator, job=self.job, batch=0, partition=context.partitionId(),
            ordered=self.ordered,
        )  # fmt: skip

    @with_clear_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All partitions are written. Runs on the driver. Raises: SparkJobError."""
        finish_batch(self.options, messages, ended_job="" if self.options.write_id else self.job)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the partitions of a stream's batches. It is pickled for the executors."""

    def __init__(self, options: SinkOptions, *, ordered: bool) -> None:
        self.options = options
        self.ordered = ordered

    @with_clear_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartitionWritten:
        """Write one partition of a batch. Runs on an executor. Raises: SparkJobError."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or batch is None:
            raise SparkJobError(
                "this Spark does not tell its tasks the query and the batch, so rows cannot be written "
                "exactly once; use Spark 4.1 or later"
            )
        return write_partition(
            self.options, iterator, job=f"stream {query}", batch=int(batch),
            partition=context.partitionId(), ordered=self.ordered,
        )  # fmt: skip

    @with_clear_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All partitions of a batch are written. Runs on the driver. Raises: SparkJobError."""
        finish_batch(self.options, messages)


def write_partition(
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    *,
    job: str,
    batch: int,
    partition: int,
    ordered: bool,
) -> PartitionWritten:
    """Write the rows of one partition, and return when all are stored. Raises: LedgerMQError.

    It takes every row even if all are stored: Spark's stateful operators complete only then.
    """
    with _Parts(options, job=job, batch=batch, partition=partition, ordered=ordered) as parts:
        try:
            if options.topic:
                parts.begin(options.topic)  # also without rows: the brokers know the job from its start
            for each in batches:
                for topic, rows in rows_by_topic(each, options.topic):
                    parts.write(topic, rows)
            return parts.flush()
        except AttemptEndedError:
            parts.outlast()
            raise


class _Parts:
    """The attempts of one task, one for each topic, on the event loop of another thread.

    The loop goes on while this thread waits for Spark's next rows.
    """

    def __init__(self, options: SinkOptions, **part: Any) -> None:
        self._options = options
        self._part = part | {
            "forgotten_too": not options.fail_on_forgotten_job,
            "one_queue": options.queue_per_partition,
        }
        self._thread = LoopThread()
        self._client = self._thread.call(
            make(
                lambda: BatchClient(options.nameservers, cluster=options.cluster, timeout_s=options.timeout_s)
            )
        )
        self._writers: dict[str, PartWriter] = {}
        self._topics: set[str] = set()  # also those whose attempts could not begin

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.call(self._client.close())
        finally:
            self._thread.stop()

    def begin(self, topic: str) -> PartWriter:
        """Return the attempt for a topic; it begins with the first call. Raises: LedgerMQError."""
        writer = self._writers.get(topic)
        if writer is None:
            if len(self._writers) >= MAX_TOPICS:
                raise SparkJobError(
                    f"a partition has rows for more than {MAX_TOPICS} topics; repartition the rows by topic "
                    "into more partitions"
                )
            self._topics.add(topic)
            writer = self._thread.call(self._client.begin(topic, **self._part))
            self._writers[topic] = writer
        return writer

    def write(self, topic: str, rows: list[bytes] | list[Row]) -> None:
        """Write rows of one topic. Raises: LedgerMQError."""
        writer = self.begin(topic)
        if not rows:
            return
        if isinstance(rows[0], bytes):
            self._thread.call(writer.write_bodies(rows))
        else:
            self._thread.call(writer.write(rows))

    def outlast(self) -> None:
        """Wait while another attempt of this task goes on. Raises: LedgerMQError."""
        place = {name: self._part[name] for name in ("job", "batch", "partition")}
        self._thread.call(self._client.outlast(self._topics, **place))

    def flush(self) -> PartitionWritten:
        """Wait until all rows are stored. Raises: LedgerMQError."""
        return PartitionWritten(tuple(self._thread.call(each.flush()) for each in self._writers.values()))


def finish_batch(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, ended_job: str = ""
) -> None:
    """Declare the parts of a batch complete, on the driver. Raises: RowsDifferError.

    `ended_job`: they are of a job that nobody continues.
    """
    parts = [part for each in messages if isinstance(each, PartitionWritten) for part in each.parts]
    thread = LoopThread()
    try:
        thread.call(_finish(options, parts, ended_job))
    finally:
        thread.stop()


async def _finish(options: SinkOptions, parts: list[WrittenPart], ended_job: str) -> None:
    async with BatchClient(options.nameservers, cluster=options.cluster) as client:
        await client.finish(parts, ended_job=ended_job)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkJobError("a partition is written outside of a Spark task")
    return context

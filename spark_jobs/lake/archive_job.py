"""Archive job: the streaming query that fills a lake, a commit for each micro-batch. On the driver.

Owns: what happens between Spark and the lake, and the lines of progress. Must not: parse a command line.

The lake alone says how far it is. Each run begins with a new checkpoint, in a temporary folder, at the
offsets behind the last commit: a batch without a commit has not happened, and no two logs are compared.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import SparkJobError
from ..topics.read_plan import QueueState
from ..topics.source_options import parse_source_options
from ..topics.stream_offsets import Positions, decode_positions
from ..topics.topic_look import TopicLook
from .compaction_plan import compaction_of, compactions
from .lake_folder import FOLDER, LakeFolder
from .lake_state import LakeCommit, LakeFile, batch_of, decode_file, file_fields
from .parquet_files import LakeDamageError, LakeWriter, merge_files, of_schema
from .resume_point import check_topics, joined_by, resume_point, starting_offsets
from .retention_hold import RetentionHold
from .spark_tasks import clearly, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

_POLL_S = 1


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What a job was told."""

    nameservers: str
    topics: tuple[str, ...]
    root: Path
    every_s: float = 0.0  # between batches; 0: once, until there is nothing more
    max_messages: int = 1_000_000  # of a batch
    fail_on_data_loss: bool = True
    compact: bool = False  # all partitions at the end, also of the current hour

    def look(self) -> TopicLook:
        options = {"nameservers": self.nameservers, "subscribe": ",".join(self.topics)}
        return TopicLook(parse_source_options(options, streaming=True))


@dataclass(frozen=True, slots=True)
class BatchDone:
    """A batch as it is told to the user. `lag`: messages behind, by topic/broker group/queue."""

    number: int  # of the commit
    messages: int
    files: int
    seconds: float
    lag: dict[str, int] = field(default_factory=dict)


#: Gets each batch.
Tell = Callable[[BatchDone], None]


def states_of(options: ArchiveOptions) -> list[QueueState]:
    """Return the queues of the topics. Raises: SparkJobError, LedgerMQError (one does not exist)."""
    with options.look() as look:
        return look.states(complete=True)


def check_before(options: ArchiveOptions) -> None:
    """Check what can be known without Spark. Raises: SparkJobError, LedgerMQError."""
    states = states_of(options)
    if LakeFolder.is_lake(options.root):
        state = LakeFolder(options.root).state
        check_topics(state, options.topics)
        resume_point(state, states, fail=options.fail_on_data_loss)


def archive(spark: SparkSession, options: ArchiveOptions, tell: Tell, hold: RetentionHold | None) -> int:
    """Run the job to its end; return the number of messages that it archived.

    `hold`: advances behind each commit. Raises: SparkJobError, LedgerMQError, errors of Spark.
    """
    now_ms = time.time_ns() // 1_000_000
    states = states_of(options)
    with LakeFolder.for_writing(options.root, new=uuid.uuid4().hex, now_ms=now_ms) as lake:
        check_topics(lake.state, options.topics)
        positions = resume_point(lake.state, states, fail=options.fail_on_data_loss)
        job = _ArchiveJob(lake, options, positions, {state.part for state in states}, hold)
        if hold is not None:
            hold.begin(job.held)
        with tempfile.TemporaryDirectory(prefix="ledgermq-archive-") as checkpoint:
            query = job.start(spark, starting_offsets(positions, states), checkpoint)
            try:
                job.watch(query, tell)
            finally:
                query.stop()
        if options.compact or not options.every_s:
            job.compact(spark, everything=options.compact)
        return job.messages


def compact(spark: SparkSession, root: Path) -> int:
    """Merge the small files of all partitions; return how many files were merged. Raises: as `archive`."""
    with LakeFolder.for_writing(root) as lake:
        return compact_lake(spark, lake, everything=True)


class _ArchiveJob:
    """One query: stores its batches, and tells of them."""

    def __init__(
        self,
        lake: LakeFolder,
        options: ArchiveOptions,
        positions: Positions,
        alive: set[tuple[str, str]],
        hold: RetentionHold | None,
    ) -> None:
        """`alive`: topics and broker groups that the brokers have now."""
        self.messages = 0
        self._lake = lake
        self._options = options
        self._positions = positions
        self._alive = alive
        self._hold = hold
        self._error: BaseException | None = None
        self._commits: dict[int, LakeCommit] = {}  # by number of the batch; not told yet

    @property
    def held(self) -> Positions:
        """The positions before which the brokers may delete."""
        return {part: each for part, each in self._positions.items() if part in self._alive}

    def start(self, spark: SparkSession, offsets: str, checkpoint: str) -> StreamingQuery:
        given = self._options
        source = (
            spark.readStream.format("ledgermq")
            .option("nameservers", given.nameservers)
            .option("subscribe", ",".join(given.topics))
            .option("startingOffsets", offsets)
            .option("maxMessagesPerTrigger", str(given.max_messages))
            .option("failOnDataLoss", str(given.fail_on_data_loss).lower())
            .load()
        )
        writer = source.writeStream.foreachBatch(self._batch).option("checkpointLocation", checkpoint)
        if given.every_s:
            return writer.trigger(processingTime=f"{int(given.every_s * 1000)} milliseconds").start()
        return writer.trigger(availableNow=True).start()

    def _batch(self, rows: DataFrame, number: int) -> None:
        """Store a batch. Spark calls it, on another thread. Raises: SparkJobError."""
        try:
            self._store(rows, number)
            if self._options.every_s:
                self.compact(rows.sparkSession, everything=False)
        except BaseException as error:
            self._error = error
            raise

    def _store(self, rows: DataFrame, number: int) -> None:
        folder = f"{FOLDER}/staging/{uuid.uuid4().hex}"
        root = self._lake.root

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return _written(root, folder, batches)

        answers = rows.mapInArrow(write, "file string").collect()
        found = [decode_file(json.loads(answer.file)) for answer in answers]
        if found:
            self._commit(number, found)
        shutil.rmtree(self._lake.root / folder, ignore_errors=True)

    def _commit(self, number: int, found: Sequence[LakeFile]) -> None:
        parts = {(file.topic, each.broker_group) for file in found for each in file.ranges}
        if not parts <= self._positions.keys():
            with self._options.look() as look:
                states = look.states(complete=False)
            self._positions = joined_by(self._positions, states)
            self._alive |= {state.part for state in states}
        commit = batch_of(
            self._lake.state, self._positions, found, now_ms=time.time_ns() // 1_000_000,
            fail=self._options.fail_on_data_loss,
        )  # fmt: skip
        for gap in commit.gaps:
            logger.warning(
                "deleted before they were archived topic=%s broker_group=%s queue=%d offsets=%d..%d",
                gap.topic, gap.broker_group, gap.queue, gap.first, gap.end - 1,
            )  # fmt: skip
        self._lake.commit(commit)
        self._positions = commit.positions
        self.messages += sum(file.count for file in commit.add)
        self._commits[number] = commit
        if self._hold is not None:
            self._hold.advance(self.held)

    def compact(self, spark: SparkSession, *, everything: bool) -> None:
        """Merge small files. A damaged file is left alone: only `--verify` and restore need it whole."""
        try:
            compact_lake(spark, self._lake, everything=everything)
        except LakeDamageError as error:
            logger.warning("not compacted: %s", error)

    def watch(self, query: StreamingQuery, tell: Tell) -> None:
        """Tell of batches until the query ends. Raises: what ended it."""
        ended = False
        while not ended:
            try:
                ended = bool(query.awaitTermination(_POLL_S))
            except Exception as error:
                own = self._error
                if isinstance(own, SparkJobError):
                    raise own from None
                raise error from None
            self._tell_of(query, tell)
            if self._hold is not None:
                self._hold.repeat()

    def _tell_of(self, query: StreamingQuery, tell: Tell) -> None:
        for each in query.recentProgress:
            progress = json.loads(each.json)
            commit = self._commits.pop(progress["batchId"], None)
            if commit is not None:
                tell(
                    BatchDone(
                        commit.number,
                        sum(file.count for file in commit.add),
                        len(commit.add),
                        max(progress["batchDuration"], 1) / 1000,
                        _lag(progress["sources"][0]),
                    )
                )


def _lag(source: dict[str, Any]) -> dict[str, int]:
    """Return how many messages a queue is behind, by topic/broker group/queue, from a source's progress."""
    try:
        end, latest = (decode_positions(_json(source[name])) for name in ("endOffset", "latestOffset"))
    except (KeyError, ValueError, SparkJobError):
        return {}
    found = {}
    for (topic, group), part in latest.items():
        done = end.get((topic, group))
        for queue, offset in part.queues.items():
            found[f"{topic}/{group}/{queue}"] = max(offset - (done.queues.get(queue, 0) if done else 0), 0)
    return found


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


# --- executors ----------------------------------------------------------------------------------------------


def _written(root: Path, folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the messages of a task, and yield its files as JSON. Raises: SparkJobError."""

    def files() -> Iterator[pa.RecordBatch]:
        writer = LakeWriter(root, folder)
        for batch in batches:
            if batch.num_rows:
                writer.add(of_schema(batch), batch.column("topic"))
        found = [json.dumps(file_fields(file)) for file in writer.finish()]
        yield pa.RecordBatch.from_pydict({"file": pa.array(found, pa.string())})

    yield from clearly(files())


def _merged(root: Path, folder: str, sources: Sequence[tuple[Path, LakeFile]]) -> dict[str, Any]:
    """Merge files. The answer names a damaged one instead of failing the job."""
    try:
        return {"file": file_fields(merge_files(root, sources, folder))}
    except LakeDamageError as error:
        return {"damaged": error.path, "why": error.why}


def compact_lake(spark: SparkSession, lake: LakeFolder, *, everything: bool) -> int:
    """Merge small files; return how many. Nothing is done while a reader is at the lake.

    Raises: LakeDamageError (files that could be merged have been), SparkJobError, errors of Spark.
    """
    groups = compactions(lake.state.files.values(), everything=everything)
    if not groups:
        return 0
    folder = f"{FOLDER}/staging/{uuid.uuid4().hex}"
    sources = [[(lake.where(file), file) for file in group] for group in groups]
    answers = run_tasks(spark, sources, partial(_merged, lake.root, folder))
    merged = {
        group: decode_file(answer["file"])
        for group, answer in zip(groups, answers, strict=True)
        if "file" in answer
    }
    done = 0
    with lake.without_readers() as alone:
        if alone and merged:
            lake.commit(compaction_of(lake.state, merged, now_ms=time.time_ns() // 1_000_000))
            done = sum(map(len, merged))
        elif merged:
            logger.warning("not compacted: the lake is being read")
    shutil.rmtree(lake.root / folder, ignore_errors=True)
    for answer in answers:
        if "damaged" in answer:
            raise LakeDamageError(answer["damaged"], answer["why"])
    return done

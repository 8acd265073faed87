"""Parquet files of a lake: written from batches of messages, read back, merged. Runs on executors.

Owns: columns and settings of the files, bounds of memory, and the ranges of what was written.
Must not: commit; decide which files are merged.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import SparkJobError
from .lake_state import LakeFile, LakeRange
from .row_checksums import UInt64s, row_checksums, total

_TIME: Final = pa.timestamp("us", "UTC")
#: Columns of a file: those of a topic, whose name is that of the partition.
SCHEMA: Final = pa.schema(
    [
        ("queue_group", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("tag", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("born_time", _TIME),
        ("store_time", _TIME),
        ("message_group", pa.string()),
    ]
)
_HOUR_US: Final = 3_600_000_000
#: Bytes and rows of a row group, about; and files that a task has open at once.
_GROUP_BYTES: Final = 32 << 20
_GROUP_ROWS: Final = 1 << 17
_OPEN_FILES: Final = 16


class LakeDamageError(SparkJobError):
    """A file of the lake is not what was committed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"the file {path} of the lake is damaged: {why}. Take it from a backup of the lake; "
            "`ledgermq spark archive --verify` checks the others"
        )
        self.path = path
        self.why = why


def of_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a file, from a batch that Spark or a reader of topics made."""
    columns = [batch.column(field.name) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(
        [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ],
        schema=SCHEMA,
    )


# --- writing ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _OpenFile:
    topic: str
    hour: int
    path: Path
    writer: pq.ParquetWriter
    ranges: list[LakeRange] = field(default_factory=list)
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0  # of `waiting`
    size: int = 0

    def add(self, batch: pa.RecordBatch, found: LakeRange) -> None:
        last = next((n for n in reversed(range(len(self.ranges))) if self.ranges[n].queue == found.queue
                     and self.ranges[n].broker_group == found.broker_group), -1)  # fmt: skip
        if last >= 0 and found.follows(self.ranges[last]):
            self.ranges[last] = self.ranges[last].joined(found)
        else:
            self.ranges.append(found)
        self.waiting.append(batch)
        self.rows += batch.num_rows
        self.size += batch.nbytes
        if self.rows >= _GROUP_ROWS or self.size >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.Table.from_batches(self.waiting, SCHEMA), row_group_size=self.rows)
        self.waiting, self.rows, self.size = [], 0, 0


class LakeWriter:
    """Writes messages into files of a staging folder, one for each topic and hour."""

    def __init__(self, root: Path, folder: str) -> None:
        """`folder`: for the files, below the lake `root`."""
        self._root = root
        self._folder = folder
        self._open: dict[tuple[str, int], _OpenFile] = {}
        self._done: list[LakeFile] = []
        (root / folder).mkdir(parents=True, exist_ok=True)

    def add(self, batch: pa.RecordBatch, topics: pa.Array) -> None:
        """Add messages. `batch` has the columns of a file; `topics`: of each row. Raises: OSError."""
        checksums = row_checksums(batch)
        times = np.asarray(batch.column("store_time").cast(pa.int64()))
        hours = np.maximum(times, 0) // _HOUR_US
        names = topics.dictionary_encode().indices
        for first, end in _runs(batch, np.asarray(names), hours):
            offset = batch.column("offset")[first].as_py()
            found = LakeRange(
                batch.column("queue_group")[first].as_py(), batch.column("queue")[first].as_py(),
                offset, offset + end - first, total(checksums[first:end]),
            )  # fmt: skip
            file = self._file(topics[first].as_py(), int(hours[first]))
            file.add(batch.slice(first, end - first), found)
        while sum(file.size for file in self._open.values()) > 2 * _GROUP_BYTES:
            max(self._open.values(), key=lambda file: file.size).flush()

    def _file(self, topic: str, hour: int) -> _OpenFile:
        file = self._open.get((topic, hour))
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish(self._open.pop(min(self._open, key=lambda key: key[1])))
            path = self._root / self._folder / f"{uuid.uuid4().hex}.part"
            writer = pq.ParquetWriter(
                path, SCHEMA, compression="zstd", write_page_checksum=True,
                use_dictionary=["queue_group", "queue", "tag", "message_group"],
            )  # fmt: skip
            file = self._open[topic, hour] = _OpenFile(topic, hour, path, writer)
        return file

    def _finish(self, file: _OpenFile) -> None:
        file.flush()
        file.writer.close()
        with file.path.open("rb+") as written:
            os.fsync(written.fileno())
            size = os.fstat(written.fileno()).st_size
        staged = file.path.relative_to(self._root).as_posix()
        self._done.append(LakeFile("", file.topic, file.hour, size, tuple(file.ranges), staged))

    def finish(self) -> list[LakeFile]:
        """Close and sync all files; return them. Raises: OSError."""
        while self._open:
            self._finish(self._open.popitem()[1])
        return self._done


def _runs(batch: pa.RecordBatch, *others: Any) -> Iterator[tuple[int, int]]:
    """Yield [first, end) of rows whose offsets follow one another in one queue, with equal `others`."""
    if not batch.num_rows:
        return
    queues, groups = batch.column("queue"), batch.column("queue_group").dictionary_encode().indices
    change = np.diff(np.asarray(batch.column("offset"))) != 1
    for column in (np.asarray(queues), np.asarray(groups), *others):
        change |= np.diff(column) != 0
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), batch.num_rows]
    yield from pairwise(edges)


# --- reading ------------------------------------------------------------------------------------------------


def read_file(path: Path, file: LakeFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in its order. Raises: LakeDamageError."""
    try:
        size = path.stat().st_size
        if size != file.size:
            raise LakeDamageError(file.path, f"it has {size:,} bytes instead of {file.size:,}")
        with pq.ParquetFile(path, page_checksum_verification=True) as opened:
            if not opened.schema_arrow.equals(SCHEMA):
                raise LakeDamageError(file.path, "it has other columns")
            for number in range(opened.num_row_groups):
                for batch in opened.read_row_group(number).to_batches(_GROUP_ROWS):
                    batch.validate(full=True)
                    yield batch
    except FileNotFoundError:
        raise LakeDamageError(file.path, "it is gone") from None
    except (OSError, pa.ArrowException, ValueError) as error:
        raise LakeDamageError(file.path, " ".join(str(error).split())) from None


def named(part: LakeRange) -> str:
    """Return a range for a sentence."""
    return f"offsets {part.first:,} to {part.end:,} of broker group {part.broker_group} queue {part.queue}"


class RangeSums:
    """Counts and checksums of ranges, over batches in any order."""

    def __init__(self, ranges: Sequence[LakeRange]) -> None:
        self._ranges = ranges
        self.counts, self.sums = [0] * len(ranges), [0] * len(ranges)
        self.others = 0  # rows of no range

    def add(self, batch: pa.RecordBatch, checksums: UInt64s | None = None) -> None:
        """Count the rows of a batch. `checksums`: of its rows, if they are known."""
        checksums = row_checksums(batch) if checksums is None else checksums
        offsets, queues = np.asarray(batch.column("offset")), np.asarray(batch.column("queue"))
        groups = batch.column("queue_group").dictionary_encode()
        names, which = groups.dictionary.to_pylist(), np.asarray(groups.indices)
        self.others += batch.num_rows
        for place, each in enumerate(self._ranges):
            if each.broker_group not in names:
                continue
            rows = (which == names.index(each.broker_group)) & (queues == each.queue)
            rows &= (offsets >= each.first) & (offsets < each.end)
            count = int(rows.sum())
            self.others -= count
            self.counts[place] += count
            self.sums[place] = (self.sums[place] + total(checksums[rows])) & ((1 << 64) - 1)

    def problem(self) -> str:
        """Return what is wrong with the whole ranges, or ""."""
        for each, count, checksum in zip(self._ranges, self.counts, self.sums, strict=True):
            if count != each.count:
                return f"it has {count:,} of the {each.count:,} messages at {named(each)}"
            if checksum != each.checksum:
                return f"messages at {named(each)} are others than were archived"
        return f"it has {self.others:,} messages more than were archived" if self.others else ""


def checked_file(path: Path, file: LakeFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, and check them. Raises: LakeDamageError, also behind the last row."""
    sums = RangeSums(file.ranges)
    for batch in read_file(path, file):
        sums.add(batch)
        yield batch
    if problem := sums.problem():
        raise LakeDamageError(file.path, problem)


def merge_files(root: Path, sources: Sequence[tuple[Path, LakeFile]], folder: str) -> LakeFile:
    """Write the rows of several files of one partition into one of the staging folder `folder`; return it.

    Raises: LakeDamageError, OSError.
    """
    writer = LakeWriter(root, folder)
    topic = pa.scalar(sources[0][1].topic)
    for path, file in sources:
        for batch in checked_file(path, file):
            writer.add(batch, pa.repeat(topic, batch.num_rows))
    (merged,) = writer.finish()
    return merged

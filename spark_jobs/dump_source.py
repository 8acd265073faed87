"""Spark data source `ledgermqdump`: the logs of dumped nodes as DataFrames.

    spark.dataSource.register(LedgerMQDump)
    spark.read.format("ledgermqdump").option("rows", "messages").load("build/demo/dumps")

Options: `rows` = entries (default) | messages | scan; `body` = true | false (messages: without the bodies,
because Spark cannot prune them itself); `slice_bytes` (default 128 MiB, one task each); `nodes` =
comma-separated node ids; `files` = log (default) | fetched | all, of digest dumps; `ranges` = JSON list of
[lo, hi) offsets: only slices that touch one of them are read.

Owns: cutting the dumps into tasks, and the schemas. Executors read files below the given path, so on a
cluster it must be a shared folder. Arrow batches only; no log row is ever a Python object.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from .dump_folder import DEFAULT_SLICE_SIZE, Slice, find_dumps, slices_of
from .dump_rows import SCHEMAS, read_rows
from .errors import SparkJobError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "ledgermqdump"


class SlicePartition(InputPartition):
    """One task: a slice of one node's log."""

    def __init__(self, part: Slice) -> None:
        super().__init__(part)
        self.part = part


class LedgerMQDump(DataSource):
    """Log dumps of one broker group."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMAS[_rows_option(self.options)]

    def reader(self, schema: StructType) -> DumpReader:
        return DumpReader(self.options, schema)


class DumpReader(DataSourceReader):
    """Plans on the driver, reads on the executors.

    It is pickled in between, so it holds only plain values.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.rows = _rows_option(options)
        self.with_body = options.get("body", "true").lower() != "false"
        self.schema = schema
        self.slice_size = int(options.get("slice_bytes", DEFAULT_SLICE_SIZE))
        self.ranges: list[tuple[int, int]] | None = None
        if "ranges" in options:
            self.ranges = [(int(lo), int(hi)) for lo, hi in json.loads(options["ranges"])]
        path = options.get("path")
        if not path:
            raise SparkJobError("no folder was given. Write: spark.read.format('ledgermqdump').load(FOLDER)")
        self.folder = path.removeprefix("file://")
        self.files = options.get("files", "log")
        if self.files not in ("log", "fetched", "all"):
            raise SparkJobError(f'option files="{self.files}" is not known; write one of log, fetched, all')
        self.nodes = [name for name in options.get("nodes", "").split(",") if name]

    def partitions(self) -> Sequence[InputPartition]:
        dumps = find_dumps(Path(self.folder))
        chosen = [dump for dump in dumps if not self.nodes or dump.node in self.nodes]
        return [
            SlicePartition(part)
            for dump in chosen
            for part in slices_of(dump, self.slice_size, self.ranges, self.files)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            return  # no slices at all: Spark then passes its own partition
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        try:
            yield from read_rows(
                partition.part, self.rows, schema, with_body=self.with_body, ranges=self.ranges
            )
        except FileNotFoundError as error:
            raise SparkJobError(
                f"{error.filename} is not there on {socket.gethostname()}. On a cluster the dumps must be in "
                "a folder that all executors see under the same path"
            ) from None


def _rows_option(options: Mapping[str, str]) -> str:
    rows = options.get("rows", "entries")
    if rows not in SCHEMAS:
        raise SparkJobError(f'option rows="{rows}" is not known; write one of {", ".join(SCHEMAS)}')
    return rows

"""Messages, files and lakes for tests, without Spark and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.spark_jobs.lake.lake_folder import FOLDER, LakeDisk, LakeFolder
from ledgermq.spark_jobs.lake.lake_state import LakeFile, batch_of
from ledgermq.spark_jobs.lake.parquet_files import SCHEMA, LakeWriter, read_file
from ledgermq.spark_jobs.topics.read_plan import QueueState
from ledgermq.spark_jobs.topics.stream_offsets import PartPositions, Positions

HOUR_MS = 3_600_000
#: An hour of November 2026.
BEGIN_MS = 1_795_000_000_000 // HOUR_MS * HOUR_MS
POSITIONS: Positions = {("orders", "g0"): PartPositions(7, 1, {0: 0, 1: 0})}


def messages(
    first: int, end: int, *, queue: int = 0, at_ms: int = BEGIN_MS, group: str = "g0"
) -> pa.RecordBatch:
    """Return messages [first, end) of a queue, one each second."""
    numbers = range(first, end)
    columns: dict[str, Any] = {
        "queue_group": [group] * len(numbers),
        "queue": [queue] * len(numbers),
        "offset": list(numbers),
        "message_id": [f"01{queue:02}{number:030}" for number in numbers],
        "keys": [[f"k{number}"] if number % 3 else [] for number in numbers],
        "tag": [None if number % 4 == 0 else f"t{number % 4}" for number in numbers],
        "properties": [[("a", str(number)), ("b", "")] if number % 5 == 0 else [] for number in numbers],
        "body": [f"body {queue}/{number}".encode() for number in numbers],
        "born_time": [(at_ms + number * 1000) * 1000 for number in numbers],
        "store_time": [(at_ms + number * 1000) * 1000 for number in numbers],
        "message_group": [f"m{number % 2}" if number % 7 == 0 else None for number in numbers],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )


def staged(root: Path, batches: Iterable[pa.RecordBatch], *, topic: str = "orders") -> list[LakeFile]:
    """Write files as a task does."""
    writer = LakeWriter(root, f"{FOLDER}/staging/task")
    for batch in batches:
        writer.add(batch, pa.repeat(topic, batch.num_rows))
    return writer.finish()


def new_lake(root: Path, disk: LakeDisk | None = None) -> LakeFolder:
    return LakeFolder.for_writing(root, new="a" * 32, disk=disk)


def add_batch(lake: LakeFolder, *batches: pa.RecordBatch, fail: bool = True) -> None:
    """Archive these messages of topic "orders", as a batch."""
    positions = lake.state.positions or POSITIONS
    lake.commit(batch_of(lake.state, positions, staged(lake.root, batches), now_ms=5, fail=fail))


def rows(lake: LakeFolder) -> list[tuple[int, int, bytes]]:
    """Return (queue, offset, body) of every message that a lake has, sorted."""
    found = []
    for file in lake.state.files.values():
        for batch in read_file(lake.where(file), file):
            columns = (batch.column(name).to_pylist() for name in ("queue", "offset", "body"))
            found += list(zip(*columns, strict=True))
    return sorted(found)


def plain_rows(root: Path) -> list[tuple[int, int, bytes]]:
    """Return what a program sees that reads all Parquet files and knows no manifest."""
    found = []
    for path in root.glob("topic=*/**/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        columns = (table.column(name).to_pylist() for name in ("queue", "offset", "body"))
        found += list(zip(*columns, strict=True))
    return sorted(found)


def state_of(
    queue: int, begin: int, end: int, *, topic_id: int = 1, group_id: int = 7, former: Sequence[int] = (),
    topic: str = "orders",
) -> QueueState:  # fmt: skip
    group = BrokerGroup("c", "g0", 1, "n1", (), True, group_id=group_id, former_group_ids=tuple(former))
    return QueueState(topic, group, topic_id, queue, begin, end)

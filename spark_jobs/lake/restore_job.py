"""Restore job: a range of a lake, written into a topic through the sink. On the driver.

Owns: which messages, in which writes, and to which queues they go. Must not: write to brokers itself.

Every queue of the lake is one partition of a write, and a partition goes to one queue: so order is kept. A
write takes 1,000,000 offsets of each queue; the next one begins when it is complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.cluster.topic_route import TopicRoute
from ledgermq.client.errors import did_you_mean, similar_names

from ..errors import SparkJobError
from .lake_folder import LakeFolder
from .lake_state import LakeFile, LakeRange
from .parquet_files import LakeDamageError, checked_file, read_file
from .spark_tasks import frame_of_tasks, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Columns that a restored message keeps.
COLUMNS: Final = ("body", "keys", "tag", "properties", "message_group")
_SCHEMA: Final = (
    "body binary, keys array<string>, tag string, properties map<string,string>, message_group string"
)
#: Offsets of each queue in one write. The sink keeps what a repeated write has to leave out in memory.
WRITE_OFFSETS: Final = 1_000_000
_HOUR_MS: Final = 3_600_000
_LAST_MS: Final = 253_402_300_799_999

#: (broker group, queue id) → [first, end)
QueueOffsets = Mapping[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What is to be restored, and where."""

    nameservers: str
    topic: str
    into: str
    first_ms: int = 0  # store time
    end_ms: int = _LAST_MS + 1
    offsets: QueueOffsets | None = None  # only these queues and offsets
    write_id: str = ""  # "": made of what is restored


@dataclass(frozen=True, slots=True)
class QueuePart:
    """A part of a file, and where the file is."""

    path: str
    file: LakeFile
    part: LakeRange


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore writes. `queues`: of the lake, in their order; each is a partition."""

    queues: tuple[tuple[str, int], ...]
    parts: tuple[tuple[QueuePart, ...], ...]  # of each queue, by offset
    write_id: str
    first_us: int
    end_us: int

    def windows(self) -> list[tuple[int, int]]:
        """Return the offsets [first, end) of each write."""
        wanted = sorted(
            {
                number
                for parts in self.parts
                for each in parts
                for number in range(
                    each.part.first // WRITE_OFFSETS, (each.part.end - 1) // WRITE_OFFSETS + 1
                )
            }
        )
        return [(number * WRITE_OFFSETS, (number + 1) * WRITE_OFFSETS) for number in wanted]


def parse_offsets(text: str) -> QueueOffsets:
    """Decode `{"g0": {"0": [10, 500]}}`. Raises: SparkJobError."""
    try:
        found = {
            (group, int(queue)): (int(first), int(end))
            for group, queues in json.loads(text).items()
            for queue, (first, end) in queues.items()
        }
        if not found or not all(0 <= first < end for first, end in found.values()):
            raise ValueError(text)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise SparkJobError(
            f"--offsets {text} is not valid; it takes the first offset of each queue and the one behind the "
            'last: {"g0": {"0": [10, 500]}}'
        ) from None
    return found


def plan_restore(lake: LakeFolder, options: RestoreOptions) -> RestorePlan:
    """Return what is to be written. Raises: SparkJobError (there is nothing)."""
    files = lake.state.files_of(options.topic)
    queues = sorted({(each.broker_group, each.queue) for file in files for each in file.ranges})
    for group, number in options.offsets or {}:
        if (group, number) not in queues:
            names = [f"{name}/{each}" for name, each in queues]
            question = did_you_mean(similar_names(f"{group}/{number}", names))
            raise SparkJobError(
                f"--offsets names queue {number} of broker group {group}, which the lake does not have. "
                f"{question or 'It has: ' + ', '.join(names)}"
            )
    found: dict[tuple[str, int], list[QueuePart]] = {queue: [] for queue in queues}
    first_hour, last_hour = options.first_ms // _HOUR_MS, (options.end_ms - 1) // _HOUR_MS
    for file in files:
        if not first_hour <= file.hour <= last_hour:
            continue
        for each in file.ranges:
            key = each.broker_group, each.queue
            low, high = options.offsets.get(key, (0, 0)) if options.offsets else (each.first, each.end)
            low, high = max(low, each.first), min(high, each.end)
            if low < high:
                part = replace(each, first=low, end=high)
                found[key].append(QueuePart(str(lake.where(file)), file, part))
    parts = tuple(tuple(sorted(each, key=lambda part: part.part.first)) for each in found.values())
    if not any(parts):
        raise SparkJobError(f'the lake has no message of topic "{options.topic}" in this range')
    what = [lake.state.lake, options.topic, options.into, options.first_ms, options.end_ms]
    what += [[each.part.first, each.part.end] for queue in parts for each in _merged(queue)]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24]
    return RestorePlan(
        tuple(queues), parts, options.write_id or f"restore-{digest}", options.first_ms * 1000,
        options.end_ms * 1000,
    )  # fmt: skip


def _merged(parts: Sequence[QueuePart]) -> Iterator[QueuePart]:
    """Yield the ranges of a queue without the edges of files, which a compaction changes."""
    last: QueuePart | None = None
    for each in parts:
        if last is not None and each.part.first == last.part.end:
            last = replace(last, part=replace(last.part, end=each.part.end))
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def queue_mapping(plan: RestorePlan, route: TopicRoute) -> list[tuple[str, str]]:
    """Return (queue of the lake, queue that it is restored into) of every queue that has messages.

    As the sink chooses, while all broker groups take messages.
    """
    able = [part for part in route.parts if part.writable and part.group.writable and not part.group.draining]
    slots = [f"{part.group.name}/{number}" for part in able for number in range(part.queue_count)]
    if not slots:
        raise SparkJobError(f'no broker group takes messages of topic "{route.topic}" now. Try again')
    return [
        (f"{group}/{queue}", slots[place % len(slots)])
        for place, (group, queue) in enumerate(plan.queues)
        if plan.parts[place]
    ]


def restore(
    spark: SparkSession, plan: RestorePlan, options: RestoreOptions, tell: Callable[[int, int], None]
) -> int:
    """Check the files, then write the messages; return how many. `tell`: gets (writes done, all).

    Raises: SparkJobError, errors of Spark.
    """
    parts: dict[str, list[QueuePart]] = {}
    for each in (each for queue in plan.parts for each in queue):
        parts.setdefault(each.path, []).append(each)
    count = 0
    for answer in run_tasks(spark, list(parts.values()), partial(_checked, plan)):
        if "damaged" in answer:
            raise LakeDamageError(answer["damaged"], answer["why"])
        count += answer["messages"]
    windows = plan.windows()
    for done, (low, high) in enumerate(windows):
        frame = frame_of_tasks(spark, len(plan.queues), partial(_rows_of, plan, low, high), _SCHEMA)
        (
            frame.write.format("ledgermq")
            .option("nameservers", options.nameservers)
            .option("topic", options.into)
            .option("writeId", f"{plan.write_id}/{low}")
            .option("queuePerPartition", "true")
            .mode("append")
            .save()
        )
        tell(done + 1, len(windows))
    return count


# --- executors ----------------------------------------------------------------------------------------------


def _checked(plan: RestorePlan, parts: Sequence[QueuePart]) -> dict[str, Any]:
    """Check a whole file, and count the messages of these parts. The answer names a damaged file."""
    file, count = parts[0].file, 0
    try:
        for batch in checked_file(Path(parts[0].path), file):
            count += sum(int(_chosen(plan, batch, each.part).sum()) for each in parts)
    except LakeDamageError as error:
        return {"damaged": error.path, "why": error.why}
    return {"messages": count}


def _rows_of(plan: RestorePlan, low: int, high: int, queue: int) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a queue with offsets [low, high), in their order. Raises: LakeDamageError."""
    for each in plan.parts[queue]:
        first, end = max(each.part.first, low), min(each.part.end, high)
        if first >= end:
            continue
        part = replace(each.part, first=first, end=end)
        for batch in read_file(Path(each.path), each.file):
            rows = _chosen(plan, batch, part)
            if rows.any():
                yield batch.select(list(COLUMNS)).filter(pa.array(rows))


def _chosen(plan: RestorePlan, batch: pa.RecordBatch, part: LakeRange) -> npt.NDArray[np.bool_]:
    """Tell for each row whether it is of this part, and of the time that is restored."""
    offsets, times = (np.asarray(batch.column(name).cast(pa.int64())) for name in ("offset", "store_time"))
    groups = np.asarray(pc.equal(batch.column("queue_group"), part.broker_group))
    rows: npt.NDArray[np.bool_] = groups & (np.asarray(batch.column("queue")) == part.queue)
    rows &= (offsets >= part.first) & (offsets < part.end)
    return rows & (times >= plan.first_us) & (times < plan.end_us)

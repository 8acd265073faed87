"""Spark tasks: work on executors whose input and answers are objects of ours, not rows. On the driver.

Owns: how work is spread over tasks, and how errors of executors come back. Must not: know the work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from ledgermq.client.errors import LedgerMQError

from ..errors import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
#: Tasks get all input with the code, so there are not too many of them.
_TASKS_MAX: Final = 128

#: Settings of sessions in which bodies of up to 4 MiB go from Java to Python.
ARROW_SETTINGS: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20)}


def run_tasks(spark: SparkSession, items: Sequence[T], work: Callable[[T], Any]) -> list[Any]:
    """Return what `work` returns for each item, in their order; it must be JSON.

    Raises: an error of Spark with a SparkJobError in its text.
    """
    tasks = min(len(items), _TASKS_MAX)
    if not tasks:
        return []

    def answers(number: int) -> Iterator[pa.RecordBatch]:
        found = [[place, json.dumps(work(items[place]))] for place in range(number, len(items), tasks)]
        yield pa.RecordBatch.from_pydict(
            {
                "place": pa.array([place for place, _ in found], pa.int64()),
                "answer": [text for _, text in found],
            }
        )

    rows = frame_of_tasks(spark, tasks, answers, "place bigint, answer string").collect()
    return [json.loads(row.answer) for row in sorted(rows, key=lambda row: int(row.place))]


def frame_of_tasks(
    spark: SparkSession, tasks: int, rows: Callable[[int], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Return a frame with `tasks` partitions; partition n has what `rows(n)` yields there."""

    def partition(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                yield from clearly(rows(number))

    return spark.range(0, tasks, 1, tasks).mapInArrow(partition, schema)


def clearly(found: Iterator[T]) -> Iterator[T]:
    """Yield what an executor finds. Raises: SparkJobError, which the driver knows in Spark's text."""
    try:
        yield from found
    except (LedgerMQError, SparkJobError) as error:
        raise SparkJobError(str(error)) from None
    except OSError as error:
        raise SparkJobError(f"an executor cannot use the lake: {error}") from None

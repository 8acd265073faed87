"""Arrow columns of the sink's rows as lists of bodies and rows, by topic.

Owns: the translation. Columns are converted as a whole; a row object is made only for rows that have more
than a body. Must not: import Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ledgermq.client.batches.row_packer import Row
from ledgermq.client.errors import InvalidMessageError

#: Rows that are converted together.
_AT_ONCE: Final = 4096


def rows_by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, list[bytes] | list[Row]]]:
    """Yield the rows of each topic in order: bodies where there is nothing else, else rows.

    `topic`: of the rows that name none. Raises: InvalidMessageError.
    """
    for start in range(0, batch.num_rows, _AT_ONCE):
        yield from _some_by_topic(batch.slice(start, _AT_ONCE), topic)


def _some_by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, list[bytes] | list[Row]]]:
    columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    bodies = bodies_of(columns.pop("body"))
    topics = columns.pop("topic", None)
    rows: list[Any] = bodies if not columns else _rows(bodies, columns)
    if topics is None:
        yield topic, rows
        return
    places: dict[str, list[int]] = {}
    for place, name in enumerate(topics.to_pylist()):
        places.setdefault(name or topic, []).append(place)
    for name, found in places.items():
        if not name:
            raise InvalidMessageError(
                "topic", 'a row has none; set option("topic", "orders") for such rows, or filter them out'
            )
        yield name, [rows[place] for place in found]


def bodies_of(column: pa.Array) -> list[bytes]:
    """Return the values of a binary or string column. Raises: InvalidMessageError (one is null)."""
    if column.null_count:
        raise InvalidMessageError("body", "a row has none (null); filter such rows out")
    if not len(column):
        return []
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    if not (wide or pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise InvalidMessageError("body", f"the column is of type {column.type}; binary or string is wanted")
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[column.offset :][: len(column) + 1]
    first, last = int(ends[0]), int(ends[-1])
    raw = data.slice(first, last - first).to_pybytes() if data is not None else b""
    at = (ends - first).tolist()
    return [raw[start:end] for start, end in pairwise(at)]


def _rows(bodies: list[bytes], columns: dict[str, pa.Array]) -> list[Row]:
    nothing: list[Any] = [None] * len(bodies)
    lists = {name: column.to_pylist() for name, column in columns.items()}
    keys = lists.get("keys") or [None if key is None else [key] for key in lists.get("key", nothing)]
    return [
        Row(body, tag or "", named or (), dict(pairs) if pairs else None, message_group or "")
        for body, tag, named, pairs, message_group in zip(
            bodies,
            lists.get("tag", nothing),
            keys,
            lists.get("properties", nothing),
            lists.get("message_group", nothing),
            strict=True,
        )
    ]

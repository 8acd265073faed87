"""Broker ranges: messages as brokers have them, and their comparison with a file of the lake. On executors.

Owns: what is compared, and ranges that retention takes meanwhile. Must not: plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ledgermq.client.consume.bulk_reader import QueueRange
from ledgermq.client.sync.bulk_reader import BulkReader

from ..topics.message_columns import message_batches, record_table
from .lake_state import LakeFile, LakeRange
from .parquet_files import SCHEMA, LakeDamageError, RangeSums, named, read_file
from .row_checksums import row_checksums

#: Times that retention may take a part of a range while it is compared.
_TRIES: Final = 5


class DeletedMeanwhileError(Exception):
    """Retention took the begin of a range. `begin`: first offset that is left."""

    def __init__(self, begin: int) -> None:
        super().__init__(begin)
        self.begin = begin


def broker_batches(reader: BulkReader, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range. Raises: DeletedMeanwhileError, LedgerMQError."""
    at = wanted.start
    for fetched in reader.answers(wanted):
        if fetched.begin > at:
            raise DeletedMeanwhileError(fetched.begin)
        table = record_table(wanted.queue, fetched.sections, fetched.headers, fetched.store_timestamps)
        table = table.chosen((table.offsets >= at) & (table.offsets < wanted.end))
        yield from message_batches(table, SCHEMA, lenient=True)
        at = fetched.next_offset


@dataclass(frozen=True, slots=True)
class FileComparison:
    """A file of the lake, and what the brokers still have of each of its ranges."""

    nameservers: str
    path: str
    file: LakeFile
    at_brokers: tuple[QueueRange | None, ...]  # one for each range of the file; None: nothing is left


def compare(task: FileComparison) -> dict[str, Any]:
    """Compare a file with its manifest and with the brokers.

    Return `problem` ("" or a sentence) and for each range how many messages were `compared`, and its own
    `problem`. Raises: LedgerMQError (brokers cannot be read).
    """
    with BulkReader(task.nameservers) as reader:
        asked = list(task.at_brokers)
        for _ in range(_TRIES):
            try:
                return _compared(reader, task, asked)
            except _Shorter as shorter:
                asked[shorter.place] = shorter.left
    return _compared(reader, task, [None] * len(asked))


class _Shorter(Exception):
    """A range has become shorter at the brokers."""

    def __init__(self, place: int, left: QueueRange | None) -> None:
        super().__init__(place)
        self.place, self.left = place, left


def _compared(reader: BulkReader, task: FileComparison, asked: Sequence[QueueRange | None]) -> dict[str, Any]:
    file = task.file
    parts = [
        None if wanted is None else LakeRange(each.broker_group, each.queue, wanted.start, wanted.end, 0)
        for each, wanted in zip(file.ranges, asked, strict=True)
    ]
    whole = RangeSums(file.ranges)
    left = RangeSums([part or each for part, each in zip(parts, file.ranges, strict=True)])
    try:
        for batch in read_file(Path(task.path), file):
            checksums = row_checksums(batch)
            whole.add(batch, checksums)
            left.add(batch, checksums)
        problem = whole.problem()
    except LakeDamageError as error:
        problem = error.why
    ranges = []
    for place, (wanted, part) in enumerate(zip(asked, parts, strict=True)):
        found, compared = "", 0
        if wanted is not None and part is not None and not problem:
            at_brokers = RangeSums([part])
            try:
                for batch in broker_batches(reader, wanted):
                    at_brokers.add(batch)
            except DeletedMeanwhileError as deleted:
                rest = replace(wanted, start=deleted.begin) if deleted.begin < wanted.end else None
                raise _Shorter(place, rest) from None
            compared = part.count
            name = named(part)
            if at_brokers.counts[0] != part.count:
                found = f"the brokers have {at_brokers.counts[0]:,} of the {part.count:,} messages at {name}"
            elif at_brokers.sums[0] != left.sums[place]:
                found = f"the brokers have other messages at {name}"
        ranges.append({"compared": compared, "problem": found})
    return {"problem": problem, "ranges": ranges}

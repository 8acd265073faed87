"""Comparison of a dump's consume queues with those that its log demands, byte by byte.

Owns: finding a queue's files and reading their units. Must not: trust the manifest; write.
Layout (D13): `consumequeue/<topic>@<topic id>/<queue id>/<20-digit byte position>`, units of 20 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .entry_checks import Where
from .entry_table import EntryTable
from .findings import Finding, Kind
from .section_checks import UNIT_DTYPE, UNIT_SIZE, QueueKey, QueueRun, Units


@dataclass(slots=True)
class QueueFiles:
    """Files of one queue: (byte position in the queue, size, path), in order."""

    files: list[tuple[int, int, Path]] = field(default_factory=list)

    @property
    def begin(self) -> int:
        """Queue offset of the first unit. Retention deleted earlier ones."""
        return min((start // UNIT_SIZE for start, _, _ in self.files), default=0)

    @property
    def end(self) -> int:
        """Queue offset just past the last unit."""
        return max(((start + size) // UNIT_SIZE for start, size, _ in self.files), default=0)

    def read(self, first: int, last: int) -> Units:
        """Return the units [first, last). A unit that is in no file is all zeros."""
        lo, hi = first * UNIT_SIZE, last * UNIT_SIZE
        out = bytearray(hi - lo)
        for start, size, path in self.files:
            begin, end = max(lo, start), min(hi, start + size)
            if begin < end:
                with path.open("rb") as file:
                    file.seek(begin - start)
                    data = file.read(end - begin)
                out[begin - lo : begin - lo + len(data)] = data
        return np.frombuffer(bytes(out), UNIT_DTYPE)


def list_queues(node_folder: Path) -> dict[QueueKey, QueueFiles]:
    """Find all consume queue files of a node's dump. Names that do not follow the layout are ignored."""
    queues: dict[QueueKey, QueueFiles] = {}
    for path in sorted(node_folder.glob("consumequeue/*@*/*/*")):
        topic_id, queue_id = path.parent.parent.name.rpartition("@")[2], path.parent.name
        if path.name.isdecimal() and topic_id.isdecimal() and queue_id.isdecimal():
            files = queues.setdefault((int(topic_id), int(queue_id)), QueueFiles())
            files.files.append((int(path.name), path.stat().st_size, path))
    return queues


def check_consume_queues(
    table: EntryTable,
    runs: list[QueueRun],
    queues: dict[QueueKey, QueueFiles],
    where: Where,
    *,
    complete: bool,
) -> Iterator[Finding]:
    """Compare each run of `table` with the units on disk. Yields one finding for each run that differs.

    A queue without files is left to the checks of the manifest: its topic may be deleted.
    `complete`: the dump claims to hold the queues up to its commit point. Otherwise (a stopped node) units
    after a queue's end are not missing: a node rebuilds them from the log when it starts.
    """
    for run in runs:
        files = queues.get((run.topic_id, run.queue_id))
        if files is None or not run.units:
            continue
        base = max(run.base, files.begin)
        wanted = np.concatenate(run.units)[base - run.base :]
        if not complete:
            wanted = wanted[: max(0, files.end - base)]
        found = files.read(base, base + len(wanted))
        if found.tobytes() == wanted.tobytes():
            continue
        wrong = np.flatnonzero(found != wanted)
        first = int(wrong[0])
        name = f"topic {run.topic_id} queue {run.queue_id} offset {base + first:,}"
        if base + first >= files.end:
            text = f"{name}: the consume queue ends before it"
        else:
            text = f"{name}: the consume queue says {_text(found[first])}, the log {_text(wanted[first])}"
        detail = f"{text}; {len(wrong):,} of {len(wanted):,} units differ"
        offset = int(wanted[first]["offset"])
        row = int(np.searchsorted(table.positions, offset, "right")) - 1
        yield where.finding(Kind.CONSUME_QUEUE, offset, int(table.headers["index"][row]), detail)


def _text(unit: np.void) -> str:
    return f"{int(unit['offset']):,}+{int(unit['size']):,} tag {int(unit['tag_hash']):x}"

"""Contents of the entries: sections, their queue offsets, and the consume queue units that follow from them.

Owns: the checks of sections and of queue numbering inside one range of the log, and the units that a consume
queue must have for it. Pure numpy.   Must not: read files; compare nodes.
Only committed entries with a correct checksum are examined. A damaged one is already a finding, and queues
are built from committed entries only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ledgermq.proto.entry import HEADER_SIZE, EntryKind
from ledgermq.proto.errors import LayoutError
from ledgermq.proto.record import (
    SECTION_HEADER_SIZE,
    SectionHeader,
    SectionKind,
    record_headers,
    record_positions,
    verify_section,
    walk_sections,
)

from .entry_checks import Where
from .entry_table import EntryTable
from .findings import Finding, Kind

#: One unit of a consume queue: physical offset and size of the record, hash of its tag. 20 bytes, packed.
UNIT_DTYPE: Final = np.dtype([("offset", "<i8"), ("size", "<i4"), ("tag_hash", "<i8")])
UNIT_SIZE: Final = UNIT_DTYPE.itemsize

Units = npt.NDArray[np.void]
QueueKey = tuple[int, int]  # topic id, queue id


@dataclass(slots=True)
class QueueRun:
    """Messages of one queue without a gap between them, found in one range of the log."""

    topic_id: int
    queue_id: int
    base: int  # queue offset of the first message
    next: int  # queue offset just past the last message
    index: int  # Raft index and physical offset of the entry with the first message
    offset: int
    units: list[Units] = field(default_factory=list)
    after_damage: bool = False  # entries before the run that may hold messages of this queue are lost
    damages: int = 0  # number of damaged places in the table before the run's end


def section_rows(table: EntryTable, commit_index: int) -> list[int]:
    """Return the rows of the entries whose sections count."""
    headers = table.headers
    chosen = (headers["kind"] == EntryKind.RECORDS) & table.intact
    if commit_index >= 0:
        chosen &= headers["index"] <= commit_index
    return [int(row) for row in np.flatnonzero(chosen)]


def check_sections(
    table: EntryTable, where: Where, *, with_units: bool
) -> tuple[list[Finding], list[QueueRun]]:
    """Return findings about the sections of a table, and the queue runs in log order.

    A run ends where the numbering of its queue jumps. The jump is a finding unless damage explains it.
    """
    found: list[Finding] = []
    runs: list[QueueRun] = []
    latest: dict[QueueKey, QueueRun] = {}
    damage = np.array(sorted(_damage_starts(table)), np.int64)
    for row in section_rows(table, where.commit_index):
        header = table.headers[row]
        offset, index = int(table.positions[row]), int(header["index"])
        lost = int(np.searchsorted(damage, offset))
        try:
            for section, units in _read_sections(table, row, with_units=with_units):
                if section.base_queue_offset >= 0:
                    _extend(found, runs, latest, where, section, units, index, offset, lost)
        except LayoutError as error:
            end = offset + int(header["size"])
            found.append(where.finding(Kind.SECTION, offset, index, str(error), end))
            damage = np.insert(damage, lost, offset)
    return found, runs


def _damage_starts(table: EntryTable) -> list[int]:
    starts = [damage.start for damage in table.damaged]
    return starts + [int(position) for position in table.positions[~table.intact]]


def _read_sections(
    table: EntryTable, row: int, *, with_units: bool
) -> list[tuple[SectionHeader, Units | None]]:
    """Decode and check the sections of one entry. Raises: LayoutError."""
    payload = table.payload(row)
    start = int(table.positions[row]) + HEADER_SIZE
    sections = []
    for position, section in walk_sections(payload, int(table.headers["section_count"][row])):
        verify_section(payload, position, section)
        if section.kind is not SectionKind.RECORDS:
            continue
        if section.entry_distance != position + HEADER_SIZE:
            raise LayoutError(f"the section at byte {position} names another entry as its own")
        units = _units(payload, start, position, section) if with_units else None
        sections.append((section, units))
    return sections


def _units(payload: memoryview, start: int, position: int, section: SectionHeader) -> Units:
    """Return the consume queue units of a section; `start` is the payload's physical offset."""
    body_at = position + SECTION_HEADER_SIZE
    body = payload[body_at : body_at + section.size]
    positions = record_positions(body, section.count)
    headers = record_headers(body, positions)
    units = np.empty(section.count, UNIT_DTYPE)
    units["offset"] = positions + (start + body_at)
    units["size"] = headers["size"]
    units["tag_hash"] = headers["tag_hash"]
    return units


def _extend(
    found: list[Finding],
    runs: list[QueueRun],
    latest: dict[QueueKey, QueueRun],
    where: Where,
    section: SectionHeader,
    units: Units | None,
    index: int,
    offset: int,
    lost: int,
) -> None:
    """Add a section to the run of its queue, or begin a new run. `lost` counts the damage before it."""
    key = (section.topic_id, section.queue_id)
    run = latest.get(key)
    base, behind = section.base_queue_offset, section.base_queue_offset + section.count
    if run is None or run.next != base:
        damaged = lost > (run.damages if run else 0)
        if run is not None and not damaged:
            text = (
                f"topic {key[0]} queue {key[1]}: offset {run.next:,} is expected, the section says {base:,}"
            )
            found.append(where.finding(Kind.QUEUE_OFFSET, offset, index, text))
        run = QueueRun(*key, base, base, index, offset, after_damage=damaged)
        latest[key] = run
        runs.append(run)
    run.next, run.damages = behind, lost
    if units is not None:
        run.units.append(units)

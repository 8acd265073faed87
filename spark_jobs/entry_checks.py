"""Checks within one node's entries: checksums, chain, indexes, terms, log time, positions, fillers.

Owns: the rules that hold between an entry and the one before it. Pure numpy.
Must not: compare nodes, read files.

An entry with a wrong checksum is *not trusted*: its fields are not compared with anything. So one damaged
entry is one finding and does not accuse its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind, encode_filler

from .entry_table import DamagedRange, EntryTable
from .findings import NO_INDEX, Finding, Kind, Severity

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Where:
    """Source of the checked entries. Part of every finding."""

    node: str
    path: str
    commit_index: int  # of the node; -1: everything counts as committed
    commit_offset: int  # just past the entry at `commit_index`

    def finding(self, kind: Kind, offset: int, index: int, detail: str, end: int = NO_INDEX) -> Finding:
        """Build a finding. Entries above the commit point may still be cut off legally."""
        legal = self.commit_index >= 0 and (index > self.commit_index or offset >= self.commit_offset)
        severity = Severity.INFO if legal else Severity.ERROR
        return Finding(self.node, offset, index, kind, severity, detail, end, path=self.path)


@dataclass(frozen=True, slots=True)
class Edge:
    """First or last trusted entry of a table, which the entry across the seam must match."""

    index: int
    term: int
    timestamp: int
    crc: int  # of a last entry: its own; of a first entry: the one that it chains to
    offset: int
    end: int
    filler: bool
    skipped: int  # untrusted entries between it and the seam; -1: unknown number


@dataclass(frozen=True, slots=True)
class SliceSummary:
    """Summary of a slice for the seam to the next slice, and for the totals. Offsets are physical."""

    path: str
    lo: int  # begin of the slice
    entries: int
    size: int  # bytes of the entries
    start: int  # of the first entry
    end: int  # just past the last entry or damaged range
    first: Edge | None
    last: Edge | None
    last_index: int  # highest index that was read
    commit_crc: int  # stored checksum of the entry at the commit index; -1 if it is not here
    records: int  # messages in committed entries
    over_commit: int  # entries above the commit point

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> SliceSummary:
        """Build it from the decoded JSON of a scan row."""
        edges = {name: Edge(**fields[name]) if fields[name] else None for name in ("first", "last")}
        return cls(**fields | edges)


def check_entries(table: EntryTable, where: Where) -> list[Finding]:
    """Return every finding inside a table. `check_seam` checks seams between tables."""
    found = list(_check_crc(table, where))
    found += _check_positions(table, where)
    found += _check_order(table, where)
    found += _check_damage(table, where)
    found += _check_fillers(table, where)
    return found


def expected_indexes(table: EntryTable) -> Int64s:
    """Return the index of each entry. For an untrusted entry it follows from its place in the log."""
    indexes = table.headers["index"].astype(np.int64)
    intact = table.intact
    damaged_at = {damage.start for damage in table.damaged}
    for row in np.flatnonzero(~intact):
        before = row - 1
        if row and int(table.positions[before]) + int(table.headers["size"][before]) not in damaged_at:
            filler = table.headers["kind"][row] == EntryKind.FILLER
            indexes[row] = indexes[before] + (0 if filler else 1)
    return indexes


def first_edge(table: EntryTable) -> Edge | None:
    """Return the first trusted entry of a table."""
    trusted = np.flatnonzero(table.intact)
    if len(trusted) == 0:
        return None
    row = int(trusted[0])
    damaged = any(damage.start < int(table.positions[row]) for damage in table.damaged)
    return _edge(table, row, int(table.headers["prev_crc"][row]), slice(0, row), damaged)


def last_edge(table: EntryTable) -> Edge | None:
    """Return the last trusted entry of a table."""
    trusted = np.flatnonzero(table.intact)
    if len(trusted) == 0:
        return None
    row = int(trusted[-1])
    damaged = any(damage.start > int(table.positions[row]) for damage in table.damaged)
    return _edge(table, row, int(table.headers["crc"][row]), slice(row + 1, None), damaged)


def _edge(table: EntryTable, row: int, crc: int, untrusted: slice = slice(0), damaged: bool = False) -> Edge:
    header, offset = table.headers[row], int(table.positions[row])
    return Edge(
        index=int(header["index"]),
        term=int(header["term"]),
        timestamp=int(header["timestamp"]),
        crc=crc,
        offset=offset,
        end=offset + int(header["size"]),
        filler=bool(header["kind"] == EntryKind.FILLER),
        skipped=-1 if damaged else int((table.headers["kind"][untrusted] != EntryKind.FILLER).sum()),
    )


def check_seam(last: Edge, first: Edge, where: Where) -> list[Finding]:
    """Return the findings between the last trusted entry of one range and the first of the next."""
    known = last.skipped >= 0 and first.skipped >= 0
    skipped = last.skipped + first.skipped
    expected = last.index + skipped + (not first.filler)
    wrong = {
        Kind.GAP: known and first.index != expected,
        Kind.TERM: first.term < last.term,
        Kind.TIME: first.timestamp < last.timestamp,
        Kind.CHAIN: known and skipped == 0 and first.crc != last.crc,
    }
    return [_order_finding(kind, last, first, expected, where) for kind in wrong if wrong[kind]]


def _order_finding(kind: Kind, last: Edge, first: Edge, expected: int, where: Where) -> Finding:
    """Return the finding that `first` cannot follow `last`. `expected`: the index that would fit."""
    text = {
        Kind.GAP: f"index {last.index:,} is followed by {first.index:,}",
        Kind.TERM: f"term {last.term:,} is followed by term {first.term:,}",
        Kind.TIME: f"log time goes back by {last.timestamp - first.timestamp:,} ms",
        Kind.CHAIN: f"chains to {first.crc:08x}, the entry before has {last.crc:08x}",
    }[kind]
    index = expected if kind is Kind.GAP else first.index
    return where.finding(kind, first.offset, index, text, first.end)


def _check_crc(table: EntryTable, where: Where) -> Iterator[Finding]:
    indexes = expected_indexes(table)
    for row in np.flatnonzero(~table.intact):
        stored, computed = int(table.headers["crc"][row]), int(table.computed_crc[row])
        size = int(table.headers["size"][row])
        offset = int(table.positions[row])
        detail = f"stored checksum {stored:08x}, the bytes give {computed:08x}"
        yield where.finding(Kind.CRC, offset, int(indexes[row]), detail, offset + size)


def _check_positions(table: EntryTable, where: Where) -> Iterator[Finding]:
    """Find intact entries at the wrong place. Neighbours moved by the same distance are one finding."""
    shift = table.positions - table.headers["physical_offset"].astype(np.int64)
    rows = np.flatnonzero((shift != 0) & table.intact)
    if len(rows) == 0:
        return
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(shift[rows]) != 0)) + 1
    for run in np.split(rows, breaks):
        first, last = int(run[0]), int(run[-1])
        index = int(table.headers["index"][first])
        detail = f"{len(run):,} entries stand {int(shift[first]):+,} bytes from where they belong"
        end = int(table.positions[last]) + int(table.headers["size"][last])
        yield where.finding(Kind.OFFSET, int(table.positions[first]), index, detail, end)


def _check_order(table: EntryTable, where: Where) -> Iterator[Finding]:
    """Compare each trusted entry with the trusted one before it."""
    rows = np.flatnonzero(table.intact)
    if len(rows) == 0:
        return
    headers = table.headers[rows]
    index, term = headers["index"].astype(np.int64), headers["term"].astype(np.int64)
    time, crc = headers["timestamp"].astype(np.int64), headers["crc"].astype(np.int64)
    prev_crc, is_entry = headers["prev_crc"].astype(np.int64)[1:], (headers["kind"] != EntryKind.FILLER)[1:]
    skipped, known = (column[1:] for column in _between(table, rows))
    expected = index[:-1] + skipped + is_entry
    wrong = {
        Kind.GAP: known & (index[1:] != expected),
        Kind.TERM: term[1:] < term[:-1],
        Kind.TIME: time[1:] < time[:-1],
        Kind.CHAIN: known & (skipped == 0) & (prev_crc != crc[:-1]),
    }
    for kind, places in wrong.items():
        for i in np.flatnonzero(places):
            last = _edge(table, int(rows[i]), int(crc[i]))
            first = _edge(table, int(rows[i + 1]), int(prev_crc[i]))
            yield _order_finding(kind, last, first, int(expected[i]), where)


def _between(table: EntryTable, rows: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return, per trusted row, the indexed untrusted entries since the one before; and: are those all?"""
    indexed = (~table.intact & (table.headers["kind"] != EntryKind.FILLER)).astype(np.int64)
    running = np.concatenate(([0], np.cumsum(indexed)))[rows]
    skipped = np.diff(running, prepend=0)
    known = np.ones(len(rows), np.bool_)
    for damage in table.damaged:
        behind = int(np.searchsorted(table.positions[rows], damage.start))
        if behind < len(rows):
            known[behind] = False
    return skipped, known


def _check_damage(table: EntryTable, where: Where) -> Iterator[Finding]:
    """Report each damaged range with the indexes that are lost in it."""
    indexes = table.headers["index"].astype(np.int64)
    for damage in table.damaged:
        row = int(np.searchsorted(table.positions, damage.start))
        first = int(indexes[row - 1]) + 1 if row else NO_INDEX
        after = int(indexes[row]) if row < len(table) else NO_INDEX
        lost = after - first if after >= 0 and first >= 0 else -1
        yield where.finding(
            _damage_kind(damage, lost), damage.start, first, _damage_text(damage, first, lost), damage.end
        )


def _damage_kind(damage: DamagedRange, lost: int) -> Kind:
    """Return the kind: a lost entry with a recognisable header failed its checksum, else a range is gone."""
    return Kind.CRC if damage.looks_like_entry and lost in (0, 1) else Kind.MISSING_RANGE


def _damage_text(damage: DamagedRange, first: int, lost: int) -> str:
    what = "only zeros" if damage.absent else "no readable entry"
    size = f"{damage.end - damage.start:,} bytes with {what}"
    if lost == 1:
        return f"{size}; index {first:,} is lost"
    return f"{size}; index {first:,} to {first + lost - 1:,} are lost" if lost > 1 else size


def _check_fillers(table: EntryTable, where: Where) -> Iterator[Finding]:
    """Check fillers: a filler is a pure function of the entry before it, followed by zeros."""
    for row in np.flatnonzero((table.headers["kind"] == EntryKind.FILLER) & table.intact):
        position, size = int(table.positions[row]), int(table.headers["size"][row])
        index = int(table.headers["index"][row])
        start = position - table.base
        tail = bytes(table.data[start + HEADER_SIZE : start + size])
        if tail.count(0) != len(tail):
            dirty = next(i for i, byte in enumerate(tail) if byte) + position + HEADER_SIZE
            yield where.finding(
                Kind.FILLER, dirty, index, "bytes behind a filler are not zero", position + size
            )
        if row and table.intact[row - 1]:
            wanted = encode_filler(_entry_header(table, int(row) - 1), position + size)
            if wanted != table.data[start : start + HEADER_SIZE]:
                text = "the filler does not follow from the entry before it"
                yield where.finding(Kind.FILLER, position, index, text, position + size)


def _entry_header(table: EntryTable, row: int) -> EntryHeader:
    header = table.headers[row]
    return EntryHeader(
        int(header["crc"]),
        int(header["size"]),
        EntryKind(int(header["kind"])),
        int(header["section_count"]),
        int(header["index"]),
        int(header["term"]),
        int(table.positions[row]),
        int(header["timestamp"]),
        int(header["prev_crc"]),
        int(header["payload_size"]),
    )

"""Log that the dumps of one broker group hold together, read entry by entry.

Physical offsets are equal on all nodes. So a range that one dump lacks or holds damaged is read at the same
offset from another one, and the checksum chain proves that it continues the entries read before. The dump
whose log reaches furthest is read first (term, then index of its last entry, as in an election): it decides
where dumps of stopped nodes end differently. The entry at every claimed commit point must match; a dump that
differs is reported (`Dispute`).

Owns: finding dumps below folders, opening their files. Must not: trust a checksum that it has not computed,
print.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from .dump_manifest import MANIFEST, DumpManifest, decode_manifest
from .entry import HEADER_SIZE, EntryHeader, EntryKind, decode_header, fits_segment, verify_entry
from .errors import CorruptError, LayoutError
from .group_ids import are_related

_WINDOW: Final = 4 << 20
_AGAIN: Final = "Take the dump again: ledgermq dump DIR"


class UnusableDumpError(Exception):
    """The dumps cannot be read. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position after an entry: where the next one is expected, and what it must chain to."""

    offset: int  # physical
    index: int = 0
    term: int = 0
    crc: int = 0
    timestamp: int = 0

    def after(self, header: EntryHeader) -> Position:
        """Return the position after an entry or filler."""
        return Position(header.end, header.index, header.term, header.crc, header.timestamp)


class NodeLog:
    """Log files of one node's dump, for forward reading. Call `close`."""

    def __init__(self, folder: Path, manifest: DumpManifest) -> None:
        self.folder = folder
        self.manifest = manifest
        names = (path.name for path in (folder / "commitlog").glob("*"))
        self._starts = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
        self._fd, self._fd_start = -1, -1
        self._window, self._window_start = b"", 0
        self.last = self._find_last()

    @property
    def base(self) -> Position:
        """Position before its first entry."""
        m = self.manifest
        return Position(m.first_offset, m.first_index - 1, m.prev_term, m.prev_crc, m.prev_timestamp)

    def entry(self, before: Position) -> tuple[EntryHeader, bytes]:
        """Return the entry or filler that continues `before`, with its bytes.

        Raises: EOFError (this dump ends before it, or begins after it), LayoutError (damaged), OSError.
        """
        size = self.manifest.segment_size
        if not self.manifest.first_offset <= before.offset < self.manifest.end_offset:
            raise EOFError
        header = decode_header(self.read(before.offset, HEADER_SIZE))
        filler, room = header.kind is EntryKind.FILLER, size - before.offset % size
        if (
            header.physical_offset != before.offset
            or header.prev_crc != before.crc
            or header.index != before.index + (0 if filler else 1)
            or header.term < before.term
            or header.timestamp < before.timestamp
            or ((header.size != room) if filler else not fits_segment(header.size, room))
        ):
            raise CorruptError("an entry that does not continue the one before it", before.offset)
        raw = self.read(before.offset, header.wire_size)
        verify_entry(raw, 0, header)
        return header, raw

    def crc_at(self, index: int) -> int | None:
        """Return the checksum of the committed entry at an index; None if it is missing or unreadable."""
        m = self.manifest
        if not m.first_index <= index <= m.commit_index:
            return None
        points = [point for point in m.index_points if point[0] <= index]
        offset = max(points, default=(m.first_index, m.first_offset))[1]
        with suppress(LayoutError, OSError):
            while offset < m.commit_offset:
                header = decode_header(self.read(offset, HEADER_SIZE))
                if header.index >= index and header.kind is not EntryKind.FILLER:
                    verify_entry(self.read(offset, header.wire_size), 0, header)
                    return header.crc if header.index == index else None
                offset += header.size
        return None

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of one segment, fewer at the end of its file. Raises: OSError."""
        at = offset - self._window_start
        if not 0 <= at <= len(self._window) - size:
            self._window, self._window_start, at = self._load(offset, max(size, _WINDOW)), offset, 0
        return self._window[at : at + size]

    def _load(self, offset: int, size: int) -> bytes:
        segment_size = self.manifest.segment_size
        start = offset - offset % segment_size
        if start not in self._starts:
            return b""
        if start != self._fd_start:
            self.close()
            path = self.folder / "commitlog" / f"{start:020d}"
            self._fd, self._fd_start = os.open(path, os.O_RDONLY | os.O_CLOEXEC), start
        return os.pread(self._fd, min(size, start + segment_size - offset), offset - start)

    def _find_last(self) -> tuple[int, int]:
        """Return (term, index) of the last entry: the commit point, or a later one on a stopped node."""
        m = self.manifest
        at = Position(m.commit_offset, m.commit_index, m.commit_term, m.commit_crc)
        with suppress(EOFError, LayoutError, OSError):
            while m.commit_term:
                header, _ = self.entry(at)
                at = at.after(header)
        return at.term, at.index

    def close(self) -> None:
        """Close the open file. Later reads reopen it."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._fd_start = -1, -1


@dataclass(frozen=True, slots=True)
class Dispute:
    """A dump in which another entry is committed than the one that was read."""

    log: NodeLog
    index: int


@dataclass(slots=True)
class Reading:
    """Findings of `DumpedLog.entries`."""

    # position after the last entry that was read
    end: Position
    # (dump, offset) of ranges that were read from another dump
    damage: list[tuple[NodeLog, int]] = field(default_factory=list)
    disputes: list[Dispute] = field(default_factory=list)
    #: Why reading ended before the log did: no dump has an intact entry there. "": all was read.
    stopped: str = ""


class DumpedLog:
    """Dumps of one broker group. A context manager."""

    def __init__(self, logs: Sequence[NodeLog]) -> None:
        """`logs` are at least one, all of one broker group."""
        self.logs = sorted(logs, key=lambda log: (log.last, log.manifest.node), reverse=True)
        self.reading = Reading(self.base.base)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for log in self.logs:
            log.close()

    @property
    def base(self) -> NodeLog:
        """The dump whose log begins first; among equal ones, the first in reading order."""
        return min(self.logs, key=lambda log: log.manifest.first_index)

    @property
    def last_index(self) -> int:
        """Index of the last entry in any dump."""
        return max(index for log in self.logs for index in (log.last[1], log.manifest.commit_index))

    @property
    def commit_index(self) -> int:
        """Highest commit point that a dump claims."""
        return max(log.manifest.commit_index for log in self.logs)

    def entries(self, begin: Position) -> Iterator[tuple[EntryHeader, bytes]]:
        """Yield the entries after `begin` with their bytes, fillers included.

        `reading` holds the findings so far.

        Dumps older than the crc field have an unknown crc (0) in `begin`. Their first entry is trusted.
        """
        self.reading = Reading(begin)
        if begin.index and not begin.crc:
            begin = self._believe(begin)
        claims: dict[int, list[NodeLog]] = {}
        for log in self.logs:
            if log.manifest.commit_term and log.manifest.commit_index > begin.index:
                claims.setdefault(log.manifest.commit_index, []).append(log)
        at = begin
        while (found := self._next(at)) is not None:
            header, _ = found
            at = self.reading.end = at.after(header)
            if header.kind is not EntryKind.FILLER:
                for log in claims.pop(header.index, ()):
                    if (log.manifest.commit_term, log.manifest.commit_crc) != (header.term, header.crc):
                        self.reading.disputes.append(Dispute(log, header.index))
            yield found

    def others_than(self, header: EntryHeader) -> list[NodeLog]:
        """Return the dumps that have another intact entry in place of the one that was read."""
        found = ((log, log.crc_at(header.index)) for log in self.logs)
        return [log for log, crc in found if crc not in (None, header.crc)]

    def _believe(self, begin: Position) -> Position:
        for log in self.logs:
            with suppress(EOFError, LayoutError, OSError):
                header = decode_header(log.read(begin.offset, HEADER_SIZE))
                if (header.index, header.physical_offset) == (begin.index + 1, begin.offset):
                    return Position(begin.offset, begin.index, begin.term, header.prev_crc, begin.timestamp)
        return begin

    def _next(self, at: Position) -> tuple[EntryHeader, bytes] | None:
        """Return the entry at a position from the first dump that has it intact; None: no dump has."""
        damaged: list[tuple[NodeLog, str]] = []
        for log in self.logs:
            try:
                found = log.entry(at)
            except EOFError:
                continue
            except (LayoutError, OSError) as error:
                damaged.append((log, str(getattr(error, "reason", error))))
                continue
            self.reading.damage += [(bad, at.offset) for bad, _ in damaged]
            return found
        if damaged:
            what = "; ".join(f"{log.folder}: {reason}" for log, reason in damaged)
            self.reading.stopped = (
                f"the entry behind {at.index:,}, at physical offset {at.offset:,}, is damaged ({what})"
            )
        elif at.index < self.last_index:
            self.reading.stopped = f"no dump holds the entries {at.index + 1:,} to {self.last_index:,}"
        return None


def find_logs(folders: Iterable[Path]) -> list[NodeLog]:
    """Return the dumps of one broker group in these folders. Each is a node's dump, or contains one per node.

    Raises: UnusableDumpError (no dump, an unreadable one, several broker groups), OSError.
    """
    found: list[Path] = []
    for folder in folders:
        found += _nodes_in(folder)
    logs = [NodeLog(path, _read_manifest(path)) for path in dict.fromkeys(path.resolve() for path in found)]
    first = logs[0]
    for log in logs[1:]:
        _check_alike(first, log)
    return logs


def _nodes_in(folder: Path) -> list[Path]:
    if (folder / MANIFEST).is_file():
        return [folder]
    if manifests := sorted(folder.glob(f"*/{MANIFEST}")):
        return [path.parent for path in manifests]
    if groups := sorted({path.parent.parent for path in folder.glob(f"*/*/{MANIFEST}")}):
        raise UnusableDumpError(
            f"{folder} holds dumps of {len(groups)} broker groups. Name one: {', '.join(map(str, groups))}"
        )
    unfinished = next(iter(sorted(folder.glob("**/commitlog"))), None)
    if unfinished is not None and not (unfinished.parent / "identity").exists():
        raise UnusableDumpError(
            f"the dump in {unfinished.parent} was not finished: {MANIFEST}, which is written last, is "
            f"missing. {_AGAIN}"
        )
    raise UnusableDumpError(
        f"{folder} holds no dump (no {MANIFEST} in it, nor in its sub-folders). Name what `ledgermq dump "
        "DIR` wrote; a node's data folder is dumped first: ledgermq dump --data DATA DIR"
    )


def _read_manifest(folder: Path) -> DumpManifest:
    path = folder / MANIFEST
    try:
        manifest = decode_manifest(path.read_bytes())
    except CorruptError as error:
        raise UnusableDumpError(f"{path}: {error.reason}. {_AGAIN}") from None
    except LayoutError as error:
        raise UnusableDumpError(f"{path}: {error}. Use the LedgerMQ that wrote it, or a newer one") from None
    if manifest.has_digests:
        raise UnusableDumpError(
            f"{folder} holds digests of a log, not the log: it can be checked, but not read. "
            "Take a whole dump: ledgermq dump DIR"
        )
    return manifest


def _check_alike(first: NodeLog, log: NodeLog) -> None:
    """Refuse dumps of different broker groups. Raises: UnusableDumpError."""
    a, b = first.manifest, log.manifest
    if (a.cluster, a.group) != (b.cluster, b.group) or not are_related(
        a.group_id, a.former_group_ids, b.group_id, b.former_group_ids
    ):
        raise UnusableDumpError(
            f"{first.folder} is of broker group {a.group} in cluster {a.cluster} (id {a.group_id:016x}), "
            f"{log.folder} of {b.group} in {b.cluster} (id {b.group_id:016x}): they have nothing to do with "
            "each other. Name dumps of one broker group"
        )
    if a.segment_size != b.segment_size:
        raise UnusableDumpError(
            f"{first.folder} has segments of {a.segment_size:,} bytes, {log.folder} of {b.segment_size:,}: "
            "they are not of one broker group"
        )

"""Files of the key index: sorted runs of items (see key_hashes), searched by bisection.

`keyindex/<20-digit start of the segment>` holds the items of a whole segment, `….<20-digit first index>`
those of some entries of a segment that still grows. A file gets its name once it is complete (temporary name,
rename). It is not flushed: after a power cut an incomplete file has wrong checksums, and is rebuilt like any
other damaged one.

Little-endian: a header, a table of the blocks, and the items in ascending order, in blocks of 2,048 (16 KiB).

     0  4   magic b"LMQK"
     4  u32 version (1)
     8  u32 crc32c over bytes [12, 80)
    12  u32 crc32c of the table
    16  u64 start of the segment
    24  u64 index of the first entry
    32  u64 index of the last entry
    40  u32 checksum field of the last entry; chained, so it identifies all entries before it, too
    44  u32 number of bits of an item for the place
    48  u64 number of items
    56  u64 physical offset just past the last entry
    64  16  reserved, 0
    then per block u64 its first item; then per block u32 its crc32c; then the items

Owns: the format, its reader and writer, the tables of recently searched runs.
Must not: use bytes with a wrong checksum (CorruptError); know which runs should exist. All calls block: never
call them on the event loop.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.raft.disk.files import File, FileSystem

from .key_hashes import NO_ITEMS, ItemForm

VERSION: Final = 1
BLOCK_ITEMS: Final = 2048
WRITING: Final = ".writing"
_MAGIC: Final = b"LMQK"
_HEADER: Final = struct.Struct("<4sIIIQQQIIQQ16s")
_ITEM: Final = 8
_BLOCK: Final = BLOCK_ITEMS * _ITEM
_ROW: Final = 12  # bytes per block in the table
#: Maximum bytes of cached tables: those of 1,500 million items. Others are read again.
_TABLE_BYTES: Final = 8 << 20
#: Approximate number of items in memory during a merge.
_MERGE_ITEMS: Final = 256 * 1024
assert _HEADER.size == 80


class RunRange(NamedTuple):
    """Entries of one segment from which a run was built."""

    segment_start: int
    first_index: int
    last_index: int
    last_crc: int  # checksum field of the last entry
    end_offset: int  # physical, just past the last entry


@dataclass(frozen=True, slots=True)
class KeyRun:
    """A run file with a verified header."""

    path: Path
    range: RunRange
    form: ItemForm
    count: int
    table_crc: int

    @property
    def blocks(self) -> int:
        return -(-self.count // BLOCK_ITEMS)

    @property
    def items_at(self) -> int:
        """Position of the first item in the file."""
        return _HEADER.size + _ROW * self.blocks

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self.items_at + _ITEM * self.count


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    firsts: np.ndarray  # u64 per block
    crcs: np.ndarray  # u32 per block


def run_path(folder: Path, segment_start: int, first_index: int | None = None) -> Path:
    """Return the path of a segment's run, or of a part of it with `first_index`."""
    name = f"{segment_start:020d}"
    return folder / (name if first_index is None else f"{name}.{first_index:020d}")


def open_run(files: FileSystem, path: Path) -> KeyRun:
    """Read and verify the header of a run. Raises: CorruptError, NewerFormatError, OSError."""
    file = files.open(path, writable=False)
    try:
        raw, size = file.pread(_HEADER.size, 0), file.size()
    finally:
        file.close()
    if len(raw) < _HEADER.size:
        raise CorruptError("the file is too short", len(raw))
    magic, version, crc, table_crc, start, first, last, last_crc, bits, count, end, _ = _HEADER.unpack(raw)
    if magic != _MAGIC or crc32c(raw[12:]) != crc:
        raise CorruptError("the header of the run is damaged", 0)
    if version != VERSION:
        raise NewerFormatError("key index", version, VERSION)
    if bits >= 8 * _ITEM:
        raise CorruptError("no item has so many bits for its place", 44)
    run = KeyRun(path, RunRange(start, first, last, last_crc, end), ItemForm(bits), count, table_crc)
    if run.size != size:
        raise CorruptError("the file has another size than its header says", 0)
    return run


class RunReader:
    """Search of runs. Thread-safe."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._tables: OrderedDict[Path, tuple[KeyRun, _Table]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, run: KeyRun, hashed: int, begin: int, end: int, at_most: int) -> np.ndarray:
        """Return the last `at_most` positions of a hash in [begin, end) (bytes in the segment), ascending.

        Raises: CorruptError (a checksum is wrong), FileNotFoundError, OSError.
        """
        bounds = run.form.bounds(hashed, begin, end)
        if bounds is None or not run.count:
            return np.empty(0, np.int64)
        low, high = bounds
        found: list[np.ndarray] = []
        missing = at_most
        file = self._files.open(run.path, writable=False)
        try:
            table = self._table(run, file)
            block = int(np.searchsorted(table.firsts, high, "right")) - 1
            while block >= 0 and missing > 0:
                items = _block(run, file, table, block)
                start, stop = np.searchsorted(items, low, "left"), np.searchsorted(items, high, "right")
                found.insert(0, items[max(start, stop - missing) : stop])
                missing -= len(found[0])
                if start > 0:
                    break
                block -= 1
        finally:
            file.close()
        return run.form.positions(np.concatenate(found)) if found else np.empty(0, np.int64)

    def forget(self, path: Path) -> None:
        """Drop the table of a run that is deleted or replaced."""
        with self._lock:
            old = self._tables.pop(path, None)
            if old is not None:
                self._bytes -= _ROW * old[0].blocks

    def _table(self, run: KeyRun, file: File) -> _Table:
        with self._lock:
            known = self._tables.get(run.path)
            if known is not None and known[0] is run:
                self._tables.move_to_end(run.path)
                return known[1]
        table = _read_table(run, file)
        self.forget(run.path)
        with self._lock:
            self._tables[run.path] = (run, table)
            self._bytes += _ROW * run.blocks
            while self._bytes > _TABLE_BYTES and len(self._tables) > 1:
                _, (old, _) = self._tables.popitem(last=False)
                self._bytes -= _ROW * old.blocks
        return table


def _read_table(run: KeyRun, file: File) -> _Table:
    raw = file.pread(_ROW * run.blocks, _HEADER.size)
    if len(raw) != _ROW * run.blocks or crc32c(raw) != run.table_crc:
        raise CorruptError("the table of the run is damaged", _HEADER.size)
    return _Table(np.frombuffer(raw, "<u8", run.blocks), np.frombuffer(raw, "<u4", offset=8 * run.blocks))


def _block(run: KeyRun, file: File, table: _Table, block: int) -> np.ndarray:
    at = run.items_at + block * _BLOCK
    raw = file.pread(min(_BLOCK, run.size - at), at)
    if crc32c(raw) != table.crcs[block]:
        raise CorruptError("a block of the run is damaged", at)
    return np.frombuffer(raw, "<u8")


# --- writing --------------------------------------------------------------------------------------------
def write_run(
    files: FileSystem,
    path: Path,
    taken: RunRange,
    form: ItemForm,
    count: int,
    items: Iterable[np.ndarray],
    pace: Callable[[int], None],
) -> KeyRun:
    """Write a run of `count` items, given in ascending stretches. `pace(bytes)` is called after each.

    Raises: OSError, and what `pace` raises; then no file is left.
    """
    temporary = path.with_name(path.name + WRITING)
    if files.exists(temporary):
        files.unlink(temporary)
    files.make_directory(path.parent)
    file = files.open(temporary, create=True)
    try:
        run = _write(file, KeyRun(path, taken, form, count, 0), items, pace)
    except BaseException:
        with suppress(OSError):
            files.unlink(temporary)  # frees the space on a full disk
        raise
    finally:
        file.close()
    files.rename(temporary, path)
    return run


def _write(file: File, run: KeyRun, items: Iterable[np.ndarray], pace: Callable[[int], None]) -> KeyRun:
    """Write a whole run; return it with the checksum of its table."""
    firsts, crcs = np.empty(run.blocks, "<u8"), np.empty(run.blocks, "<u4")
    done = 0
    for stretch in _in_blocks(items):
        raw = stretch.astype("<u8", copy=False).tobytes()
        file.pwritev([raw], run.items_at + done * _BLOCK)
        for at in range(0, len(raw), _BLOCK):
            firsts[done] = stretch[at // _ITEM]
            crcs[done] = crc32c(memoryview(raw)[at : at + _BLOCK])
            done += 1
        pace(len(raw))
    assert done == run.blocks, "as many items as were promised"
    table = firsts.tobytes() + crcs.tobytes()
    run = replace(run, table_crc=crc32c(table))
    file.pwritev([_header(run), table], 0)
    return run


def _header(run: KeyRun) -> bytes:
    taken = run.range
    raw = _HEADER.pack(
        _MAGIC, VERSION, 0, run.table_crc, taken.segment_start, taken.first_index, taken.last_index,
        taken.last_crc, run.form.place_bits, run.count, taken.end_offset, b"",
    )  # fmt: skip
    return raw[:8] + struct.pack("<I", crc32c(raw[12:])) + raw[12:]


def _in_blocks(items: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Regroup stretches, so that each but the last consists of whole blocks."""
    left = NO_ITEMS
    for stretch in items:
        joined = np.concatenate((left, stretch)) if len(left) else stretch
        whole = len(joined) // BLOCK_ITEMS * BLOCK_ITEMS
        if whole:
            yield joined[:whole]
        left = joined[whole:]
    if len(left):
        yield left


class _Cursor:
    """Sequential reader of a run."""

    def __init__(self, run: KeyRun, file: File) -> None:
        self._run, self._file = run, file
        self.table = _read_table(run, file)
        self._next = 0
        self._ahead = NO_ITEMS

    def below(self, bound: np.uint64 | None) -> np.ndarray:
        """Return the next items below `bound`; None: all remaining items."""
        parts = [self._ahead]
        while self._next < self._run.blocks and (bound is None or self.table.firsts[self._next] < bound):
            parts.append(_block(self._run, self._file, self.table, self._next))
            self._next += 1
        items = np.concatenate(parts)
        cut = len(items) if bound is None else int(np.searchsorted(items, bound, "left"))
        self._ahead = items[cut:]
        return items[:cut]


def merged(files: FileSystem, runs: Sequence[KeyRun], rest: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the items of runs and of `rest` (ascending), in ascending stretches of bounded size.

    Raises: CorruptError, OSError.
    """
    if not runs:
        for start in range(0, len(rest), _MERGE_ITEMS):
            yield rest[start : start + _MERGE_ITEMS]
        return
    opened: list[File] = []
    try:
        cursors = []
        for run in runs:
            opened.append(files.open(run.path, writable=False))
            cursors.append(_Cursor(run, opened[-1]))
        firsts = [cursor.table.firsts for cursor in cursors] + [rest[::BLOCK_ITEMS]]
        bounds = np.sort(np.concatenate(firsts))[:: _MERGE_ITEMS // BLOCK_ITEMS]
        taken = 0
        for bound in [*bounds[1:], None]:
            cut = len(rest) if bound is None else int(np.searchsorted(rest, bound, "left"))
            parts = [cursor.below(bound) for cursor in cursors]
            parts.append(rest[taken:cut])
            taken = cut
            yield np.sort(np.concatenate(parts))
    finally:
        for file in opened:
            file.close()

"""Build of the key index run of one segment: collects items, writes them out in parts, merges the parts.

Owns: the items of one segment without a finished run.   Must not: read the log, or know other segments.
Invariant: `content` is replaced as a whole, so a search in another thread sees each item exactly once. Except
for reads of `content`, only one worker thread at a time may use a build.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ledgermq.proto.entry import EntryHeader
from ledgermq.raft.disk.files import FileSystem

from .key_hashes import NO_ITEMS, ItemForm, items_of
from .key_run import KeyRun, RunRange, merged, run_path, write_run

#: Number of items in memory at which a part is written: 8 MiB.
PART_ITEMS: Final = 1 << 20
#: Number of log bytes at which a part is written: a node that was killed reads up to so much again.
PART_LOG_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, eq=False)
class BuildContent:
    """Searchable content of a build. Immutable."""

    parts: tuple[KeyRun, ...] = ()  # in the order of the log
    items: np.ndarray = field(default_factory=lambda: NO_ITEMS)  # u64, unsorted; of entries after `parts`

    def in_memory(self, form: ItemForm, hashed: int, begin: int, end: int, at_most: int) -> np.ndarray:
        """Search the items in memory; see RunReader.find."""
        bounds = form.bounds(hashed, begin, end)
        if bounds is None:
            return np.empty(0, np.int64)
        found = self.items[(self.items >= bounds[0]) & (self.items <= bounds[1])]
        return form.positions(np.sort(found)[-at_most:])


class SegmentBuild:
    """Build of one run. `take` entries in order, `write_part` when `is_full`, `write_whole` at the end."""

    def __init__(
        self,
        files: FileSystem,
        folder: Path,
        form: ItemForm,
        start: int,
        first_index: int,
        *,
        pace: Callable[[int], None],
        part_items: int = PART_ITEMS,
    ) -> None:
        """`start`: physical offset of the segment. `first_index`: index of its first entry."""
        self._files = files
        self._folder = folder
        self._form = form
        self._pace = pace
        self._part_items = part_items
        self._room = NO_ITEMS  # buffer; `content.items` is its used part
        self._part_first = first_index  # first entry of the next part
        self._part_offset = start  # physical offset of that entry
        self.start = start
        self.first_index = first_index
        self.next_index = first_index  # first entry that is not taken
        self.last: RunRange | None = None  # range of all taken entries
        self.content = BuildContent()

    def go_on(self, parts: Sequence[KeyRun]) -> None:
        """Start with contiguous parts of an earlier build, from the segment's first entry on."""
        last = parts[-1].range
        self.last = last._replace(first_index=self.first_index)
        self.next_index = self._part_first = last.last_index + 1
        self._part_offset = last.end_offset
        self.content = BuildContent(tuple(parts))

    @property
    def end_offset(self) -> int:
        """Physical offset just past the last taken entry."""
        return self.last.end_offset if self.last is not None else self.start

    @property
    def is_full(self) -> bool:
        """Whether the items in memory should be written out."""
        grown = self.end_offset - self._part_offset
        return len(self.content.items) >= self._part_items or grown >= PART_LOG_BYTES

    def take(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        """Add the next entries of the segment."""
        assert entries[0][0].index == self.next_index
        found = items_of(entries, self.start, self._form)
        used = len(self.content.items)
        need = used + len(found)
        if need > len(self._room):
            grown = np.empty(max(need + need // 2, 1024), np.uint64)
            grown[:used] = self.content.items
            self._room = grown
        self._room[used:need] = found
        last = entries[-1][0]
        self.content = BuildContent(self.content.parts, self._room[:need])
        self.last = RunRange(self.start, self.first_index, last.index, last.crc, last.end)
        self.next_index = last.index + 1

    def write_part(self, paced: bool = True) -> None:
        """Write the items in memory to a file. `paced`: slowly. Raises: OSError (nothing changed)."""
        if self.last is None or self._part_first == self.next_index:
            return
        items = np.sort(self.content.items)
        path = run_path(self._folder, self.start, self._part_first)
        taken = self.last._replace(first_index=self._part_first)
        part = self._write(path, taken, (), items, self._pace if paced else _no_pace)
        self.content = BuildContent((*self.content.parts, part))
        self._room = NO_ITEMS
        self._part_first, self._part_offset = self.next_index, self.end_offset

    def write_whole(self) -> KeyRun:
        """Write the run of the segment; its parts can be deleted then. Raises: OSError, CorruptError."""
        assert self.last is not None
        content = self.content
        path = run_path(self._folder, self.start)
        return self._write(path, self.last, content.parts, np.sort(content.items), self._pace)

    def _write(
        self,
        path: Path,
        taken: RunRange,
        parts: Sequence[KeyRun],
        items: np.ndarray,
        pace: Callable[[int], None],
    ) -> KeyRun:
        count = sum(part.count for part in parts) + len(items)
        stretches = merged(self._files, parts, items)
        return write_run(self._files, path, taken, self._form, count, stretches, pace)


def _no_pace(size: int) -> None:
    """Do not limit the rate."""

"""Writes what follows each other in a segment as whole pages: small runs through the page cache, large ones past it.

Owns: the memory from which large runs are written, and what the unfinished page at the end holds. Must not: sync, know
entries. One thread uses it.

Why past the page cache: taking a page for bytes that the log's own cache (`TailCache`) gives to whoever reads at the end
costs more than the bytes, above all where a host takes back the memory that its guest does not use. Small runs stay in
the page cache: there the disk gets them and their flush mark at once, in one fdatasync. Repairs of the same file go through
the page cache, too; the kernel lets them and a direct write wait for each other, and no page outlives a direct write of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from ledgermq.proto.entry import Buffer

from .files import File

#: Bytes of a page, and what the offset, the length and the memory of a write past the page cache are multiples of.
PAGE: Final = mmap.PAGESIZE
_CHUNK: Final = 1 << 20
_ZEROS: Final = memoryview(bytes(PAGE))


class PageWriter:
    """Writes runs of buffers. Between two runs of one file the second begins where the first ended, or `forget` was called."""

    def __init__(self, direct_bytes: int) -> None:
        """`direct_bytes`: runs of so many bytes and more go past the page cache; 0: none."""
        self._direct_bytes = direct_bytes
        self._chunk: memoryview | None = None
        self._page: bytes | None = None  # what the page at the end holds so far; None: only the file knows
        self._is_cached = True  # the page cache has that page, or will read it

    def forget(self) -> None:
        """The next run begins elsewhere: in another file, or behind a cut."""
        self._page, self._is_cached = None, True

    def write(self, file: File, buffers: Sequence[Buffer], begin: int, limit: int) -> None:
        """Write `buffers` from `begin` on, and zeros up to the end of the page, but not beyond `limit`.

        The zeros stand there already; but what is no whole page would have to be read before it can be changed.
        Offsets are bytes of the file. Complete, or OSError.
        """
        size = sum(map(len, buffers))
        zeros = _ZEROS[: min(-(begin + size) % PAGE, limit - begin - size)]
        if 0 < self._direct_bytes <= size and (begin + size + len(zeros)) % PAGE == 0:
            # What stands in front in a page that was not written here is not known, and a repair may be writing it: only the
            # kernel puts both together without losing one of them.
            front = 0 if self._page is not None else -begin % PAGE
            if front < size:
                if front:
                    parts, buffers = _split(buffers, front)
                    file.pwritev(parts, begin)
                self._write_direct(file, buffers, begin + front, zeros)
                return
        head = b"" if self._is_cached or self._page is None else self._page
        file.pwritev([head, *buffers, zeros], begin - len(head))
        if self._direct_bytes:
            self._keep_page(buffers, begin, size)

    def _keep_page(self, buffers: Sequence[Buffer], begin: int, size: int) -> None:
        """Note what the last page holds, so that no direct write has to believe what it reads: damage would be written again."""
        inside = (begin + size) % PAGE
        self._is_cached = True
        if inside > size and self._page is None:
            return
        tail = b"".join(_last(buffers, min(inside, size)))
        self._page = (self._page or b"") + tail if inside > size else tail

    def _write_direct(self, file: File, buffers: Sequence[Buffer], begin: int, zeros: memoryview) -> None:
        inside = begin % PAGE
        head = self._page if inside else b""
        assert head is not None and len(head) == inside
        last = self._copy_out(file, chain([head], buffers, [zeros]), begin - inside)
        self._page, self._is_cached = bytes(last[: PAGE - len(zeros)]) if zeros else b"", False

    def _copy_out(self, file: File, parts: Iterable[Buffer], position: int) -> memoryview:
        """Write whole pages through the chunk, from `position` on; return the last page. `parts` fill it."""
        if self._chunk is None:
            self._chunk = memoryview(mmap.mmap(-1, _CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        chunk, used = self._chunk, 0
        for part in parts:
            rest = memoryview(part)
            while rest:
                if used == _CHUNK:
                    file.write_past_cache(chunk, position)
                    position, used = position + _CHUNK, 0
                count = min(len(rest), _CHUNK - used)
                chunk[used : used + count] = rest[:count]
                used, rest = used + count, rest[count:]
        file.write_past_cache(chunk[:used], position)
        return chunk[used - PAGE : used]


def _split(buffers: Sequence[Buffer], count: int) -> tuple[list[Buffer], list[Buffer]]:
    """Return the first `count` bytes of all buffers, and the rest."""
    first: list[Buffer] = []
    rest: list[Buffer] = []
    for part in buffers:
        view = memoryview(part)
        first.append(view[:count])
        rest.append(view[count:])
        count -= len(first[-1])
    return first, rest


def _last(buffers: Sequence[Buffer], count: int) -> list[memoryview]:
    """Return the last `count` bytes of all buffers, in order."""
    found: list[memoryview] = []
    for part in reversed(buffers):
        if not count:
            break
        view = memoryview(part)[-count:]
        found.append(view)
        count -= len(view)
    return found[::-1]

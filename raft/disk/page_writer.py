"""Page writer: writes consecutive runs of a segment as whole pages, large runs past the page cache.

Owns: the buffer for direct writes, and the contents of the unfinished page at the end. Must not: sync, know
entries. For one thread.

Why bypass the page cache: `TailCache` already serves reads near the end of the log. A second copy in page
cache costs more than the bytes, above all on hosts that reclaim memory unused by the guest. Small runs use
the page cache: one fdatasync then sends them and their flush mark to the disk together. Repairs of the same
file also use the page cache. The kernel orders them against direct writes, and no cached page survives a
direct write to it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from ledgermq.proto.entry import Buffer

from .files import File

#: Page size in bytes. A direct write needs offset, length and memory address at multiples of it.
PAGE: Final = mmap.PAGESIZE
_CHUNK: Final = 1 << 20
_ZEROS: Final = memoryview(bytes(PAGE))


class PageWriter:
    """Writes runs of buffers.

    Of two runs to one file the second begins where the first ended, unless `forget` is called in between.
    """

    def __init__(self, direct_bytes: int) -> None:
        """`direct_bytes`: runs of at least this size bypass the page cache; 0: none do."""
        self._direct_bytes = direct_bytes
        self._chunk: memoryview | None = None
        self._page: bytes | None = None  # contents of the last page so far; None: only the file knows
        self._is_cached = True  # the page cache holds the last page, or would read it

    def forget(self) -> None:
        """Forget the last page: the next run begins elsewhere, in another file or after a cut."""
        self._page, self._is_cached = None, True

    def write(self, file: File, buffers: Sequence[Buffer], begin: int, limit: int) -> None:
        """Write `buffers` from `begin` on, followed by zeros up to the end of the page, but not beyond
        `limit`.

        The file already holds those zeros, but changing part of a page would first have to read it. Offsets
        are bytes in the file. Completes, or raises OSError.
        """
        size = sum(map(len, buffers))
        zeros = _ZEROS[: min(-(begin + size) % PAGE, limit - begin - size)]
        if 0 < self._direct_bytes <= size and (begin + size + len(zeros)) % PAGE == 0:
            # The start of a page that was not written here is unknown, and a repair may be writing to it.
            # Only the kernel can merge the two without losing one of them.
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
        """Remember the contents of the last page, so that no direct write has to read it back: that could
        write damage again.
        """
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
        """Write whole pages through the chunk, from `position` on. Returns the last page. `parts` fill it."""
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
    """Split `buffers` into the first `count` bytes and the rest."""
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

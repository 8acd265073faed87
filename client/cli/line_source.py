"""Line source: messages from a byte stream, one per line, with bounded memory.

Owns: splitting lines, the limit of a line, the reading thread. Must not: read ahead by more than a chunk, or
hold a lock of the stream: Ctrl-C must end the program while the thread waits for input.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from ..errors import UsageError

_CHUNK: Final = 64 * 1024


class LineCutter:
    """Cuts chunks into lines. Give every chunk to `feed`, and b"" at the end."""

    def __init__(self, limit: int, name: str = "stdin") -> None:
        """`limit`: bytes of the longest line. `name`: of the source, for messages."""
        self._limit = limit
        self._name = name
        self._rest = bytearray()
        self._number = 0  # of the current line, from 1; 0 before the first
        self.blank = 0  # empty lines

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete and not empty. Raises: UsageError (a line above the limit)."""
        if not chunk:
            chunk = b"\n" if self._rest else b""
        lines = chunk.split(b"\n")
        for line in lines[:-1]:
            self._number += 1
            self._rest += line
            self._check()
            whole, self._rest = bytes(self._rest), bytearray()
            if whole:
                yield whole
            else:
                self.blank += 1
        self._rest += lines[-1]
        self._number += 1
        self._check()
        self._number -= 1

    def _check(self) -> None:
        if len(self._rest) > self._limit:
            raise UsageError(
                f"line {self._number:,} of {self._name} has more than {self._limit:,} bytes",
                "A message cannot be larger. The lines before it were sent, "
                "this one and those behind it were not",
                "Split it, or store it elsewhere and send its address",
            )


async def lines_of(
    source: Any, limit: int, blank: Callable[[int], None] = lambda _: None, *, name: str = "stdin"
) -> AsyncIterator[bytes]:
    """Yield the lines of a binary stream as they come; tell `blank` at the end how many were empty. Raises:
    UsageError (a line above the limit), OSError.
    """
    cutter = LineCutter(limit, name)
    async for chunk in _chunks(getattr(source, "raw", source)):
        for line in cutter.feed(chunk):
            yield line
    for line in cutter.feed(b""):
        yield line
    blank(cutter.blank)


async def _chunks(source: Any) -> AsyncIterator[bytes]:
    """Read in a thread that dies with the program:
    nothing else can be waited for while a terminal says nothing.
    """
    loop = asyncio.get_running_loop()
    wanted = threading.Semaphore(0)
    came: asyncio.Queue[bytes | OSError] = asyncio.Queue()

    def tell(chunk: bytes | OSError) -> bool:
        try:
            loop.call_soon_threadsafe(came.put_nowait, chunk)
        except RuntimeError:  # the loop is closed: the lines are not needed any more
            return False
        return bool(chunk) and not isinstance(chunk, OSError)

    def read() -> None:
        going = True
        while going:
            wanted.acquire()
            try:
                chunk: bytes | OSError = source.read(_CHUNK) or b""
            except OSError as error:
                chunk = error
            going = tell(chunk)

    threading.Thread(target=read, name="ledgermq-lines", daemon=True).start()
    while True:
        wanted.release()
        chunk = await came.get()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            return
        yield chunk

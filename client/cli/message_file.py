"""Messages of a file for `ledgermq send --file`: lines of text, or rows of Parquet and Arrow files.

Owns: which reader a file name means; the imports of Arrow, which is optional. Must not: read ahead by more
than a chunk or a batch of rows, or wait for the disk in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ledgermq.proto.record import MAX_BODY_SIZE

from ..errors import UsageError
from ..produce.many import Item, items_of
from .line_source import lines_of

_ROWS: Final = 4096  # of a Parquet file, read together
_PARQUET: Final = (".parquet",)
_ARROW: Final = (".arrow", ".feather")


def is_table(path: Path) -> bool:
    """Return whether the file has rows instead of lines, by its name."""
    return path.suffix.lower() in (*_PARQUET, *_ARROW)


async def messages_of(path: Path, topic: str, blank: Callable[[int], None]) -> AsyncIterator[Item]:
    """Yield a body per line, or what the rows are: bodies or messages.

    `blank` gets the number of empty lines, which are left out.

    Raises: UsageError (unreadable, a line above the limit, columns without a meaning).
    """
    try:
        if not is_table(path):
            with path.open("rb") as file:
                async for line in lines_of(file, MAX_BODY_SIZE, blank, name=str(path)):
                    yield line
            return
        batches = await asyncio.to_thread(_batches, path)
        while (rows := await asyncio.to_thread(next, batches, None)) is not None:
            for item in items_of(rows, topic):
                yield item
    except (OSError, ValueError) as error:  # Arrow's own errors are ValueErrors and OSErrors
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"{path} cannot be read: {why}", "", "Give a file that this user may read"
        ) from error


def _batches(path: Path) -> Iterator[Any]:
    """Return the batches of rows of a file. Raises: OSError, ValueError, UsageError (no Arrow here)."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            f"{path.name} needs Arrow to be read, and it is not installed", "", "pip install pyarrow"
        ) from None
    if path.suffix.lower() in _PARQUET:
        return iter(parquet.ParquetFile(path).iter_batches(batch_size=_ROWS))
    reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
    return (reader.get_batch(number) for number in range(reader.num_record_batches))

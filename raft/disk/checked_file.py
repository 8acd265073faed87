"""Small text records that are replaced as a whole: identity, manifest, and notes about unfinished work.

Owns: their format, one line `LMQ <kind> <version> <crc32c of the rest>` followed by a JSON object, so that
people can read them; and the safe way to replace one: temporary file, fsync, rename, directory fsync.
A record that a node cannot do without is stored twice in its file. Each copy has its own blocks, padded with
empty lines, so a bad sector or a flipped bit does not destroy both. Both are written before the file gets its
name, so they never differ.
Must not: know what the fields mean.
"""

from __future__ import annotations

import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from ledgermq.proto.errors import CorruptError, NewerFormatError

from .files import File, FileSystem

_log = logging.getLogger(__name__)

_TEMPORARY: Final = ".new"
_MAX_SIZE: Final = 1 << 20
_BLOCK: Final = 4096


def write_record(
    files: FileSystem, path: Path, kind: str, version: int, fields: dict[str, Any], *, twice: bool = False
) -> None:
    """Replace the record at `path` durably and atomically. Raises: OSError."""
    raw = _encode(kind, version, fields, twice=twice)
    temporary = path.with_name(path.name + _TEMPORARY)
    if files.exists(temporary):
        files.unlink(temporary)  # left by a crash; it may be longer than the new record
    with closing(files.open(temporary, create=True)) as file:
        file.pwritev([raw], 0)
        file.fdatasync()
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def keep_record(files: FileSystem, path: Path, kind: str, version: int, fields: dict[str, Any]) -> None:
    """Rewrite a record unless its file holds two intact copies.

    One copy may be damaged, or an earlier build wrote only one. Raises: OSError.
    """
    file = files.open(path, writable=False)
    try:
        there = file.pread(_MAX_SIZE, 0)
    except OSError:  # a bad sector under one of the copies
        there = b""
    finally:
        file.close()
    if there != _encode(kind, version, fields, twice=True):
        write_record(files, path, kind, version, fields, twice=True)


def _encode(kind: str, version: int, fields: dict[str, Any], *, twice: bool) -> bytes:
    body = (json.dumps(fields, sort_keys=True, indent=1) + "\n").encode()
    if not twice:
        return _head(kind, version, body) + body
    body += b"\n" * (-(len(_head(kind, version, body)) + len(body)) % _BLOCK)
    return (_head(kind, version, body) + body) * 2


def _head(kind: str, version: int, body: bytes) -> bytes:
    return f"LMQ {kind} {version} {crc32c(body):08x}\n".encode()


def read_record(files: FileSystem, path: Path, kind: str, version: int) -> dict[str, Any]:
    """Read and check a record of `version` or older.

    Raises: FileNotFoundError, CorruptError, NewerFormatError, OSError.
    """
    file = files.open(path, writable=False)
    problems: list[CorruptError | NewerFormatError | OSError] = []
    try:
        for offset, size in _places(file):
            try:
                fields = _decode(file.pread(size, offset), kind, version)
            except (CorruptError, NewerFormatError, OSError) as error:
                problems.append(error)
                continue
            if problems:
                _log.warning("the other copy of a record is used path=%s reason=%r", path, str(problems[0]))
            return fields
    finally:
        file.close()
    raise next((error for error in problems if isinstance(error, NewerFormatError)), problems[0])


def _places(file: File) -> list[tuple[int, int]]:
    """Return the places where a copy may be, as (offset, size)."""
    size = min(file.size(), _MAX_SIZE)
    half = size // 2
    if half and not half % _BLOCK:
        return [
            (0, half),
            (half, half),
            (0, size),
        ]  # the last one: a single record of just this size
    return (
        [(0, size), (0, _BLOCK)] if size > _BLOCK else [(0, size)]
    )  # truncated file: the first copy may still be whole


def _decode(raw: bytes, kind: str, version: int) -> dict[str, Any]:
    head, _, body = raw.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[:2] != ["LMQ", kind] or not words[2].isdecimal() or len(words[2]) > 9:
        raise CorruptError(f"no {kind} record", 0)
    if int(words[2]) > version:
        raise NewerFormatError(kind, int(words[2]), version)
    if words[3] != f"{crc32c(body):08x}":
        raise CorruptError(f"{kind} checksum mismatch", 0)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise CorruptError(f"{kind} record is no JSON object", 0)
    return fields

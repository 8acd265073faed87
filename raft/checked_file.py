"""Small text records that are replaced as a whole: identity and manifest.

Owns: their format, one line `LMQ <kind> <version> <crc32c of the rest>` and a JSON object below it, so that a
person can read them; and the safe way to replace one: temporary file, fsync, rename, directory fsync.
Must not: know what the fields mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from ledgermq.proto.errors import CorruptError, NewerFormatError

from .files import FileSystem

_TEMPORARY: Final = ".new"
_MAX_SIZE: Final = 1 << 20


def write_record(files: FileSystem, path: Path, kind: str, version: int, fields: dict[str, Any]) -> None:
    """Replace the record at `path` durably and atomically. Raises: OSError."""
    body = (json.dumps(fields, sort_keys=True, indent=1) + "\n").encode()
    head = f"LMQ {kind} {version} {crc32c(body):08x}\n".encode()
    temporary = path.with_name(path.name + _TEMPORARY)
    if files.exists(temporary):
        files.unlink(temporary)  # of a crash; it may be longer than what comes now
    file = files.open(temporary, create=True)
    try:
        file.pwritev([head, body], 0)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def read_record(files: FileSystem, path: Path, kind: str, version: int) -> dict[str, Any]:
    """Read and check a record of `version` or older.

    Raises: FileNotFoundError, CorruptError, NewerFormatError, OSError.
    """
    file = files.open(path, writable=False)
    try:
        raw = file.pread(_MAX_SIZE, 0)
    finally:
        file.close()
    head, _, body = raw.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if len(words) != 4 or words[:2] != ["LMQ", kind] or not words[2].isdecimal():
        raise CorruptError(f"no {kind} record", 0)
    if int(words[2]) > version:
        raise NewerFormatError(kind, int(words[2]), version)
    if words[3] != f"{crc32c(body):08x}":
        raise CorruptError(f"{kind} checksum mismatch", 0)
    fields: dict[str, Any] = json.loads(body)
    return fields

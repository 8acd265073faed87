"""Digest files of a data folder (proto/digest_file.py): one per segment, deleted with it.

Like an entry index, a digest file can always be made again from its segment; a damaged one counts as missing.
Owns: the files `blockdigest/<20-digit start offset>`. Must not: decide what a digest is worth (repair/).
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from ledgermq.proto.digest_file import MAX_FILE_SIZE, SegmentDigests, decode_digests, encode_digests
from ledgermq.proto.errors import LayoutError

from ..disk.files import FileSystem, is_full
from .segment import PREPARING


def digest_path(folder: Path, start: int) -> Path:
    """Return the path of the digests of the segment that starts at `start`."""
    return folder / f"{start:020d}"


def write_digests(files: FileSystem, folder: Path, digests: SegmentDigests) -> None:
    """Write the digest file of a segment, unless the disk is full. Raises: OSError.

    It is not synced: it carries a checksum and can be made again.
    """
    files.make_directory(folder)
    path = digest_path(folder, digests.start)
    temporary = path.with_name(path.name + PREPARING)
    try:
        remove_file(files, temporary)
        with closing(files.open(temporary, create=True)) as file:
            file.pwritev([encode_digests(digests)], 0)
    except OSError as error:
        if not is_full(error):
            raise
        with suppress(OSError):
            remove_file(files, temporary)
        return
    files.rename(temporary, path)


def read_digests(files: FileSystem, folder: Path, start: int) -> SegmentDigests | None:
    """Read the digest file of a segment. None: it is missing, unreadable, damaged, or of a newer version."""
    try:
        with closing(files.open(digest_path(folder, start), writable=False)) as file:
            digests = decode_digests(file.pread(min(file.size(), MAX_FILE_SIZE + 1), 0))
    except (OSError, LayoutError):
        return None
    return digests if digests.start == start else None


def remove_digests(files: FileSystem, folder: Path, start: int) -> None:
    """Remove the digest file of a segment if there is one. Raises: OSError."""
    remove_file(files, digest_path(folder, start))


def remove_file(files: FileSystem, path: Path) -> None:
    """Remove a file if it exists. Raises: OSError."""
    with suppress(FileNotFoundError):  # another thread may remove it first
        if files.exists(path):
            files.unlink(path)

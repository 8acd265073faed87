"""Note that a node stores before it repairs its log in place, so that a crash cannot hide the damage (P18).

A repair overwrites damaged bytes. If it stops half way, the log may end inside the last flush turn and look
like a torn tail, although more was durable before, and perhaps acknowledged. The file `repair` records how
far the log must reach again. Recovery treats a log that ends earlier as damaged, whatever its end looks like.

Owns: the file `repair`.   Must not: decide what to repair (recovery.py finds it, log/rewrite.py does it).
Invariants: the note is durable before the first byte is overwritten. It is removed once recovery accepts the
log, or after the hard state gave up the vote and recorded the cut.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..damage import RepairNote
from ..disk.checked_file import read_record, write_record
from ..disk.files import FileSystem
from ..errors import NewerFolderError

NOTE_VERSION: Final = 1
_KIND: Final = "repair"


def note_path(data_dir: Path) -> Path:
    """Return the path of the note in a data folder."""
    return data_dir / "repair"


def read_note(files: FileSystem, data_dir: Path) -> RepairNote | None:
    """Return the note of an unfinished repair, or None. Raises: CorruptError, NewerFormatError, OSError."""
    try:
        return RepairNote(**read_record(files, note_path(data_dir), _KIND, NOTE_VERSION))
    except FileNotFoundError:
        return None
    except TypeError:
        raise CorruptError("repair record with other fields than this build knows", 0) from None


def read_note_of(node: str, files: FileSystem, data_dir: Path) -> RepairNote | None:
    """Like `read_note`, but an unreadable note demands the whole log. Raises: NewerFolderError, OSError."""
    try:
        return read_note(files, data_dir)
    except CorruptError:
        return RepairNote(0, 0, open_ended=True)
    except NewerFormatError as error:
        raise NewerFolderError(node, note_path(data_dir), error) from None


def write_note(files: FileSystem, data_dir: Path, note: RepairNote) -> None:
    """Store the note durably. Raises: OSError."""
    write_record(files, note_path(data_dir), _KIND, NOTE_VERSION, asdict(note))


def remove_note(files: FileSystem, data_dir: Path) -> None:
    """Remove the note durably: the repair is done. Raises: OSError."""
    files.unlink(note_path(data_dir))
    files.sync_directory(data_dir)

"""What a node writes down before it repairs its log in place, so that a crash half way cannot hide the damage (P18).

A repair overwrites damaged bytes. Stopped in the middle, it would leave a log that ends in the last flush turn and
looks like a torn tail, although more was durable, and perhaps acknowledged, before. The file `repair` says how far
the log has to reach again; recovery takes a log that ends before that for damaged, whatever its end looks like.

Owns: the file `repair`.   Must not: decide what to repair (recovery.py finds it, log/rewrite.py does it).
Invariants: durable before the first byte is overwritten; removed when recovery believes the log, or after the hard
state gave up the vote and named the cut.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..damage import RepairNote
from ..disk.checked_file import read_record, write_record
from ..disk.files import FileSystem
from ..errors import NewerFolderError

if TYPE_CHECKING:
    pass

NOTE_VERSION: Final = 1
_KIND: Final = "repair"


def note_path(data_dir: Path) -> Path:
    """Return the path of the note in a data folder."""
    return data_dir / "repair"


def read_note(files: FileSystem, data_dir: Path) -> RepairNote | None:
    """Return the note of a repair that is under way. Raises: CorruptError, NewerFormatError, OSError."""
    try:
        return RepairNote(**read_record(files, note_path(data_dir), _KIND, NOTE_VERSION))
    except FileNotFoundError:
        return None
    except TypeError:
        raise CorruptError("repair record with other fields than this build knows", 0) from None


def read_note_of(node: str, files: FileSystem, data_dir: Path) -> RepairNote | None:
    """As `read_note`, but a note that cannot be read asks for everything. Raises: NewerFolderError, OSError."""
    try:
        return read_note(files, data_dir)
    except CorruptError:
        return RepairNote(0, 0, open_ended=True)
    except NewerFormatError as error:
        raise NewerFolderError(node, note_path(data_dir), error.what, error.found, error.supported) from None


def write_note(files: FileSystem, data_dir: Path, note: RepairNote) -> None:
    """Store the note durably. Raises: OSError."""
    write_record(files, note_path(data_dir), _KIND, NOTE_VERSION, asdict(note))


def remove_note(files: FileSystem, data_dir: Path) -> None:
    """Remove the note durably: the repair is done. Raises: OSError."""
    files.unlink(note_path(data_dir))
    files.sync_directory(data_dir)

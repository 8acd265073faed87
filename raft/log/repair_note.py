"""What a node writes down before it repairs its log in place, so that a crash half way cannot hide the damage (P18).

A repair overwrites damaged bytes. Stopped in the middle, it would leave a log that ends in the last flush turn and
looks like a torn tail, although more was durable, and perhaps acknowledged, before. The file `repair` says how far
the log has to reach again; recovery takes a log that ends before that for damaged, whatever its end looks like.

Owns: the file `repair`.   Must not: decide what to repair (recovery.py finds it, log/rewrite.py does it).
Invariants: durable before the first byte is overwritten; removed when recovery believes the log, or after the hard
state gave up the vote and named the cut.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..disk.checked_file import read_record, write_record
from ..disk.files import FileSystem
from ..errors import NewerFolderError

if TYPE_CHECKING:
    from .segment_scan import Before

NOTE_VERSION: Final = 1
_KIND: Final = "repair"


@dataclass(frozen=True, slots=True)
class RepairNote:
    """How far the log held valid entries, or promised some: physical offset, and index of the last one known."""

    must_reach: int
    reach_index: int
    #: How far the log reached is not known: nobody can tell what was acknowledged behind the damage.
    open_ended: bool
    #: The incarnation under which the node comes back as a learner; 0: it keeps its vote.
    rejoin_as: int = 0

    def joined(self, other: RepairNote) -> RepairNote:
        """Return what both of them ask for."""
        return RepairNote(
            max(self.must_reach, other.must_reach),
            max(self.reach_index, other.reach_index),
            self.open_ended or other.open_ended,
            self.rejoin_as or other.rejoin_as,
        )

    def is_reached(self, offset: int, index: int) -> bool:
        """Tell whether a log that ends at `offset` with entry `index` holds all that it must."""
        return offset >= self.must_reach and index >= self.reach_index and not self.open_ended


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a log stops being valid although it goes on, or went on."""

    before: Before  # what the first missing entry must continue
    offset: int  # physical offset where it must stand (a filler may come first)
    note: RepairNote
    #: The same places at the ends of the segments before, oldest first: to go back to when what stands in front of the
    #: damage was never committed.
    earlier: tuple[tuple[Before, int], ...] = ()


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

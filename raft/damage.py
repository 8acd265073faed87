"""Where a log stops being valid, and what a node noted before it began to repair it (P18). Values only, pure.

`recovery.py` finds damage, `log/rewrite.py` repairs it, `log/repair_note.py` stores the note.
"""

from __future__ import annotations

from dataclasses import dataclass

from .types import LogIndex, Term


@dataclass(frozen=True, slots=True)
class Before:
    """What the next entry must continue."""

    index: LogIndex
    term: Term
    crc: int
    timestamp: int


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

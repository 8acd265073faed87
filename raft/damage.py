"""Damage of a log, and the note that a node stores before it repairs it (P18). Values only, pure.

`recovery.py` finds damage, `log/rewrite.py` repairs it, `log/repair_note.py` stores the note.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.proto.entry import EntryHeader

from .types import LogIndex, Term


@dataclass(frozen=True, slots=True)
class Before:
    """State of the chain that the next entry must continue."""

    index: LogIndex  # of the entry before; the next entry has index + 1
    term: Term  # the next entry's term is not lower
    crc: int  # the next entry must carry it as its previous checksum
    timestamp: int  # log time (ms); the next entry's is not lower

    @classmethod
    def after(cls, header: EntryHeader) -> Before:
        """Return the state after an entry or filler."""
        return cls(LogIndex(header.index), Term(header.term), header.crc, header.timestamp)


@dataclass(frozen=True, slots=True)
class RepairNote:
    """How far the log held valid entries, or promised some."""

    # physical offset that the repaired log must reach
    must_reach: int
    reach_index: int  # index that the repaired log must reach
    #: True: it is unknown how far the log reached, and therefore what was acknowledged after the damage.
    open_ended: bool
    #: Incarnation under which the node comes back as a learner; 0: it keeps its vote.
    rejoin_as: int = 0

    def joined(self, other: RepairNote) -> RepairNote:
        """Return a note that demands what either of both demands."""
        return RepairNote(
            max(self.must_reach, other.must_reach),
            max(self.reach_index, other.reach_index),
            self.open_ended or other.open_ended,
            self.rejoin_as or other.rejoin_as,
        )

    def is_reached(self, offset: int, index: int) -> bool:
        """Return whether a log that ends at `offset` with entry `index` is complete."""
        return offset >= self.must_reach and index >= self.reach_index and not self.open_ended


@dataclass(frozen=True, slots=True)
class Damage:
    """Position where a log stops being valid although it continues, or continued."""

    before: Before  # what the first missing entry must continue
    offset: int  # physical offset where that entry must be (a filler may come first)
    note: RepairNote  # how far the log must reach again
    #: The same positions at the ends of earlier segments, oldest first: to fall back to if the entries before
    #: the damage were never committed.
    earlier: tuple[tuple[Before, int], ...] = ()

"""Names of the numbers that Raft talks about, and the part of its state that must survive a crash.

Owns: nothing; plain values. Raft paper: figure 2, "Persistent state on all servers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

Term = NewType("Term", int)
"""Election period. 0 before the first election."""

LogIndex = NewType("LogIndex", int)
"""Position of an entry in the replicated log. The first entry ever is 1; 0 means "before the log"."""

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the CommitLog."""

NodeId = NewType("NodeId", str)
"""Name of a member of the group, unique inside it."""

NO_TERM: Final = Term(0)
NO_INDEX: Final = LogIndex(0)

#: No node ever is in a higher term. At one election per 100 ms it is reached in a billion years.
LAST_TERM: Final = Term((1 << 63) - 1)
#: A peer that is so many terms ahead did not get there by elections: they would have taken days.
MAX_TERM_JUMP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node has promised. One record on disk, durable before any message that depends on it (rule P1)."""

    term: Term = NO_TERM
    voted_for: NodeId | None = None  # in `term`; never cleared inside a term
    commit_hint: LogIndex = NO_INDEX  # at most the commit index; only a hint at restart (rule P13)
    # False: a node that came back without its log; neither votes nor campaigns (rule P19)
    is_voter: bool = True

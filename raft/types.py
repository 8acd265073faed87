"""Basic types of Raft, and the part of its state that must survive a crash.

Owns: nothing; plain values. Raft paper: figure 2, "Persistent state on all servers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

Term = NewType("Term", int)
"""Election period; 0 before the first election."""

LogIndex = NewType("LogIndex", int)
"""Position of an entry in the replicated log. The first entry ever is 1; 0 means "before the log"."""

NodeId = NewType("NodeId", str)
"""Name of a member, unique within its broker group."""

NO_TERM: Final = Term(0)
NO_INDEX: Final = LogIndex(0)
FIRST_INDEX: Final = LogIndex(1)

#: No node is ever in a higher term. At one election per 100 ms it takes a billion years to get there.
LAST_TERM: Final = Term((1 << 63) - 1)
#: A peer so many terms ahead did not get there by elections, which would have taken days.
MAX_TERM_JUMP: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HardState:
    """Promises of a node: one record on disk, durable before any message that depends on it (rule P1)."""

    term: Term = NO_TERM  # latest term seen; invariant: never decreases within one broker group
    voted_for: NodeId | None = None  # vote in `term`; invariant: never cleared or changed within a term
    commit_hint: LogIndex = NO_INDEX  # at most the commit index; only a hint after a restart (rule P13)
    # False: a node that came back without its log. It neither votes nor campaigns (rule P19).
    is_voter: bool = True

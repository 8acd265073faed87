"""Settings of a core, and the log that it starts with.

Owns: the values and their limits. Must not: know milliseconds. Times are ticks; the shell decides how long a
tick is (10 ms by default).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..types import FIRST_INDEX, NO_INDEX, NO_TERM, LogIndex, NodeId, Term
from .messages import TermRun


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Settings of one core. Invariant: 2 * heartbeat_ticks <= election_ticks_min < election_ticks_max."""

    node_id: NodeId
    voters: tuple[NodeId, ...]  # members whose votes and copies count
    non_voters: tuple[NodeId, ...] = ()  # members that get the log and never vote, lead or count for commit
    heartbeat_ticks: int = 7  # between two heartbeats of a leader, and between two tries of what may be lost
    # Shortest election timeout. Also how long a silent leader is protected, and how long a leader leads
    # without an answer of a quorum
    election_ticks_min: int = 40
    election_ticks_max: int = 80  # exclusive
    forget_ticks_max: int = 5  # campaign within this many ticks after the leader was found dead
    # After a broken connection to the leader that was not refused: campaign 2 * forget_ticks_max to this many
    # ticks later
    suspect_ticks_max: int = 60
    patience_ticks_max: int = 160  # an election timeout grows by at most this many on a machine that is late
    lateness_window_ticks: int = 1500  # lateness is forgotten after one to two of these
    max_inflight_messages: int = 256  # per follower: AppendEntries sent and not acknowledged
    max_inflight_bytes: int = 8 << 20  # per follower: bytes of their entries
    max_append_bytes: int = 1 << 20  # bytes of entries in one AppendEntries; a single larger entry still goes
    max_uncommitted_bytes: int = 64 << 20  # of own proposals; above it a leader answers Busy
    first_term: Term = (
        NO_TERM  # of this generation of the broker group; its first leader may be in a later one
    )

    def __post_init__(self) -> None:
        if self.node_id not in self.members:
            raise ValueError(f"{self.node_id} is not one of the members {', '.join(self.members)}")
        if len(set(self.members)) != len(self.members):
            raise ValueError(f"a member is named twice: {', '.join(self.members)}")
        if not 0 < 2 * self.heartbeat_ticks <= self.election_ticks_min < self.election_ticks_max:
            raise ValueError("need 0 < 2 * heartbeat_ticks <= election_ticks_min < election_ticks_max")

    @property
    def members(self) -> tuple[NodeId, ...]:
        """All nodes that get the log, this one included."""
        return (*self.voters, *self.non_voters)


@dataclass(frozen=True, slots=True)
class LogView:
    """Log of a starting node. Invariant: first_index - 1 <= applied_index <= stable_index <= last_index."""

    first_index: LogIndex = FIRST_INDEX  # of the first retained entry (last_index + 1 when there is none)
    base_term: Term = NO_TERM  # of the entry first_index - 1, which is always committed
    term_runs: tuple[TermRun, ...] = ()  # of first_index..last_index, oldest first
    last_index: LogIndex = NO_INDEX  # of the newest entry; base index (first_index - 1) when there is none
    stable_index: LogIndex = NO_INDEX  # durable up to here
    applied_index: LogIndex = NO_INDEX  # the state machine already has the entries up to here
    # A state that a reset installed is that after this entry. The node may campaign once its log reaches it
    state_index: LogIndex = NO_INDEX

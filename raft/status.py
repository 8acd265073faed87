"""Status of a broker group as one node knows it, for `ledgermq cluster status` and the admin service.

Plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .types import LogIndex, NodeId, Term


@dataclass(slots=True)
class StartStep:
    """Current step of a node's start. The thread that does it sets it; any thread may call it."""

    doing: Callable[[], str] = lambda: "opens its data folder"


@dataclass(slots=True)
class CheckCounts:
    """Results of reading the log since the start of this process."""

    read_bytes: int = 0  # bytes read by the scrubber
    passes: int = 0  # complete passes over the log
    found: int = 0  # damaged ranges found
    repaired: int = 0  # damaged ranges repaired
    last: str = ""  # description of the last damage; empty: none was found


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One member as this node sees it. Progress fields are None unless this node leads."""

    node_id: NodeId
    address: str
    role: str  # leader | follower | candidate | learner | unknown
    connected: bool
    durable_index: LogIndex | None  # highest index known to be durable there
    commit_index: LogIndex | None
    behind_bytes: int | None  # log bytes that it does not hold yet
    last_contact_ms: int | None  # time since anything arrived from it
    fsync_p99_ms: float | None  # as it reported
    disk_used_ratio: float | None  # 0..1 of its data file system, as it reported
    catching_up: bool
    repairing: str = ""  # its log repair in progress; empty: none
    refused: str = ""  # why this node refused its last greeting; empty: it did not, or it is connected
    refused_lately: bool = False  # it is alive and keeps trying
    # as in its last greeting of this run (D23); None: not met
    feature_level: int | None = None


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """Snapshot of a node. `since_ms`: how long role and term have been unchanged."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int
    group_id: int  # 0: not known yet
    former_group_ids: tuple[int, ...]  # before it was recovered, or before a master was promoted
    role: str  # starting | learner | follower | candidate | leader | faulted | stopped
    term: Term
    since_ms: int
    leader_id: NodeId | None
    leader_ready: bool
    voters: int
    voters_reachable: int  # including itself
    flush: str
    first_index: LogIndex
    last_index: LogIndex
    # term of the last entry; of two logs the one with the higher last term is newer, then the longer one
    last_term: Term
    durable_index: LogIndex
    commit_index: LogIndex
    applied_index: LogIndex
    log_bytes: int
    fsync_p99_ms: float
    disk_used_ratio: float
    timer_lateness_ms: int  # recurring lateness of its own timers
    heartbeat_lateness_ms: int  # the same of the leader's heartbeats; on a leader, of their replies
    election_timeout_ms: int  # current minimum; grows with both kinds of lateness
    election_timeout_added_ms: int  # part of it that was added because of lateness
    clock_offset_ms: int  # wall clock minus log time
    fault: str | None
    replication: str  # quorum | async_master | sync_master
    master: str  # of a broker group with a master; else empty
    generation: int  # number of promotions
    held_back: str  # why this node finds no leader; empty: nothing known
    log_check: CheckCounts  # a copy
    peers: tuple[PeerStatus, ...]  # every member, this one included, in configured order

    @property
    def has_quorum(self) -> bool:
        """True if a majority of the voters is reachable from here."""
        return self.voters_reachable * 2 > self.voters

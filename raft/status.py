"""What a node knows of its group, for `ledgermq cluster status` and the admin service. Plain values, no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .types import LogIndex, NodeId, Term


@dataclass(slots=True)
class StartStep:
    """What a node does before it runs; set by the thread that does it, called by whoever asks."""

    doing: Callable[[], str] = lambda: "opens its data folder"


@dataclass(slots=True)
class CheckCounts:
    """What reading the log has shown since the start of this process."""

    read_bytes: int = 0  # by the scrubber
    passes: int = 0
    found: int = 0
    repaired: int = 0
    last: str = ""  # about the last damage; empty: none was found


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One member as this node sees it. Progress fields are None unless this node leads."""

    node_id: NodeId
    address: str
    role: str  # leader | follower | candidate | learner | unknown
    connected: bool
    durable_index: LogIndex | None  # highest index known to be on its disk
    commit_index: LogIndex | None
    behind_bytes: int | None  # log bytes that it does not hold yet
    last_contact_ms: int | None  # since anything was heard from it
    fsync_p99_ms: float | None  # as it reported it
    disk_used_ratio: float | None  # 0..1 of its data file system, as it reported it
    catching_up: bool
    repairing: str = ""  # what it repairs of its log; empty: nothing
    refused: str = ""  # why this node refused its last greeting; empty: it did not, or it is connected
    refused_lately: bool = False  # it is there and keeps on trying
    feature_level: int | None = (
        None  # as it said in its last greeting of this run (D23); None: it was not met
    )


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """A snapshot; `since_ms` is how long the role and term have been as they are."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int
    group_id: int  # 0: not known yet
    former_group_ids: tuple[int, ...]  # of this group before it was recovered, or a master promoted
    role: str  # starting | learner | follower | candidate | leader | faulted | stopped
    term: Term
    since_ms: int
    leader_id: NodeId | None
    leader_ready: bool
    voters: int
    voters_reachable: int  # itself included
    flush: str
    first_index: LogIndex
    last_index: LogIndex
    last_term: (
        Term  # of that entry: of two logs the one with the higher has more, and among equals the longer one
    )
    durable_index: LogIndex
    commit_index: LogIndex
    applied_index: LogIndex
    log_bytes: int
    fsync_p99_ms: float
    disk_used_ratio: float
    timer_lateness_ms: int  # how late its own timers lately were, again and again
    heartbeat_lateness_ms: int  # the same of the leader's heartbeats; on a leader of their answers
    election_timeout_ms: int  # the shortest now: it grows with both
    election_timeout_added_ms: int  # by so much
    clock_offset_ms: int  # wall clock minus log time
    fault: str | None
    replication: str  # quorum | async_master | sync_master
    master: str  # of a group with one; else empty
    generation: int  # how often another master was promoted
    held_back: str  # why this node finds no leader, as far as it can tell; empty: nothing is known
    log_check: CheckCounts  # a copy
    peers: tuple[PeerStatus, ...]  # every member, this one included, in configured order

    @property
    def has_quorum(self) -> bool:
        """Tell whether a majority of the voters can be reached from here."""
        return self.voters_reachable * 2 > self.voters

"""Status of a broker group as one node knows it. Plain values.

This is where a field is named. The admin service passes on every field that has its name in
`GetStatusResponse` or `NodeStatus` (proto/admin.proto), `ledgermq cluster status` every one that has its name
in `NodeRow` or `BrokerGroupReport` (client/admin/status_report.py). `Published` makes a field a metric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, get_type_hints

from .types import LogIndex, NodeId, Term


class Published(NamedTuple):
    """The gauge that shows a field; `scale` turns its unit into the base unit."""

    name: str
    help: str
    scale: float = 1


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
    """Snapshot of a node. `term_age_ms`: how long role and term have been unchanged."""

    cluster: str
    group: str
    node_id: NodeId
    incarnation: int
    group_id: int  # 0: not known yet
    former_group_ids: tuple[int, ...]  # before it was recovered, or before a master was promoted
    role: str  # starting | learner | follower | candidate | leader | faulted | stopped
    term: Annotated[Term, Published("ledgermq_raft_term", "Current term")]
    term_age_ms: int
    leader_id: NodeId | None
    voters: int
    voters_reachable: int  # including itself
    flush: str
    first_index: LogIndex
    last_index: Annotated[LogIndex, Published("ledgermq_raft_last_index", "Last entry of the log")]
    # term of the last entry; of two logs the one with the higher last term is newer, then the longer one
    last_term: Term
    durable_index: LogIndex
    commit_index: Annotated[
        LogIndex, Published("ledgermq_raft_commit_index", "Highest committed entry known here")
    ]
    applied_index: Annotated[LogIndex, Published("ledgermq_raft_applied_index", "Highest entry applied here")]
    log_bytes: Annotated[int, Published("ledgermq_raft_log_bytes", "Bytes of the retained log")]
    uncommitted_bytes: Annotated[
        int, Published("ledgermq_raft_uncommitted_bytes", "Bytes that wait for commit on the leader")
    ]
    fsync_p99_ms: Annotated[
        float,
        Published(
            "ledgermq_raft_fsync_seconds_p99", "99th percentile of write and fdatasync, last 1,024", 1e-3
        ),
    ]
    disk_used_ratio: Annotated[
        float, Published("ledgermq_raft_disk_used_ratio", "Used part of the data file system")
    ]
    timer_lateness_ms: Annotated[
        int,
        Published(
            "ledgermq_raft_timer_lateness_seconds",
            "How late this node's timers lately were, again and again",
            1e-3,
        ),
    ]
    heartbeat_lateness_ms: Annotated[
        int,
        Published(
            "ledgermq_raft_heartbeat_lateness_seconds",
            "The same of heartbeats, on a leader of their answers",
            1e-3,
        ),
    ]
    election_timeout_ms: Annotated[
        int,
        Published(
            "ledgermq_raft_election_timeout_seconds",
            "Shortest election timeout now: it grows with lateness",
            1e-3,
        ),
    ]
    election_timeout_added_ms: int  # part of it that was added because of lateness
    clock_offset_ms: Annotated[
        int, Published("ledgermq_raft_clock_offset_seconds", "Wall clock minus log time", 1e-3)
    ]
    replication: str  # quorum | async_master | sync_master
    master_id: str  # of a broker group with a master; else empty
    generation: int  # number of promotions
    log_check: CheckCounts  # a copy
    held_back: str  # why this node finds no leader; empty: nothing known
    peers: tuple[PeerStatus, ...]  # every member, this one included, in configured order


#: Field of RaftStatus → its metric.
GAUGES = {
    name: each
    for name, hint in get_type_hints(RaftStatus, include_extras=True).items()
    for each in getattr(hint, "__metadata__", ())
}

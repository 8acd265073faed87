"""Settings of a RaftNode: its identity, its peers, its data folder and its limits.

Owns: the defaults of the consensus layer and their validation. Must not: read files or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .core.config import CoreConfig
from .core.reign import Reign, Replication, first_term_of
from .errors import ConfigurationError
from .peer_tls import NO_TLS, PeerTls
from .types import NO_TERM, NodeId

#: Observed lateness is forgotten after one to two of these windows.
LATENESS_WINDOW_MS: Final = 15_000
DEFAULT_SEGMENT_SIZE: Final = 1 << 30
MAX_ENTRY_DIVISOR: Final = 4  # no entry is larger than a quarter of a segment (D4)
CONTROL_FRAME_SIZE: Final = 1 << 20  # maximum size of a frame without entries
STALL_HEARTBEATS: Final = 4  # heartbeat intervals; shorter stalls of a stream are ignored


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the broker group and the `host:port` of its Raft listener."""

    node_id: NodeId
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of the streams between nodes. Sizes are in bytes, times in seconds."""

    append_frame: int = 16 << 20  # maximum size of a frame on an append stream
    control_frame: int = CONTROL_FRAME_SIZE
    stall_s: float = 0.3  # shorter stalls of a stream are ignored
    # a frame in progress must be complete, or grow by a fair amount, within this time
    whole_frame_s: float = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Settings of one node of one broker group. Times are in milliseconds, sizes in bytes."""

    cluster_id: str
    group: str
    node_id: NodeId
    # Every node of the broker group, including this one. All vote unless there is a master.
    members: tuple[Member, ...]
    data_dir: Path  # the node's data folder; the log is in `commitlog/` below it
    bind: str = ""  # listener `host:port`; empty: this member's address
    rejoin: bool = False  # come back with an empty log under a known id (P19)
    segment_size: int = DEFAULT_SEGMENT_SIZE
    flush: str = "sync"  # sync | async_timed | async_notify (D7)
    direct_write_bytes: int = 128 << 10  # turns of at least this size bypass the page cache; 0: none do
    replication: Replication = Replication.QUORUM
    # First master; empty: as the folder says. A promotion recorded in the data folder takes precedence.
    master: str = ""
    reign: Reign | None = None  # of the open data folder; None: a majority decides
    tick_ms: int = 10
    heartbeat_ms: int = 75
    election_ms_min: int = 400
    election_ms_max: int = 800
    max_uncommitted_bytes: int = 64 << 20  # proposals beyond it fail with BusyError
    max_inflight_bytes: int = 8 << 20  # per follower, sent and not acknowledged yet
    max_inflight_messages: int = 256
    max_append_bytes: int = 1 << 20  # entry bytes in one AppendEntries; a single entry may be larger
    apply_slice_bytes: int = 1 << 20  # entry bytes applied before the loop gets its next turn
    scrub_bytes_per_second: int = 8 << 20  # rate of reading and verifying the whole log; 0: off
    scrub_interval_s: float = 7 * 24 * 3600.0  # a pass over the log starts this often, and takes no longer
    seed: int | None = None  # of the election timer; None: from the operating system
    feature_level: int = 1
    tls: PeerTls = NO_TLS
    peers: tuple[Member, ...] = field(init=False)

    def __post_init__(self) -> None:
        ids = [member.node_id for member in self.members]
        if len(set(ids)) != len(ids):
            raise ConfigurationError(
                f"two members of broker group {self.group} have the same id: {', '.join(ids)}"
            )
        if self.node_id not in ids:
            raise ConfigurationError(
                f"node {self.node_id} is not among the members of broker group {self.group} "
                f"({', '.join(ids)})"
            )
        self._check_master(ids)
        if not 0 < self.heartbeat_ms * 2 <= self.election_ms_min < self.election_ms_max:
            raise ConfigurationError(
                "election timeout must be at least twice the heartbeat interval, and its minimum below its "
                f"maximum: heartbeat {self.heartbeat_ms} ms, election "
                f"{self.election_ms_min}-{self.election_ms_max} ms"
            )
        object.__setattr__(self, "peers", tuple(m for m in self.members if m.node_id != self.node_id))

    def _check_master(self, ids: list[NodeId]) -> None:
        if self.master and not self.replication.has_master:
            raise ConfigurationError(
                f"broker group {self.group} has replication quorum, where the nodes elect a leader, and a "
                f"master is named ({self.master}): leave `master` out, or set `replication` to async_master "
                "or sync_master"
            )
        if self.master and self.master not in ids:
            raise ConfigurationError(
                f"the master {self.master} is not among the members of broker group {self.group} "
                f"({', '.join(ids)})"
            )

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """Nodes that decide what is committed: every member, or the master alone."""
        if self.reign is not None:
            return (self.reign.master,)
        return tuple(member.node_id for member in self.members)

    @property
    def is_slave(self) -> bool:
        """True if this node receives the log of a master and has no vote."""
        return self.reign is not None and self.reign.master != self.node_id

    @property
    def not_judged(self) -> frozenset[NodeId]:
        """Members whose identity a slave does not check: the other slaves. The master checks them."""
        return frozenset(m.node_id for m in self.peers if self.is_slave and m.node_id not in self.voters)

    @property
    def address(self) -> str:
        """Address of this node, as its peers know it."""
        return next(m.address for m in self.members if m.node_id == self.node_id)

    @property
    def max_entry_size(self) -> int:
        """Maximum size of an entry in the log in bytes, including its header."""
        return self.segment_size // MAX_ENTRY_DIVISOR

    def stream_limits(self) -> StreamLimits:
        """Return the limits of the streams to and from the peers."""
        return StreamLimits(
            # One large entry or several small ones, plus a head that names all their terms.
            append_frame=max(self.max_entry_size, self.max_append_bytes) + CONTROL_FRAME_SIZE,
            stall_s=STALL_HEARTBEATS * self.heartbeat_ms / 1000,
            whole_frame_s=self.election_ms_max / 1000,
        )

    def core_config(self) -> CoreConfig:
        """Return the core's settings, in ticks."""
        tick = self.tick_ms
        return CoreConfig(
            node_id=self.node_id,
            voters=self.voters,
            non_voters=tuple(m.node_id for m in self.members if m.node_id not in self.voters),
            heartbeat_ticks=max(1, self.heartbeat_ms // tick),
            election_ticks_min=self.election_ms_min // tick,
            election_ticks_max=self.election_ms_max // tick,
            patience_ticks_max=2 * self.election_ms_max // tick,
            lateness_window_ticks=LATENESS_WINDOW_MS // tick,
            max_inflight_messages=self.max_inflight_messages,
            max_inflight_bytes=self.max_inflight_bytes,
            max_append_bytes=self.max_append_bytes,
            max_uncommitted_bytes=self.max_uncommitted_bytes,
            first_term=first_term_of(self.reign.generation, NO_TERM) if self.reign is not None else NO_TERM,
        )

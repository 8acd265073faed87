"""Status view: collects a node's knowledge of its broker group into a RaftStatus and metrics. Read-only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from ..config import Member, RaftConfig
from ..core.machine import RaftCore
from ..core.progress import Progress, ProgressState
from ..disk.files import FileSystem
from ..drive.applier import Applier
from ..drive.driver import Driver, RaftTransport
from ..drive.voting_rights import VotingRights
from ..errors import StorageError
from ..folder.storage import RaftStorage
from ..metrics import RaftMetrics
from ..node_status import GAUGES, PeerStatus, RaftStatus
from ..repair.while_running import RangeRepair
from ..transport.hello import Hello, Standing
from ..types import LogIndex, NodeId

logger = logging.getLogger(__name__)

#: A peer that is refused but alive sends a greeting every second (out_stream.REFUSED_DELAY_S).
REFUSED_LATELY_S: Final = 5.0


@dataclass(slots=True)
class StatusView:
    """View of one node on itself and its peers."""

    config: RaftConfig
    storage: RaftStorage
    core: RaftCore
    driver: Driver
    applier: Applier
    rights: VotingRights
    metrics: RaftMetrics
    files: FileSystem
    is_resetting: Callable[[NodeId], bool]
    repair: RangeRepair
    repairing: Callable[[NodeId], str]  # what a peer reported about a repair of its log
    _since: float = field(default_factory=time.monotonic)
    _heard: dict[NodeId, float] = field(default_factory=dict)
    _report: tuple[float, float] = (0.0, 0.0)
    _clock_warned: bool = False

    def role_changed(self) -> None:
        """Note that role, term or leader changed now."""
        self._since = time.monotonic()

    def heard(self, peer: NodeId) -> None:
        """Note that something arrived from `peer` now."""
        self._heard[peer] = time.monotonic()

    def report(self) -> tuple[float, float]:
        """Return (fsync p99 in ms, used ratio of the data file system), as of the last refresh."""
        return self._report

    def refresh_report(self) -> None:
        """Measure what `report` returns."""
        use = self.files.disk_use(self.config.data_dir)
        ratio = 1 - use.available / use.total if use.total else 0.0
        self._report = (self.storage.statistics().fsync_p99_ms, ratio)

    def refresh_metrics(self, status: RaftStatus, *, is_leader: bool) -> None:
        """Set the gauges. Logs one warning when the clock is off."""
        gauge = self.metrics.gauge
        for name, metric in GAUGES.items():
            gauge(metric.name).set(getattr(status, name) * metric.scale)
        gauge("ledgermq_raft_is_leader").set(is_leader)
        log_time = self.driver.log_time
        if log_time.is_off != self._clock_warned:
            self._clock_warned = log_time.is_off
            if log_time.is_off:
                logger.warning(
                    "the clock of this node is %.1f s away from the broker group's log time node=%s; check "
                    "its time service",
                    log_time.offset_ms / 1000, self.config.node_id,
                )  # fmt: skip
        for progress in self.core.progress():
            behind = self._behind_bytes(progress.durable_index) or 0
            gauge("ledgermq_raft_peer_behind_bytes", progress.node_id).set(behind)

    def status(self, role: str, transport: RaftTransport) -> RaftStatus:
        """Return the snapshot."""
        config, core = self.config, self.core
        progress = {p.node_id: p for p in core.progress()}
        peers = tuple(
            self._self_status(member, role)
            if member.node_id == config.node_id
            else self._peer_status(member, progress.get(member.node_id), transport)
            for member in config.members
        )
        log = self.storage.log
        return RaftStatus(
            cluster=config.cluster_id,
            group=config.group,
            node_id=config.node_id,
            incarnation=self.storage.incarnation,
            group_id=self.rights.group_id,
            former_group_ids=self.rights.former_group_ids,
            role=role,
            term=core.term,
            term_age_ms=int((time.monotonic() - self._since) * 1000),
            leader_id=core.leader_id,
            voters=len(config.voters),
            voters_reachable=sum(
                peer.connected and peer.role != "learner" and peer.node_id in config.voters for peer in peers
            ),
            replication=config.replication.value,
            master_id=config.reign.master if config.reign is not None else "",
            generation=config.reign.generation if config.reign is not None else 0,
            flush=config.flush,
            first_index=log.first_index,
            last_index=core.last_index,
            last_term=core.last_term,
            durable_index=core.stable_index,
            commit_index=core.commit_index,
            applied_index=self.applier.applied_index,
            log_bytes=log.end_offset - log.first_offset,
            uncommitted_bytes=core.uncommitted_bytes,
            fsync_p99_ms=self._report[0],
            disk_used_ratio=self._report[1],
            timer_lateness_ms=core.lateness.timers.ticks * config.tick_ms,
            heartbeat_lateness_ms=core.lateness.peers.ticks * config.tick_ms,
            election_timeout_ms=core.shortest_timeout * config.tick_ms,
            election_timeout_added_ms=core.lateness.patience * config.tick_ms,
            clock_offset_ms=int(self.driver.log_time.offset_ms),
            log_check=replace(self.repair.counts),
            held_back="" if core.leader_id is not None else self._held_back(transport),
            peers=peers,
        )

    def _self_status(self, member: Member, role: str) -> PeerStatus:
        core = self.core
        return PeerStatus(
            node_id=member.node_id,
            address=member.address,
            role=role,
            connected=True,
            durable_index=core.stable_index,
            commit_index=core.commit_index,
            behind_bytes=0 if core.leading is not None else None,
            last_contact_ms=0,
            fsync_p99_ms=self._report[0],
            disk_used_ratio=self._report[1],
            # A new node has nothing to catch up with: it waits for the others.
            catching_up=(role == "learner" and self.rights.standing is not Standing.FRESH)
            or core.applied_index < core.state_index
            or self.is_resetting(member.node_id),
            repairing=self.repair.state,
            feature_level=self.config.feature_level,
        )

    def _peer_status(self, member: Member, progress: Progress | None, transport: RaftTransport) -> PeerStatus:
        node = member.node_id
        hello = self.rights.hellos.get(node)
        heard = self._heard.get(node)
        refusal = transport.refused.get(node)
        connected = transport.is_connected(node)
        behind = self._behind_bytes(progress.durable_index) if progress else None
        return PeerStatus(
            node_id=node,
            address=member.address,
            role=self._role_of(node, hello) if connected else "unknown",
            connected=connected,
            durable_index=progress.durable_index if progress else None,
            commit_index=progress.commit_index if progress else None,
            behind_bytes=behind,
            last_contact_ms=None if heard is None else int((time.monotonic() - heard) * 1000),
            fsync_p99_ms=hello.fsync_p99_ms if hello else None,
            disk_used_ratio=hello.disk_used_ratio if hello else None,
            catching_up=connected
            and progress is not None
            and (
                progress.is_learner
                or progress.state is not ProgressState.REPLICATE
                or self.is_resetting(node)
            ),
            repairing=self.repairing(node),
            refused="" if connected or refusal is None else refusal.text,
            refused_lately=not connected
            and refusal is not None
            and time.monotonic() - transport.refused_at[node] < REFUSED_LATELY_S,
            feature_level=hello.feature_level if hello else None,
        )

    def _held_back(self, transport: RaftTransport) -> str:
        """Return why this node finds no leader: members never met, refusals; "": nothing known."""
        kind, unmet = self.rights.unmet()
        refused_by = transport.refused_by
        new = [node for node in unmet if node not in refused_by and node not in transport.refused]
        parts = []
        if never := [node for node in new if not self.rights.was_met(node)]:
            parts.append(f"{', '.join(never)}, which {_has(never)} never been reached")
        if again := [node for node in new if self.rights.was_met(node)]:
            parts.append(f"{', '.join(again)}, which {_has(again)} not been reached since this node started")
        reasons = (
            [f"{kind}: waits for {', and for '.join(parts)} (all of its nodes must meet once)"]
            if parts
            else []
        )
        texts: dict[str, list[str]] = {}
        for node, refusal in sorted(refused_by.items()):
            texts.setdefault(refusal.text, []).append(node)
        if not parts and self.config.reign is not None and (why := self._no_master()):
            reasons.append(why)
        if why := self.rights.explain_rivals():
            reasons.append(why)
        reasons += [f"refused by {', '.join(nodes)}: {text}" for text, nodes in texts.items()]
        return "; ".join(reasons)

    def _no_master(self) -> str:
        """Return what a broker group without its master needs; "" while this master is about to lead."""
        master = self.config.voters[0]
        promote = "ledgermq cluster promote NODE"
        if self.config.is_slave and (claims := self.storage.identity.claims):
            newest = max(claims, key=lambda claim: claim.reign.generation).reign
            return (
                f"the master {master} is away; {newest.master} told this node that it is to become the "
                f"master (generation {newest.generation}), and has not been heard as that yet: it may be "
                f"starting. Wait for it. If it does not become it, promote the slave with the most: {promote}"
            )
        if self.config.is_slave:
            return (
                f"the master {master} is away; messages can be read here, and none be stored. Start it. If "
                "it does not come back, make the slave with the most, which `ledgermq cluster status` "
                f"names, the master: {promote}"
            )
        if self.rights.standing is not Standing.LEARNER:
            return ""
        return (
            f"{master} is the master and lost what it held, or the end of it, so it does not lead by itself. "
            f"Make the node with the most the master: {promote}"
        )

    def _role_of(self, node: NodeId, hello: Hello | None) -> str:
        if node == self.core.leader_id:
            return "leader"
        return "learner" if hello is not None and hello.standing is not Standing.VOTER else "follower"

    def _behind_bytes(self, durable: LogIndex) -> int | None:
        """Return the log bytes after entry `durable`; None if its offset is not in memory or unreadable."""
        log = self.storage.log
        if durable >= log.last_index:
            return 0
        if durable < log.first_index:
            return log.end_offset - log.first_offset
        try:
            header = log.header_nowait(durable)
        except StorageError:
            return None  # the next reader of that entry has it repaired
        return None if header is None else log.end_offset - header.end


def _has(nodes: list[NodeId]) -> str:
    return "has" if len(nodes) == 1 else "have"

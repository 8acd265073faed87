"""One member of a broker group: assembles core, log, streams, clock and state machine, and runs them.

Owns: their life on one event loop, the leadership transfer at a stop, the latched fault. Must not: decide
about Raft (core/machine.py), feed the core itself (driver.py), or route events and handle peers (routing.py).
After a fault the node stays silent and the process must exit non-zero (P15). `wait_fatal` and `on_fatal` give
the reason.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from ledgermq.proto.entry import Buffer

from ..config import RaftConfig
from ..core.log_time import LogTime
from ..core.machine import RaftCore
from ..core.outputs import Role
from ..core.reign import Claim
from ..disk.files import FileSystem, RealFileSystem
from ..disk.threads import in_thread
from ..drive.applier import Applier
from ..drive.copies import Copies
from ..drive.driver import Driver, RaftTransport
from ..drive.leadership import LeaderDuties
from ..drive.read_batcher import ReadBatcher
from ..drive.ticker import Ticker
from ..drive.voting_rights import VotingRights
from ..errors import NodeStoppedError, TransferringError
from ..folder.opening import check_state_fits, open_node_storage, storage_config, view_of
from ..folder.storage import RaftStorage
from ..log.commit_log import CommitLog
from ..metrics import RaftMetrics
from ..node_status import RaftStatus, StartStep
from ..repair.at_start import StartRepair
from ..repair.care import LogCare
from ..repair.refetch import RefetchService
from ..reset.decision import Resets
from ..reset.state_transfer import StateTransfer
from ..state_machine import Proposal, StateMachine
from ..transport.hello import Hello
from ..transport.links import Transport
from ..transport.wire import make_append_frame, make_control_frame
from ..types import NO_INDEX, LogIndex, NodeId, Term
from .routing import CoreEvents, PeerGate
from .status_view import StatusView

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 2.0  # interval at which peers learn about fsync times and disk use


class RaftNode:
    """Call every method on the event-loop thread. Usage: `await start()`, `propose(…)`, `await stop()`."""

    def __init__(
        self,
        config: RaftConfig,
        state_machine: StateMachine,
        *,
        state_transfer: StateTransfer | None = None,
        on_fatal: Callable[[str], None] | None = None,
        # Served on the Raft port for other nodes.
        rpc_handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = (),
        files: FileSystem | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.config = config
        self.metrics = RaftMetrics(registry)
        self.fault: str | None = None
        self.reset_decided = asyncio.Event()  # set: stop this node and start another one on the same folder
        self._state_machine = state_machine
        self._state_transfer = state_transfer
        self._on_fatal = on_fatal
        self._refetch = RefetchService(config)
        self._rpc_handlers = (self._refetch.handler(), *rpc_handlers)
        self._files = files or RealFileSystem()
        self._started = False
        self._stopping = False
        self._step = StartStep()
        self._report: asyncio.TimerHandle | None = None
        self._fatal: asyncio.Future[str]
        self.storage: RaftStorage
        self._core: RaftCore
        self._driver: Driver
        self._applier: Applier
        self._reads: ReadBatcher
        self._transport: RaftTransport
        self._rights: VotingRights
        self._leadership: LeaderDuties
        self._ticker: Ticker
        self._view: StatusView
        self._resets: Resets
        self._events: CoreEvents
        self._gate: PeerGate
        self.care: LogCare

    # --- life ----------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Open the data folder, recover, listen and connect. Raises: RaftError, which says what to do."""
        self._fatal = asyncio.get_running_loop().create_future()
        config = self.config
        self._transport = Transport(
            config.bind or config.address,
            config.peers,
            make_control_frame,
            make_append_frame,
            self._rpc_handlers,
            self.metrics.ports.add("raft"),
            config.stream_limits(),
            config.tls,
        )
        self._transport.open_port()  # first: if the port is in use, nothing must change
        try:
            self.storage = await self._open_storage()
            try:
                self._step.doing = lambda: "loads its state"
                # In a thread: loading a large state takes long, and probes must be answered meanwhile.
                self._assemble(await in_thread(self._state_machine.load))
            except BaseException:
                await asyncio.to_thread(self.storage.close, clean=self.storage.recovered.clean_stop)
                raise
        except BaseException:
            await self._transport.close()
            raise
        reports = self.storage.start(
            asyncio.get_running_loop().call_soon_threadsafe,
            on_durable=self._on_durable,
            on_failed=lambda error: self.fail(str(error)),
            on_disk_full=self._on_disk_full,
        )
        self._driver.start(self._events, self._ticker, reports)
        self._started = True
        self._resets.succession.start()
        await self._transport.listen(self._gate)
        self._transport.connect()
        self._ticker.start()
        self._send_report()
        self._rights.advance()
        self.care.start()
        logger.info(
            "node started node=%s group=%s address=%s term=%d last_index=%d standing=%s",
            config.node_id, config.group, config.bind or config.address, self.term, self.last_index,
            self._rights.standing.name.lower(),
        )  # fmt: skip

    async def _open_storage(self) -> RaftStorage:
        config = self.config
        install = self._state_transfer.install if self._state_transfer is not None else None
        return await StartRepair(
            config,
            self._files,
            lambda: open_node_storage(
                config, self._files, install, replace(storage_config(config), step=self._step)
            ),
            self._state_machine.load,
            self.metrics,
            self._step,
        ).open()

    def _assemble(self, applied: LogIndex) -> None:
        """Build everything that needs the open storage. `applied`: up to where the state is built."""
        storage, log, metrics, transfer = self.storage, self.storage.log, self.metrics, self._state_transfer
        config = self.config = replace(self.config, reign=storage.identity.reign)
        check_state_fits(config, applied, log, transfer.counts_on_log_to if transfer else NO_INDEX)
        view = view_of(log, applied, transfer.needs_entries_to if transfer else NO_INDEX)
        core = self._core = RaftCore(
            config.core_config(), storage.hard_state, view, random.Random(config.seed)
        )
        log_time = LogTime()
        log_time.restore(log.last_timestamp)
        care = self.care = LogCare(
            config, self._files, storage, core, metrics, self._refetch, on_repaired=self._on_repaired,
            on_failed=self.fail,
        )  # fmt: skip
        applier = self._applier = Applier(
            log, self._state_machine, applied, config.apply_slice_bytes, self._on_applied, self.fail,
            care.damage_at_apply,
        )  # fmt: skip
        driver = self._driver = Driver(config.node_id, core, log, log_time, self._transport, applier, metrics)
        leadership = self._leadership = LeaderDuties(
            config, core, driver, self._state_machine, metrics, self.fail
        )
        reads = self._reads = ReadBatcher(core, driver.feed, 2 * config.election_ms_max / 1000)
        rights = self._rights = VotingRights(
            config, storage, core, promote=self._promote, announce=self._announce,
            read_index=reads.read_index, on_new_incarnation=self._transport.end_incoming,
            on_learner=driver.peer_replaced, on_outdated=self.fail,
            on_left_behind=lambda reign: self._resets.succession.left_behind(reign),
        )  # fmt: skip
        self._ticker = Ticker(
            config.tick_ms, config.election_ms_min / 2, driver.ticks, self._note_lateness, core.quiet_ticks
        )
        resets = self._resets = Resets(
            config, self._files, core, log, driver, self._transport, rights, transfer,
            hello=self.hello, on_decided=self.reset_decided.set, fail=self.fail,
        )  # fmt: skip
        status = self._view = StatusView(
            config, storage, core, driver, applier, rights, metrics, self._files, resets.is_resetting,
            care.repair, self._refetch.repairing,
        )  # fmt: skip
        self._events = CoreEvents(core, applier, leadership, reads, rights, resets, status, care, self.fail)
        self._gate = PeerGate(core, driver, rights, leadership, status, metrics)

    def _note_lateness(self, seconds: float) -> None:
        self.metrics.histogram("ledgermq_event_loop_lateness_seconds").observe(seconds)
        if ticks := int(seconds * 1000) // self.config.tick_ms:
            self._core.late(ticks)

    async def stop(self, *, transfer: bool = True) -> None:
        """Transfer leadership if `transfer`, then flush, mark a clean stop and close everything."""
        if not self._started or self._stopping:
            return
        self._stopping = True
        if transfer and self.fault is None and self._core.role is Role.LEADER and len(self.config.voters) > 1:
            await self._leadership.hand_over()
        await self._close(clean=self.fault is None)
        logger.info("node stopped node=%s", self.config.node_id)

    async def _close(self, *, clean: bool) -> None:
        reason = self.fault or "this node is stopping"
        if self._report is not None:
            self._report.cancel()
        self._ticker.stop()
        self._driver.close()
        await self._leadership.close(reason)
        self._reads.close()
        await self._resets.close()
        await self.care.close()
        await self._applier.close(reason)
        await self._rights.close()
        await self._transport.close()
        await asyncio.to_thread(self.storage.close, clean=clean)

    async def wait_fatal(self) -> str:
        """Wait until the node faults. Returns the reason. The process must then exit non-zero."""
        return await asyncio.shield(self._fatal)

    def fail(self, reason: str) -> None:
        """Latch a fault: the node sends nothing from now on, and the process must stop."""
        if self.fault is not None or self._driver.closed:  # a closed driver sends nothing anyway
            return
        self.fault = reason
        logger.error("node faulted node=%s: %s", self.config.node_id, reason)
        self.metrics.gauge("ledgermq_raft_faulted").set(1)
        self._core.storage_failed(reason)
        self._driver.close()
        self._ticker.stop()
        self._applier.halt(reason)
        self._reads.close()
        self._transport.silence()
        self._leadership.transfer_failed(reason)
        if not self._fatal.done():
            self._fatal.set_result(reason)
        if self._on_fatal is not None:
            self._on_fatal(reason)

    # --- what the broker calls -----------------------------------------------------------------------------
    def propose(self, parts: list[Buffer], section_count: int, *, urgent: bool = False) -> Proposal:
        """Append one RECORDS entry. Synchronous, never blocks.

        `urgent`: the entry helps a full disk and may use the log's reserve. Raises: NotLeaderError,
        BusyError, TransferringError, EntryTooLargeError, DiskFullError, NodeStoppedError. In all cases
        nothing was appended.
        """
        if self._stopping or self.fault is not None:
            if self._stopping and self.leader_id not in (None, self.config.node_id):
                raise TransferringError(str(self.leader_id))
            raise NodeStoppedError(self.fault or "this node is stopping")
        return self._driver.propose(parts, section_count, urgent=urgent)

    def next_timestamp(self) -> int:
        """Return log time (ms); on the leader, exactly that of a proposal of the same turn of the loop."""
        return self._driver.next_timestamp()

    async def read_index(self) -> LogIndex:
        """Return an index that, once applied, includes everything committed before the call.

        Works on any node.

        Raises: NotLeaderError (no leader answered), NodeStoppedError.
        """
        if self._stopping or self.fault is not None:
            raise NodeStoppedError(self.fault or "this node is stopping")
        return await self._reads.read_index()

    async def wait_applied(self, index: LogIndex) -> None:
        """Return when `applied_index >= index`. Raises: NodeStoppedError."""
        await self._applier.wait(index)

    async def transfer_leadership(self, to: NodeId | None = None) -> NodeId:
        """Transfer leadership to `to` (None: the best follower). Returns the new leader.

        Raises: NotLeaderError, TransferFailedError.
        """
        return await self._leadership.transfer(to)

    def step_aside(self, *, though_leading: bool = False) -> str:
        """Fall silent for good, for a promotion of this folder. Returns why not, or "" (see Succession)."""
        return self._resets.succession.step_aside(though_leading=though_leading)

    def generations_beside(self) -> frozenset[Claim]:
        """Return rival generations that greetings report: they began beside this node's (D24)."""
        return frozenset(self._rights.beside.values())

    async def note_claim(self, claim: Claim) -> Claim | None:
        """Store durably that another node is about to begin a generation (D24), or return a claim that it
        does not supersede.

        Raises: OSError.
        """
        return await self._rights.store_claim(claim)

    @property
    def is_left_behind(self) -> bool:
        """True once the broker group goes on in a later generation, without this folder."""
        return self._resets.succession.is_left_behind

    @property
    def group_id(self) -> int:
        """Id that tells broker groups of the same name apart; 0: not known here yet."""
        return self._rights.group_id

    @property
    def former_group_ids(self) -> tuple[int, ...]:
        """Ids of this broker group before it was recovered, or before a master was promoted."""
        return self._rights.former_group_ids

    def hello(self, to: NodeId | None = None) -> Hello:
        """Return this node's greeting: what it is, and which peers it knows."""
        return self._gate.hello(to)

    def status(self) -> RaftStatus:
        """Return what this node knows of its broker group, for `ledgermq cluster status`."""
        return self._view.status(self.role, self._transport)

    @property
    def log(self) -> CommitLog:
        """The log, for reading."""
        return self.storage.log

    @property
    def copies(self) -> Copies:
        """Durable copies on the other members, while this node leads."""
        return self._driver.copies

    def in_contact(self, silence_ms: int) -> int:
        """Return how many other members were heard lately and have not disconnected; 0 unless this node
        leads.

        Streams to a hanging member are reopened again and again. That alone does not make it count as gone.
        """
        heard = [
            p.node_id for p in self._core.progress() if p.contact_ticks * self.config.tick_ms < silence_ms
        ]
        return sum(self._transport.is_heard(node) for node in heard)

    @property
    def commit_index(self) -> LogIndex:
        return self._core.commit_index

    @property
    def applied_index(self) -> LogIndex:
        return self._applier.applied_index

    @property
    def last_index(self) -> LogIndex:
        return self._core.last_index

    @property
    def first_index(self) -> LogIndex:
        return self._core.first_index

    @property
    def term(self) -> Term:
        return self._core.term

    @property
    def role(self) -> str:
        """starting | learner | follower | candidate | leader | faulted | stopped"""
        if not self._started:
            return "starting"
        if self.fault is not None:
            return "faulted"
        if self._stopping and self._driver.closed:
            return "stopped"
        if not self._core.is_voter:
            return "learner"
        role = self._core.role
        if role is Role.RESETTING:
            return "follower"
        return "candidate" if role is Role.PRE_CANDIDATE else role.value

    @property
    def leader_id(self) -> NodeId | None:
        return self._core.leader_id

    @property
    def is_leader(self) -> bool:
        return self._core.role is Role.LEADER

    @property
    def is_leader_ready(self) -> bool:
        """True if this node leads and the no-op of its term is applied, so it may serve."""
        return self._leadership.ready_term is not None

    @property
    def starting(self) -> str:
        """What the node is doing before it runs; "" once it runs."""
        return "" if self._started else self._step.doing()

    def delete_segments_before(self, index: LogIndex) -> int:
        """Drop whole segments whose entries are all below `index`. Returns their number.

        Only applied entries below the state machine's durable checkpoint may go; the caller knows the latter.
        Entries that a follower under reset needs stay for a while.
        """
        limit = self._resets.limit_deletion(min(index, self.applied_index))
        gone = self.log.delete_segments_before(limit)
        if gone:
            self._driver.feed(self._core.compacted, self.log.first_index)
        return len(gone)

    def want_commits(self, wanted: bool) -> None:
        """Ask the leader to announce commits at once: a client here waits for entries to become visible."""
        self._driver.feed(self._core.want_commits, wanted)

    # --- inside --------------------------------------------------------------------------------------------
    def _on_repaired(self) -> None:
        self._driver.forget_reads()
        self._applier.resume()

    def _on_applied(self) -> None:
        self.storage.note_commit(self._core.commit_index)
        self._leadership.applied(self._applier.applied_index)
        self._rights.advance()

    def _on_durable(self, seq: int) -> None:
        if self._driver.closed:
            return
        try:
            self._driver.storage_done(seq)
            self._rights.note_durable(seq)
        except Exception as error:  # noqa: BLE001 (a bug of ours, of any kind)
            self._driver.defect("taking note of what is durable", error)

    def _on_disk_full(self, full: bool) -> None:
        logger.log(
            logging.WARNING if full else logging.INFO,
            "disk %s node=%s folder=%s", "is full" if full else "has room again", self.config.node_id,
            self.config.data_dir,
        )  # fmt: skip

    def _promote(self) -> int:
        self._driver.feed(self._core.promote_to_voter)
        return self._driver.last_persist_seq

    def _announce(self) -> None:
        """Tell every peer what changed about this node."""
        for peer, link in self._transport.links.items():
            link.control.put(self.hello(peer))

    def _send_report(self) -> None:
        # Reschedule first: a disk that fails to answer now must not end the reports.
        self._report = asyncio.get_running_loop().call_later(REPORT_INTERVAL_S, self._send_report)
        self._view.refresh_report()
        self._announce()
        self._leadership.look_at_disk()
        if self._state_transfer is not None:
            self._leadership.look_at_state(self._state_transfer.needs_entries_to)
        self._view.refresh_metrics(self.status(), is_leader=self.is_leader)

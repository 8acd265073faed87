"""Effects of gaining, losing and transferring leadership outside the core: callbacks, waiters, log lines.

Owns: whether this node is ready to serve as the leader (its no-op is applied), and a transfer in progress.
Must not: decide who leads. An exception from a state machine callback faults the node.

A leader whose own disk hangs keeps acknowledging through the flushes of the others, but serves nothing new: a
node applies only what is locally durable (P14). It therefore transfers leadership. So does a leader that must
first restore lost or received state, because it serves nothing until then. A leader whose appends do not
arrive, although peers hear it and its connections are new, commits nothing. It resigns in favour of a node
whose appends arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ..config import RaftConfig
from ..core.machine import RaftCore
from ..core.outputs import FollowerBehind, FollowerLostEntries, Role
from ..errors import NotLeaderError, TransferFailedError
from ..metrics import RaftMetrics
from ..state_machine import StateMachine
from ..types import NO_INDEX, LogIndex, NodeId, Term
from .driver import Driver

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class LeaderDuties:
    """RaftNode passes it the core's events and the progress of apply."""

    config: RaftConfig
    core: RaftCore
    driver: Driver
    state_machine: StateMachine
    metrics: RaftMetrics
    fail: Callable[[str], None]
    ready_term: Term | None = None  # term led by this node whose no-op is applied; None: not ready
    _noop_index: LogIndex = NO_INDEX
    _transfer: asyncio.Future[NodeId] | None = None
    _target: NodeId | None = None  # target of that transfer; None: any node
    _gone: set[NodeId] = field(default_factory=set)  # peers that were connected and are unreachable now
    _stood_at: LogIndex | None = None  # durable index at the last look, if more was committed
    _moving: asyncio.Task[None] | None = None
    _look_timer: asyncio.TimerHandle | None = None

    def gained(self, term: Term, noop_index: LogIndex, applied_index: LogIndex) -> None:
        """Note that this node leads `term`. It is ready once its no-op is applied."""
        self._noop_index = noop_index
        self.metrics.counter("ledgermq_raft_elections_total").inc()
        logger.info("leads node=%s group=%s term=%d", self.config.node_id, self.config.group, term)
        self.applied(applied_index)  # alone in its broker group: the no-op may already be applied

    def lost(self, term: Term) -> None:
        """Note that this node no longer leads `term`."""
        self.ready_term = None
        self._noop_index = LogIndex(0)
        logger.info("leads no longer node=%s term=%d", self.config.node_id, term)
        self._guarded(lambda: self.state_machine.on_leader_lost(term))

    def changed(self, leader: NodeId | None, term: Term) -> None:
        """Note that another leader is known, or none."""
        if leader is None:  # logged because time lines of failovers need the moment a leader is presumed dead
            logger.info("no leader node=%s term=%d", self.config.node_id, term)
        else:
            self.metrics.counter("ledgermq_raft_leader_changes_total").inc()
            logger.info("leader node=%s leader=%s term=%d", self.config.node_id, leader, term)
            if leader != self.config.node_id and self._transfer is not None and not self._transfer.done():
                self._transfer.set_result(leader)
        self._guarded(lambda: self.state_machine.on_leader_changed(leader, term))

    def applied(self, index: LogIndex) -> None:
        """Note that entries up to `index` are applied, possibly including the no-op of this node's term."""
        if self.ready_term is None and self._noop_index and index >= self._noop_index:
            term, now = self.core.term, self.driver.next_timestamp()
            self.ready_term = term
            self._guarded(lambda: self.state_machine.on_leader_ready(term, now))

    async def transfer(self, to: NodeId | None) -> NodeId:
        """Transfer leadership. See RaftNode.transfer_leadership."""
        if self._transfer is not None:
            raise TransferFailedError("another hand-over is under way; wait for it")
        self.driver.settle()
        target = self.core.transfer_leadership(to)
        if target is None:
            raise TransferFailedError("no follower is near enough to take over; see ledgermq cluster status")
        if not isinstance(target, str):
            raise NotLeaderError(target.leader_hint)
        self._transfer, self._target = asyncio.get_running_loop().create_future(), target
        self.driver.pump()
        self._end_if_gone()
        limit_ms = self.config.election_ms_max
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self._transfer
        except TimeoutError:
            raise TransferFailedError(f"{target} did not take over in {limit_ms} ms") from None
        finally:
            self._transfer = self._target = None

    def link_changed(self, peer: NodeId, *, gone: bool) -> None:
        """Note that a node connected, or became unreachable. Leadership cannot go to an unreachable node."""
        if gone:
            self._gone.add(peer)
            self._end_if_gone()
        else:
            self._gone.discard(peer)

    def _end_if_gone(self) -> None:
        if self._target in self._gone:
            self.transfer_failed(f"{self._target} is gone; see ledgermq cluster status")

    def look_at_disk(self) -> None:
        """Transfer leadership if nothing was flushed here since the last look, while the others went on.

        Call it every few seconds. A disk that is merely slow flushes something in that time.
        """
        core, stood_at = self.core, self._stood_at
        is_behind = core.role is Role.LEADER and core.stable_index < core.commit_index
        self._stood_at = core.stable_index if is_behind else None
        if is_behind and core.stable_index == stood_at:
            self._begin_to_move(
                f"disk stands still durable={core.stable_index} committed={core.commit_index}"
            )

    def look_at_state(self, needs_entries_to: LogIndex) -> None:
        """Transfer leadership while the state here is incomplete.

        Restoring it may take minutes; another node may serve at once.

        Call it every few seconds. `needs_entries_to`: see StateTransfer; 0: the state is complete.
        """
        core = self.core
        if needs_entries_to and core.role is Role.LEADER and len(core.quorum.voters) > 1:
            self._begin_to_move(f"state is not whole before entry {needs_entries_to}")

    def _begin_to_move(self, reason: str) -> None:
        if self._moving is None:
            logger.warning("%s node=%s: handing the lead over", reason, self.config.node_id)
            self._moving = asyncio.get_running_loop().create_task(self._move_away())

    def stream_stuck(self) -> None:
        """Schedule a check after a stalled stream of appends was reopened."""
        if self._look_timer is None:
            loop = asyncio.get_running_loop()
            delay_s = self.config.stream_limits().stall_s / 2
            self._look_timer = loop.call_later(delay_s, self._look_at_streams)

    def _look_at_streams(self) -> None:
        """Resign if appends reach no majority of the peers heard. Repeats until all streams make progress."""
        self._look_timer = None
        core, driver = self.core, self.driver
        if driver.closed or core.role is not Role.LEADER or not driver.has_stuck_streams():
            return
        limit = self.config.election_ms_min // self.config.tick_ms
        heard = {p.node_id for p in core.progress() if p.contact_ticks < limit and not p.is_learner}
        cut_off = {peer for peer in heard if driver.is_cut_off(peer)}
        if core.quorum.is_reached([core.node_id, *heard - cut_off]) or not core.quorum.is_reached(
            [core.node_id, *heard]
        ):
            self.stream_stuck()
            return
        logger.warning(
            "appends do not arrive node=%s at=%s: it leads no longer, another node may reach them",
            core.node_id, ",".join(sorted(cut_off)),
        )  # fmt: skip
        driver.feed(core.resign)

    async def _move_away(self) -> None:
        try:
            await self._try_transfer()  # otherwise the next look tries again
        finally:
            self._moving = None

    async def hand_over(self) -> None:
        """Transfer leadership. If no node takes it, resign, so that the others need not time out."""
        if not await self._try_transfer():
            self.driver.feed(self.core.resign)
            await asyncio.sleep(0.02)  # lets the streams send the message

    async def _try_transfer(self) -> bool:
        """Transfer leadership to any node. Returns whether one took it."""
        try:
            leader = await self.transfer(None)
        except (TransferFailedError, NotLeaderError) as error:
            logger.warning("lead not handed over node=%s reason=%r", self.config.node_id, str(error))
            return False
        logger.info("lead handed over node=%s to=%s", self.config.node_id, leader)
        return True

    async def close(self, reason: str) -> None:
        """End a transfer in progress, also one asked for by an operator."""
        self.transfer_failed(reason)
        if self._look_timer is not None:
            self._look_timer.cancel()
        if (moving := self._moving) is not None:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)

    def transfer_failed(self, reason: str) -> None:
        """Fail a transfer in progress."""
        if self._transfer is not None and not self._transfer.done():
            self._transfer.set_exception(TransferFailedError(reason))

    def follower_in_trouble(self, event: FollowerBehind | FollowerLostEntries, first_index: LogIndex) -> None:
        """Log what an operator must do about a follower. `first_index` is where this node's log starts."""
        if isinstance(event, FollowerBehind):
            logger.warning(
                "%s needs entry %d, which retention deleted here (the log starts at %d): it is offered this "
                "node's state, and continues from there",
                event.node_id, event.next_index, first_index,
            )  # fmt: skip
        else:
            logger.error(
                "%s acknowledged entry %d and has only %d: its disk lost what it had flushed. It is sent "
                "again. Check that disk and its write cache; replace it and start the node with: ledgermq "
                "broker --rejoin",
                event.node_id, event.acknowledged_index, event.last_index,
            )  # fmt: skip

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # replicas would diverge after any failure, so the node stops
            logger.exception("state machine failed node=%s", self.config.node_id)
            self.fail(f"state machine failed: {error!r}")

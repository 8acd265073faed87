"""Broker of one life of a simulated node: the real state, leader's view, append pipeline, files.

It replaces `node.py`, the services and the event loop of a process. Events of the life drive Raft's
interface. Coroutines and futures run on a loop whose turns are events. The checkpoint worker reports once the
simulated disk is done. Requests of the simulated clients arrive through `on_request`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ledgermq.broker.checkpoint.schedule import Checkpointing
from ledgermq.broker.checkpoint.store import CheckpointStore
from ledgermq.broker.cluster.known_leader import Leadership as BrokerLeadership
from ledgermq.broker.errors import BrokerError, ConsumeQueueError
from ledgermq.broker.leader.coordination import Coordination, MembershipStream
from ledgermq.broker.leader.coordinator import MemberView
from ledgermq.broker.leader.pipeline import AppendPipeline, ProduceWork, SendWork, TooManyRequestsError
from ledgermq.broker.leader.releases import release_of
from ledgermq.broker.leader.selection import Delivery, ReceiveRequest
from ledgermq.broker.official.receive_at_leader import ReceiveWork
from ledgermq.broker.reading.consume_queue_files import ConsumeQueueFiles
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.replica import Replica
from ledgermq.broker.state.commands import JoinConsumerGroup, ReleaseLeases
from ledgermq.broker.state.effects import Effects
from ledgermq.broker.wire.native import checked_sections
from ledgermq.broker.wire.official import OutgoingRecord
from ledgermq.proto.entry import Buffer, EntryHeader, EntryKind, entry_size
from ledgermq.raft.core.outputs import Accepted, BecameLeader, Event, LeaderChanged, SteppedDown
from ledgermq.raft.drive.driver import PendingProposals, _refusal
from ledgermq.raft.drive.leadership import LeaderDuties
from ledgermq.raft.errors import (
    DiskFullError,
    EntryTooLargeError,
    NodeStoppedError,
    NotLeaderError,
    ProposalLostError,
    RaftError,
)
from ledgermq.raft.state_machine import Proposal
from ledgermq.raft.types import LogIndex

from .invariants import InvariantError
from .loop import SimLoop
from .parts import NoMetrics

if TYPE_CHECKING:
    from .broker_world import BrokerWorld
    from .life import Life
    from .node import SimNode

MS = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a client. `status`: ok, refused (nothing was stored) or unknown."""

    status: str
    value: Any = None
    index: int = 0  # index of the entry, or of the applied command


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a client. `reply` is called when it is answered, perhaps never."""

    kind: str
    body: Any
    reply: Callable[[Answer], None]


class SimCheckpointStore(CheckpointStore):
    """Checkpoint store without the 1 MiB reserve for full disks: all share one disk here."""

    def _keep_reserve(self) -> None:
        """Do nothing."""


class SimCheckpointing(Checkpointing):
    """Checkpointing without its own timer, which reads a clock: the simulator decides when to write."""

    async def _run(self) -> None:
        """Do nothing."""


class BrokerLife:
    """Created when the data folder is open, before the core. `applied` tells where the log must continue."""

    def __init__(self, world: BrokerWorld, node: SimNode) -> None:
        """Raises: CheckpointError, ConsumeQueueError, OSError."""
        self.world = world
        self.node = node
        files, folder = node.files, node.config.data_dir
        self._ready: list[asyncio.Handle] = []  # handles for the next turn
        self.loop = SimLoop(
            now=lambda: world.world.now,
            soon=self._soon,
            later=self._timer,
            when_disk_is_done=lambda handle: self.life.when_disk_is_done("broker_call", handle),
            on_defect=self._on_defect,
        )
        self.leadership = BrokerLeadership(node.name)
        self.store = SimCheckpointStore(
            files, folder / "checkpoint", ConsumeQueueFiles(files, folder / "consumequeue")
        )
        self.replica = Replica(self.store, self.leadership, Polls())
        self.proposals = PendingProposals()
        self.applied = int(self.replica.load())
        self._pump_due = False
        self._streams: dict[str, tuple[MembershipStream, JoinConsumerGroup]] = {}
        self.life: Life

    def attach(self, life: Life) -> None:
        """Connect the broker with the life once the core exists."""
        self.life = life
        life.handlers |= {
            "broker_turn": self.on_turn, "timer": self.on_timer, "request": self.on_request,
            "broker_call": self.loop.run,
            "checkpoint": self.on_checkpoint,
        }  # fmt: skip
        self.pipeline = AppendPipeline(self, life.log.max_entry_size)
        self.replica.attach(self.pipeline, self.next_timestamp, life.log.header_nowait, self)
        driver: Any = SimpleNamespace(next_timestamp=self.next_timestamp)
        metrics: Any = NoMetrics()
        self.coordination = Coordination(
            self.replica, self.pipeline, self.leadership, "", self._no_start_by_time,
            lambda: self.node.clock.monotonic_ms() / 1000,
        )  # fmt: skip
        self.leadership.add_listener(self.coordination.on_leadership)
        self.coordination.on_leadership()
        self.raft_leadership = LeaderDuties(
            life.node.config, life.core, driver, self.replica, metrics, life.fail
        )
        with self.loop.running():
            self.checkpointing = SimCheckpointing(
                self.replica,
                self.store,
                durable_index=lambda: int(life.storage.statistics().flushed_index),
                log_end=lambda: life.log.end_offset,
                on_failed=life.fail,
                fault=lambda: life.core.fault,
            )

    def begin(self) -> None:
        """Start the periodic work."""
        with self.loop.running():
            self.checkpointing.start()
        self.life.later(self.world.checkpoint_us, "checkpoint")

    def end(self) -> None:
        """End all tasks: the process is gone."""
        self.loop.kill()

    # --- the replica's observer -----------------------------------------------------------------------------
    def on_effects(self, effects: Effects) -> None:
        """As `BrokerNode.on_effects`."""
        self.world.on_effects(self, effects)
        self.coordination.on_effects(effects)
        if self.checkpointing.is_running:
            self.checkpointing.on_effects(effects)

    def on_housekeeping(self) -> None:
        """Nothing more."""

    def on_queue_damage(self, error: ConsumeQueueError) -> None:
        """Do nothing: readers get the error."""

    async def queue_rebuilt(self, error: ConsumeQueueError) -> bool:
        """Return False: queue files are not checked here."""
        return False

    # --- the loop -------------------------------------------------------------------------------------------
    def _soon(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if len(self._ready) == 1:
            self.life.later(self.world.draw_lateness(), "broker_turn")

    def _timer(self, delay_us: int, handle: asyncio.Handle) -> None:
        self.life.later(delay_us, "timer", handle)

    def _on_defect(self, error: BaseException) -> None:
        where = f"B defect of {self.node.name}"
        known = isinstance(error, AssertionError)
        self.world.world.note_defect(error if known else InvariantError(f"{where}: {error!r}"))

    def on_turn(self, _payload: None) -> None:
        """Run one turn of the event loop: everything ready at its start. Its proposals share a flush."""
        if self.life.core.fault is None:
            ready, self._ready = self._ready, []
            for handle in ready:
                self.loop.run(handle)
            if self._pump_due:
                self._pump_due = False
                self.life.pump()

    def on_timer(self, handle: asyncio.Handle) -> None:
        if self.world.is_quiet:
            self._timer(100 * MS, handle)
        elif not handle.cancelled():
            self._soon(handle)

    def on_checkpoint(self, _payload: None) -> None:
        """Write a checkpoint, unless the disk is failing."""
        self.life.later(self.world.checkpoint_us, "checkpoint")
        if not self.life.disk.broken and self.life.core.fault is None:
            with self.loop.running():
                self.loop.create_task(self.checkpointing.write_now())

    # --- raft's side ----------------------------------------------------------------------------------------
    def next_timestamp(self) -> int:
        """Return log time in ms."""
        clock, life = self.node.clock, self.life
        now = (clock.wall_ms(), clock.monotonic_ms())
        return life.log_time.lead(*now) if life.leads else life.log_time.estimate(*now)

    def propose(self, parts: list[Buffer], section_count: int, *, urgent: bool = False) -> Proposal:
        """Like `RaftNode.propose`. Raises: RaftError."""
        life = self.life
        if life.core.fault is not None:
            raise NodeStoppedError("this node stops")
        size = entry_size(sum(map(len, parts)))
        if size > life.log.max_entry_size:
            raise EntryTooLargeError(size, life.log.max_entry_size)
        life.log.check_proposal(size, urgent=urgent)
        answer = life.core.propose([size])
        if not isinstance(answer, Accepted):
            raise _refusal(answer)
        try:
            header = life._stage(
                EntryKind.RECORDS, parts, answer.first_index, answer.term, sections=section_count
            )
        except DiskFullError as error:
            life.fail(f"a proposal that was taken cannot be stored: {error}", full=True)
            raise NodeStoppedError("this node stops") from error
        proposal = Proposal(header, self.loop.create_future())
        self.proposals.append(proposal)
        self._pump_due = True
        return proposal

    def on_event(self, event: Event) -> None:
        """Handle a change of the core's role."""
        with self.loop.running():
            if isinstance(event, SteppedDown):
                self.proposals.lost("this node no longer leads")
                self.raft_leadership.lost(event.term)
            elif isinstance(event, BecameLeader):
                self.raft_leadership.gained(event.term, event.noop_index, LogIndex(self.life.applied))
            elif isinstance(event, LeaderChanged):
                self.raft_leadership.changed(event.leader_id, event.term)

    def on_commit(self, index: LogIndex) -> None:
        """Handle an advance of the commit index: wake the proposers."""
        with self.loop.running():
            self.proposals.committed(index)

    def apply(self, entries: Iterable[tuple[EntryHeader, Any]]) -> None:
        """Apply committed entries one by one, each first to the model."""
        with self.loop.running():
            for header, payload in entries:
                self.world.on_entry(header, payload)
                with defects(f"B apply: {self.node.name} at entry {header.index}"):
                    self.replica.apply([(header, payload)])
                self.applied = int(header.index)
                self.world.after_apply(self, header)
            self.raft_leadership.applied(LogIndex(self.applied))

    # --- the services ---------------------------------------------------------------------------------------
    def on_request(self, request: Request) -> None:
        """Handle a client's call."""
        if self.life.core.fault is not None:
            return
        with self.loop.running():
            try:
                getattr(self, f"_{request.kind}")(request)
            except (RaftError, TooManyRequestsError, BrokerError, RefusedError) as error:
                request.reply(Answer("refused", error))

    def _answer(
        self,
        request: Request,
        future: asyncio.Future[Any],
        value: Callable[[Any], Any] = lambda result: result,
    ) -> None:
        """Answer once the future is done."""

        def done(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if error is None:
                result = done.result()
                request.reply(Answer("ok", value(result), getattr(result, "index", 0)))
            else:
                request.reply(Answer("unknown" if isinstance(error, ProposalLostError) else "refused", error))

        future.add_done_callback(done)

    def _command(self, request: Request) -> None:
        self._answer(request, self.pipeline.run(request.body), lambda applied: applied.result)

    def _produce(self, request: Request) -> None:
        raw, count = request.body
        work = ProduceWork(checked_sections(1, memoryview(raw), count))
        self.pipeline.submit(work)
        self._answer(request, work.future)

    def _send(self, request: Request) -> None:
        topic_id, messages = request.body
        topic = self.replica.state.topics.get(topic_id)
        if topic is None or self.replica.view is None:
            raise NotLeaderError(None)
        records: list[tuple[OutgoingRecord, str]] = messages
        work = SendWork(topic, records)
        self.pipeline.submit(work)
        self._answer(request, work.future)

    def _seen(self, request: Request) -> None:
        if self.replica.view is not None:
            self.replica.view.session_seen(request.body, self.next_timestamp())

    def _receive(self, request: Request) -> None:
        """Like `receive._select`: select once, after loading what the selection needs."""
        self._answer(request, self.loop.create_task(self._select(request.body)))

    async def _select(self, request: ReceiveRequest) -> list[Delivery]:
        for _ in range(4):
            view = self.replica.view
            if view is None:
                raise NotLeaderError(None)
            if not view.selector.has_deliverable(request, self.next_timestamp()):
                return []
            work = ReceiveWork(request, partial(self._release, request))
            self.pipeline.submit(work)
            plan, deliveries = await work.future
            if deliveries or not plan.cold:
                found: list[Delivery] = deliveries
                return found
            await self.replica.warm(plan.cold)
        return []

    def _member(self, request: Request) -> None:
        self._answer(request, self.loop.create_task(self._membership(*request.body)))

    async def _membership(
        self, join: JoinConsumerGroup, released: Iterable[tuple[tuple[int, int], int]], leave: bool
    ) -> MemberView | None:
        """Like a Membership stream: the first request opens it, and a later one reopens it if it ended."""
        stream, known = self._streams.get(join.member, (None, join))
        if stream is None:
            stream = await self.coordination.open(join)
        else:
            self.coordination.heard(stream)
            if known != join:
                await self.coordination.subscribe(join)
        self._streams[join.member] = (stream, join)
        self.coordination.released(stream, released)
        if leave:
            self.coordination.leave(stream)
        try:
            view = self.coordination.view(stream)
        except (RefusedError, RaftError):
            view = None
        if view is None or stream.leaving:
            if self._streams[join.member][0] is stream:
                del self._streams[join.member]
            self.coordination.close(stream)
        return view

    async def _no_start_by_time(self, *where: int) -> int:
        raise AssertionError("no group starts by time here")

    def _release(self, request: ReceiveRequest, deliveries: list[Delivery]) -> None:
        command: ReleaseLeases = release_of(request, deliveries)
        self.pipeline.run(command)

    def _fetch(self, request: Request) -> None:
        """Answer a fetch from what this node has applied."""
        topic_id, queue_id, offset, count = request.body
        self._answer(request, self.loop.create_task(self._read(topic_id, queue_id, offset, count)))

    async def _read(self, topic_id: int, queue_id: int, offset: int, count: int) -> Any:
        state = self.replica.state
        begin = max(offset, state.queue_begin(topic_id, queue_id))
        units = await self.replica.units(topic_id, queue_id, begin, count)
        return begin, units.tolist(), state.queue_end(topic_id, queue_id)


@contextmanager
def defects(where: str) -> Iterator[None]:
    """End the run on any exception of the code under test."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise InvariantError(f"{where}: {error!r}") from error


def effects_of(effects: Effects) -> list[Any]:
    """Return the results of an entry's commands in the model's form."""
    return [_plain(result) for result in effects.results]


def _plain(result: Any) -> Any:
    if result is None:
        return None
    if hasattr(result, "accepted"):
        return result.accepted.tolist()
    if hasattr(result, "queues"):
        return {
            each.queue_id: list(zip(each.offsets.tolist(), each.attempts.tolist(), strict=True))
            for each in result.queues
        }
    named = getattr(result, "topic", None) or getattr(result, "group", None)
    number = 0 if named is None else getattr(named, "topic_id", None) or named.group_id
    return number, result.changed

"""Broker side of the Raft interface: applies committed entries and notifies the other parts of their effects.

Owns: the state, the leader's view while this node leads, the loading of cold queue units.
Must not: judge entries (the state does), or block while applying. An error while applying stops the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

import numpy as np

from ledgermq.proto import route_pb2
from ledgermq.proto.entry import EntryHeader
from ledgermq.raft.types import LogIndex, NodeId, Term

from .cluster.known_leader import Leadership
from .errors import ConsumeQueueError
from .leader.leader_view import MAX_STREAMS, LeaderView
from .leader.pipeline import AppendPipeline, TooManyRequestsError
from .leader.releases import LAST_LEADER_MS, LeaseReleases, granted_since
from .reading.consume_queue_files import ConsumeQueueFiles
from .reading.polls import Polls
from .refusals import RefusedError
from .state.commands import ReleaseLeases
from .state.consume_queue import ColdRead
from .state.effects import Effects
from .state.machine import BrokerState
from .state.rebuild import QueueRebuild

logger = logging.getLogger(__name__)

HOUSEKEEPING_INTERVAL: Final = 1.0  # seconds
READ_THREADS: Final = 4  # for queue files
_MAX_REBUILDS: Final = 4  # maximum of damaged blocks that one read waits for

_T = TypeVar("_T")


class StateStore(Protocol):
    """Source of the state at start: CheckpointStore."""

    def load(self) -> BrokerState: ...

    @property
    def files(self) -> ConsumeQueueFiles: ...

    @property
    def rebuild(self) -> QueueRebuild | None: ...


class ReplicaObserver(Protocol):
    """The node that contains the replica."""

    def on_effects(self, effects: Effects) -> None:
        """Handle the effects of an applied entry."""

    def on_housekeeping(self) -> None:
        """Do periodic work, about once a second while this node leads."""

    def on_queue_damage(self, error: ConsumeQueueError) -> None:
        """Handle damaged queue files: this node must not serve from them."""

    async def queue_rebuilt(self, error: ConsumeQueueError) -> bool:
        """Wait until damaged queue files are rebuilt from the log; False: they cannot be."""


class Replica:
    """Implements `ledgermq.raft.state_machine.StateMachine`. Call `attach` before the Raft node starts."""

    def __init__(
        self, store: StateStore, leadership: Leadership, polls: Polls, max_streams: int = MAX_STREAMS
    ) -> None:
        """`max_streams`: maximum of producer streams (producer and queue) for deduplication."""
        self.state = BrokerState()
        self._store = store
        self._loaded = False
        #: Rebuild of the queues from the log, after a reset or a loss of queue files. No reads until it is
        #: None.
        self.rebuild: QueueRebuild | None = None
        #: None unless this node leads and has applied the no-op of its term.
        self.view: LeaderView | None = None
        self._leadership = leadership
        self._polls = polls
        self._max_streams = max_streams
        self._pipeline: AppendPipeline
        self.releases: LeaseReleases
        self._now: Callable[[], int]
        self._header: Callable[[LogIndex], EntryHeader | None]
        self._observer: ReplicaObserver
        self._house: asyncio.TimerHandle | None = None
        #: A pool of their own for cold reads of consumers, whose number is unbounded: they must not block the
        #: threads that the node needs for its own storage.
        self._reads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="ledgermq-queue-read")

    def close(self) -> None:
        """Stop the read threads and cancel waiting reads."""
        self._reads.shutdown(wait=False, cancel_futures=True)

    def attach(
        self,
        pipeline: AppendPipeline,
        now: Callable[[], int],
        header: Callable[[LogIndex], EntryHeader | None],
        observer: ReplicaObserver,
        tell_release: Callable[[ReleaseLeases], Awaitable[str]] | None = None,
    ) -> None:
        """Connect the replica to the objects that are created after it.

        `now` returns the log time (ms) of a proposal made now. `tell_release` sends a release to the
        leader. The constructor cannot take these, because the Raft node is created with this replica,
        and the pipeline with the Raft node. The parts of the observer come last, when the Raft node
        runs and has applied entries.
        """
        self._pipeline = pipeline
        self.releases = LeaseReleases(pipeline.run, lambda: self.state, self._leadership, tell_release)
        self._now = now
        self._header = header
        self._observer = observer

    def require_whole_state(self) -> None:
        """Refuse reads while the queues of the state are being rebuilt from the log. Raises: RefusedError."""
        if self.rebuild is not None:
            raise RefusedError(
                route_pb2.CATCHING_UP,
                f"{self._leadership.node_id} makes its queues again from the log (entry "
                f"{self.rebuild.applied_index} of {self.rebuild.target}) and serves no reads yet. Ask "
                "another node, or again in a moment",
                retryable=True,
                retry_after_ms=500,
            )

    # --- StateMachine ---------------------------------------------------------------------------------------
    def load(self) -> LogIndex:
        """Load the state, once, after the data folder is open and locked. Return the last applied index.

        Raises: CheckpointError, ConsumeQueueError.
        """
        if not self._loaded:
            self.state = self._store.load()
            self.state.queues.on_damage = lambda error: self._observer.on_queue_damage(error)
            rebuild = self._store.rebuild
            self.rebuild = rebuild if rebuild is not None and not rebuild.is_whole else None
            self._loaded = True
        return LogIndex(self.state.applied_index if self.rebuild is None else self.rebuild.applied_index)

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        """Apply committed entries in order. Raises: StateError, CorruptError; the node then stops."""
        for header, payload in entries:
            if self.rebuild is not None:
                self._take(self.rebuild, header, payload)
                continue
            effects = self.state.apply(header, payload)
            if self.view is not None:
                self.view.on_applied(header.index)
            self._pipeline.on_applied(effects)
            self._wake(effects)
            self._observer.on_effects(effects)

    def _take(self, rebuild: QueueRebuild, header: EntryHeader, payload: memoryview) -> None:
        """Extend the queues by an entry that the state already contains."""
        rebuild.take(header, payload)
        if rebuild.is_whole:
            self.rebuild = None
            logger.info("queues made again from the log, the state is whole index=%d", header.index)

    def _wake(self, effects: Effects) -> None:
        polls = self._polls
        if not polls.count:
            return
        for section in effects.sections:
            polls.wake(("queue", section.topic_id, section.queue_id))
            polls.wake(("topic", section.topic_id))
        for _, topic_id in effects.released:
            polls.wake(("topic", topic_id))
        for topic in effects.deleted_topics:
            polls.wake(("topic", topic.topic_id))
            for queue_id in range(topic.queue_count):
                polls.wake(("queue", topic.topic_id, queue_id))

    def on_leader_ready(self, term: Term, timestamp: int) -> None:
        """Start serving as leader."""
        self.view = LeaderView(self.state, term, timestamp, self._max_streams)
        self._pipeline.on_leader(self.view)
        self._leadership.on_ready(term)
        logger.info("serves term=%d", term)
        for command in granted_since(self.state.consumption.copy(), self._young_index()):
            self.releases.propose(command)
        self._house = asyncio.get_running_loop().call_later(HOUSEKEEPING_INTERVAL, self._housekeeping)

    def on_leader_lost(self, term: Term) -> None:
        """Drop the leader's view. Waiting requests are refused; Raft decides the outcome of proposed ones."""
        self.view = None
        if self._house is not None:
            self._house.cancel()
            self._house = None
        self._pipeline.on_leader(None)
        self._leadership.on_lost()
        self._polls.wake("leader")

    def on_leader_changed(self, leader_id: NodeId | None, term: Term) -> None:
        """Record a new leader, or None."""
        self._leadership.on_changed(leader_id, term)

    def _young_index(self) -> LogIndex:
        """Return the index of the first entry within LAST_LEADER_MS of the previous leader's last one.

        Messages granted since then may not have arrived.
        """
        high = self.state.applied_index
        last = self._header(LogIndex(high - 1)) if high > 1 else None
        if last is None:
            return LogIndex(high)
        low, cutoff = self.state.log_start_index, last.timestamp - LAST_LEADER_MS
        while low < high:
            middle = (low + high) // 2
            header = self._header(LogIndex(middle))
            if header is None or header.timestamp < cutoff:
                low = middle + 1
            else:
                high = middle
        return LogIndex(low)

    # --- housekeeping of the leader -------------------------------------------------------------------------
    def _housekeeping(self) -> None:
        self._house = asyncio.get_running_loop().call_later(HOUSEKEEPING_INTERVAL, self._housekeeping)
        self.keep_house()
        self._observer.on_housekeeping()

    def keep_house(self) -> None:
        """Propose due commands: lost sessions, deduplication windows, releases. Refused ones are repeated."""
        if self.view is None:
            return
        self.releases.again()
        try:
            for command in self.view.housekeeping(self._now()):
                self._pipeline.run(command)
        except TooManyRequestsError as error:
            logger.info("housekeeping refused, it comes again reason=%s", error)

    @property
    def files(self) -> ConsumeQueueFiles:
        """The queue files."""
        return self._store.files

    # --- cold queue units -----------------------------------------------------------------------------------
    def load_units(self, read: ColdRead) -> bytes:
        """Read queue units from disk. Thread-safe. Raises: ConsumeQueueError."""
        return self._store.files.load(read)

    async def warm(self, reads: Sequence[ColdRead]) -> None:
        """Load queue units that are not in memory or the page cache. Raises: ConsumeQueueError."""
        for read in reads:
            await self._mended(partial(self._load, read))

    async def _load(self, read: ColdRead) -> None:
        try:
            loop = asyncio.get_running_loop()
            raw = await loop.run_in_executor(self._reads, self.load_units, read)
        except ConsumeQueueError as error:
            self.state.queues.unreadable(read, error)
        else:
            self.state.queues.admit(read, raw)

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray:
        """Return the stored units (UNIT_DTYPE) of a range. Raises: QueueNotFoundError, ConsumeQueueError."""
        return await self._mended(partial(self._units, topic_id, queue_id, offset, count))

    async def _units(self, topic_id: int, queue_id: int, offset: int, count: int) -> np.ndarray:
        while isinstance(found := self.state.queues.lookup(topic_id, queue_id, offset, count), ColdRead):
            await self._load(found)
        return found

    async def _mended(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """Read. If queue files are damaged, wait until they are rebuilt, then read again."""
        for _ in range(_MAX_REBUILDS):
            try:
                return await read()
            except ConsumeQueueError as error:
                await self.mended(error)
        return await read()

    async def mended(self, error: ConsumeQueueError) -> None:
        """Wait until damaged queue files are rebuilt from the log. Raises: `error` (they cannot be)."""
        if not await self._observer.queue_rebuilt(error):
            raise error

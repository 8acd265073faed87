"""One broker group of a push consumer: its queues there, their fetching, commits and end.

`QueueGroup` is common to both modes. `MemberGroup` gets its queues from the leader of the broker group, and
hands them over.
Owns: the life of owned queues. Must not: call listeners (`ListenerCalls` does).
Invariant: a lost queue is never committed again, and nothing of it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import log_pb2 as pb

from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup
from ..consume.consumer_group import ensure_group
from ..consume.fetch_stream import BrokerGroupFetcher
from ..consume.fetched_records import tag_hashes
from ..consume.intake import OutOfRange, Refused
from ..errors import LedgerMQError, error_of
from ..message import MessageQueue
from ..pauses import RETRY_PAUSE_S
from .assignment import QueueKey, changes
from .listener_calls import ListenerCalls
from .membership_stream import PushMembership
from .offset_commits import BrokerGroupCommits, OffsetCommits
from .options import PushOptions
from .owned_queue import ByteBudget, OwnedQueue, PushIntake, Stage

logger = logging.getLogger(__name__)

_MAX_FILTER: Final = 4096  # maximum that brokers accept, characters
_FOR_LISTENERS: Final = 0.8  # fraction of the release time; the rest is for the commit


@dataclass(slots=True)
class Shared:
    """State and settings shared by all broker groups of one consumer."""

    consumer_group: str
    member_id: str
    options: PushOptions
    orderly: bool
    channels: Channels
    budget: ByteBudget
    filters: Mapping[str, str]  # topic → tag expression
    calls: ListenerCalls
    look_for_room: Callable[[], None]  # call it when bytes were freed: fetching may continue
    refresh: Callable[[Iterable[str]], Awaitable[None]]
    fail: Callable[[LedgerMQError], None]


class QueueGroup(BrokerGroupFetcher[OwnedQueue]):
    """The queues of one broker group, which it fetches."""

    commits: OffsetCommits

    def __init__(self, shared: Shared, group: BrokerGroup) -> None:
        self.queues: dict[QueueKey, OwnedQueue] = {}
        self.intake = PushIntake(shared.budget)
        self.deleted = 0  # messages that retention deleted before they were read
        self.warnings: tuple[str, ...] = ()
        self._shared = shared
        self._ended: dict[QueueKey, OwnedQueue] = {}  # lost; a listener still has messages of them
        super().__init__(group, shared.channels, self.intake, shared.options.poll_ms, shared.consumer_group)

    def unlisted(self) -> None:
        """No route names the broker group: its nodes are silent, or no nameserver hears them."""

    def end(self) -> None:
        """Give up the name: another broker group may use it from now on."""

    async def leave(self) -> None:
        """Commit, and end. It is closed, so nothing is fetched, and no listener runs any more."""
        await self.commits.commit(self.queues.values())
        await self.commits.close()

    # --- queues ---------------------------------------------------------------------------------------------

    def start(
        self, queue: MessageQueue, topic_id: int, offset: int, epoch: int = 0, committed: int | None = None
    ) -> None:
        """Consume a queue from `offset`. `committed`: the stored offset, if it differs."""
        shared = self._shared
        tags = tag_hashes(shared.filters.get(queue.topic, "*"))
        owned = OwnedQueue(
            queue,
            topic_id,
            offset,
            offset,
            limits=shared.options.limits,
            budget=shared.budget,
            epoch=epoch,
            tags=tags,
            committed=offset if committed is None else committed,
        )
        # A listener may still have messages of this queue from before it was lost. Order requires them done
        # first.
        owned.busy = shared.orderly and owned.key in self._ended
        self.queues[owned.key] = owned
        self.intake.assign(owned)
        logger.info("queue starts queue=%s offset=%d epoch=%d", queue, offset, epoch)
        if owned.uncommitted:
            self.commits.progressed()

    def lose(self, owned: OwnedQueue) -> None:
        """Drop a queue, and commit nothing more."""
        self.intake.remove(owned)
        owned.drop()
        if self.queues.get(owned.key) is owned:
            del self.queues[owned.key]
        if owned.running:
            self._ended[owned.key] = owned
        logger.info("queue ends queue=%s epoch=%d", owned.queue, owned.epoch)
        self._shared.look_for_room()

    def on_done(self, owned: OwnedQueue, moved: bool) -> None:
        """A listener is done with a batch of a queue. `moved`: there is more to commit."""
        if moved:
            self.commits.progressed()
        if self.intake.is_left_out(owned):
            self.restart()
        if not owned.running and self._ended.get(owned.key) is owned:
            del self._ended[owned.key]
            if (after := self.queues.get(owned.key)) is not None:
                after.busy = False
                self._shared.calls.ready(after)

    def look_for_room(self) -> None:
        """Messages were finished somewhere: there may be room to fetch again."""
        if not self.changed.is_set() and self.intake.has_room:
            self.changed.set()

    # --- called while fetching ------------------------------------------------------------------------------

    async def refresh(self) -> None:
        await self._shared.refresh({owned.queue.topic for owned in self.queues.values()})

    def arrived(self) -> None:
        for owned in self.intake.take_arrived():
            self._shared.calls.ready(owned)

    def fail(self, error: LedgerMQError) -> None:
        self._shared.fail(error)

    async def on_refused(self, refused: list[Refused[OwnedQueue]]) -> None:
        """Continue after deleted messages. Other defects of a queue show in the next assignment.

        One route request for all of them: until it is answered, no queue of the broker group is fetched.
        """
        stale: list[OwnedQueue] = []
        behind: list[OwnedQueue] = []
        ahead: list[OutOfRange[OwnedQueue]] = []
        for each in refused:
            if isinstance(each, OutOfRange):
                if each.assigned.fetch_offset < each.begin:
                    self._on_deleted(each)
                else:
                    ahead.append(each)
            elif (error := error_of(each[1])).refresh_route:
                stale.append(each[0])
            elif error.retryable:
                behind.append(each[0])
            else:
                self.intake.remove(each[0])
                self.fail(error)
        self.ask_soon([*behind, *(each.assigned for each in ahead)])
        if ahead:
            await self.on_ahead(ahead)
        if stale:
            self.ask_later(stale)
            await self.refresh()

    async def on_ahead(self, ahead: list[OutOfRange[OwnedQueue]]) -> None:
        """Offsets beyond what the node has: it lags, or no longer leads, and will catch up."""

    def _on_deleted(self, found: OutOfRange[OwnedQueue]) -> None:
        owned = found.assigned
        count = found.begin - owned.fetch_offset
        self.deleted += count
        text = "messages were deleted before they were read queue=%s count=%d begin=%d"
        logger.warning(text, owned.queue, count, found.begin)
        owned.skip_to(found.begin)
        if owned.uncommitted:
            self.commits.progressed()


class MemberGroup(QueueGroup):
    """Membership in the consumer group: the leader assigns and revokes queues."""

    def __init__(self, shared: Shared, group: BrokerGroup, start: str) -> None:
        """`start`: start position of the consumer group, if it does not exist here."""
        super().__init__(shared, group)
        self.members = 0  # of the consumer group, in this broker group
        self._start_position = start
        self._topics: set[str] = set()
        self._revoked: dict[QueueKey, pb.QueueOwnership] = {}
        self._handing_over: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()  # set when a queue that is being handed over finished a batch
        self._closing = False
        self._listed = asyncio.Event()
        self._listed.set()
        self.commits = BrokerGroupCommits(
            shared.consumer_group,
            shared.channels,
            shared.options.commit_interval_ms,
            lambda: self.group,
            self.queues.values,
            self.lose,
        )
        self._membership = PushMembership(
            shared.consumer_group,
            shared.member_id,
            group,
            shared.channels,
            shared.options,
            orderly=shared.orderly,
            on_response=self._on_response,
            on_contact=self._on_contact,
            on_leader=self.leader_is,
            on_refused=self.fail,
        )
        self._joining = asyncio.create_task(self._join(), name=f"ledgermq-join-{group.name}")

    def update(self, group: BrokerGroup) -> None:
        super().update(group)
        self._membership.update(group)
        self._listed.set()

    def unlisted(self) -> None:
        self._listed.clear()

    def end(self) -> None:
        # Pauses are by name: the next broker group of this name has contact, and must not stay paused.
        self._closing = True
        self._shared.calls.resume(self.group.name, ())

    def subscribe(self, topics: Iterable[str]) -> None:
        """Be a member for these topics of this broker group."""
        topics = set(topics)
        if not topics:
            return  # its nodes have not registered: that does not mean it is gone
        self._topics = topics
        if self._joining.done():
            self._membership.subscribe(self._topics, self._filters())

    async def leave(self) -> None:
        self._closing = True
        self._joining.cancel()
        await asyncio.gather(self._joining, *self._handing_over, return_exceptions=True)
        await super().leave()
        await self._membership.leave()

    async def _join(self) -> None:
        shared = self._shared
        while True:
            try:
                found = await ensure_group(
                    shared.channels, lambda: self.group, shared.consumer_group, self._start_position
                )
                break
            except LedgerMQError as error:
                if not error.retryable:
                    self.fail(error)
                    return
                text = "consumer group cannot be joined yet broker_group=%s reason=%s"
                logger.info(text, self.group.name, error)
                await shared.refresh(self._topics)
                await asyncio.sleep(RETRY_PAUSE_S)
                await self._listed.wait()  # do not keep asking a broker group that no route names
        if not shared.options.max_attempts and not shared.orderly and found.max_attempts:
            shared.calls.max_attempts = found.max_attempts
        self._membership.start(self._topics, self._filters())

    def _filters(self) -> str:
        """Return the subscription in normal form: equal subscriptions give equal text."""
        parts = []
        for topic in sorted(self._topics):
            tags = sorted({tag.strip() for tag in self._shared.filters[topic].split("||") if tag.strip()})
            parts.append(f"{topic}: {'*' if not tags or '*' in tags else ' || '.join(tags)}")
        return "; ".join(parts)[:_MAX_FILTER]

    # --- assignment -----------------------------------------------------------------------------------------

    def _on_response(self, answer: pb.MembershipResponse) -> None:
        self.members = answer.members
        for warning in set(answer.warnings) - set(self.warnings):
            logger.warning("broker_group=%s: %s", self.group.name, warning)
        self.warnings = tuple(answer.warnings)
        self._revoked = {(each.topic_id, each.queue_id): each for each in answer.revoked}
        change = changes(self.queues, answer)
        for owned in change.lost:
            self.lose(owned)
        for each in change.started:
            if not self._closing:
                queue = MessageQueue(each.topic, self.group.name, each.queue_id)
                self.start(queue, each.topic_id, each.offset, each.epoch)
        for owned in change.revoked:
            owned.release()
            self.intake.remove(owned)
            task = asyncio.create_task(self._hand_over(owned))
            self._handing_over.add(task)
            task.add_done_callback(self._handing_over.discard)
        if change.handed_over:
            self._membership.release(change.handed_over)
        if change.started:
            self.restart()

    def on_done(self, owned: OwnedQueue, moved: bool) -> None:
        super().on_done(owned, moved)
        if owned.stage is not Stage.ACTIVE:
            self._idle.set()

    async def _hand_over(self, owned: OwnedQueue) -> None:
        """Let running listeners finish, commit, and release the queue: all within the release time."""
        release_s = self._shared.options.release_ms / 1000
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            async with asyncio.timeout_at(begin + release_s * _FOR_LISTENERS):
                while owned.running and owned.stage is Stage.RELEASING:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            logger.warning(
                "listener did not finish before its queue goes to another consumer queue=%s", owned.queue
            )
        try:
            async with asyncio.timeout_at(begin + release_s):
                await self.commits.commit([owned])
        except TimeoutError:
            logger.warning("final offset is not stored in time queue=%s", owned.queue)
        if owned.stage is Stage.GONE:
            return  # fenced meanwhile
        self.lose(owned)
        if (revoked := self._revoked.get(owned.key)) is not None:
            self._membership.release([revoked])
        elif not self._closing:  # the leader revoked the revocation
            self.start(owned.queue, owned.topic_id, owned.progress.position, owned.epoch, owned.committed)
            self.restart()

    def _on_contact(self, in_contact: bool) -> None:
        """After a session timeout without contact others may have the queues: start nothing until contact."""
        calls, name = self._shared.calls, self.group.name
        if self._closing:
            return
        if in_contact:
            logger.info("in contact again broker_group=%s", name)
            calls.resume(name, self.queues.values())
        else:
            logger.warning("no contact to the broker group's leader, waiting broker_group=%s", name)
            calls.pause(name)

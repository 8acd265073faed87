"""Queue-exclusive consumer groups on the leader: runs their coordinators and notifies member streams (D14).

A pass over a consumer group follows every entry that changes its members, owners or topics, and every
deadline, which a tick checks ten times a second. The next tick repeats a refused proposal. Nothing here waits
for a disk.
Owns: coordinators and streams while this node leads, and their limits.   Must not: decide; coordinators do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

from ledgermq.proto import route_pb2
from ledgermq.raft.errors import NodeStoppedError, NotLeaderError

from ..cluster.known_leader import Leadership
from ..refusals import REFUSABLE, RefusedError
from ..replica import Replica
from ..state.commands import JoinConsumerGroup, LeaveConsumerGroup, SetPositions, position_rows
from ..state.consume_queue import QueueKey
from ..state.effects import Effects
from .coordinator import Coordinator, MemberView, StartsByTime, Wish
from .pipeline import AppendPipeline, Applied

logger = logging.getLogger(__name__)

MEMBERS_PER_GROUP: Final = 256
MEMBERS_PER_NODE: Final = 4096
TICK_SECONDS: Final = 0.1
#: Maximum of time counted between two readings of the clock: after a stall of the event loop, signs of life
#: are still unread.
STALL_SECONDS: Final = 0.2
#: After a longer pass (over a very large consumer group), the next one waits PAUSE_FACTOR times its duration,
#: so that heartbeats are served.
LONG_PASS_SECONDS: Final = 0.005
PAUSE_FACTOR: Final = 4
#: Returns the first queue offset stored at or after a time: (topic id, queue id, ms).
OffsetAtTime = Callable[[int, int, int], Awaitable[int]]


class MembershipStream:
    """Open stream of a member."""

    def __init__(self, group_id: int, member: str) -> None:
        self.group_id = group_id
        self.member = member
        self.changed = asyncio.Event()  # set when there may be news for the member
        self.error: Exception | None = None  # reason why it ends
        self.leaving = False  # the member asked to leave

    def fail(self, error: Exception) -> None:
        """End the stream with an error; the first one is kept."""
        self.error = self.error or error
        self.changed.set()


class Coordination:
    """Coordinators and streams of all queue-exclusive consumer groups.

    Call `open` and `close` for each stream, `on_leadership` after each change of the leadership, `on_effects`
    after each entry, and `stop` when the node stops.
    """

    def __init__(
        self,
        replica: Replica,
        pipeline: AppendPipeline,
        leadership: Leadership,
        zone: str,
        offset_at_time: OffsetAtTime,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica = replica
        self._pipeline = pipeline
        self._leadership = leadership
        self._zone = zone
        self._offset_at_time = offset_at_time
        self._clock = clock
        self._read_at = clock()  # seconds; last reading of the clock
        self._elapsed = 0.0  # seconds, see `_now`
        self._term: int | None = None  # that this node leads and is ready in; None: it does not lead
        self._stopping = False
        self._groups: dict[int, Coordinator] = {}  # by consumer group id
        # By consumer group id, then by member.
        self._streams: defaultdict[int, dict[str, MembershipStream]] = defaultdict(dict)
        self._due: set[int] = set()  # consumer groups with a scheduled pass
        self._again: set[int] = set()  # consumer groups with a refused proposal
        self._pauses: dict[int, float] = {}  # seconds of pause before the next pass, by consumer group id
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Applied]] = set()

    def stop(self) -> None:
        """End all streams, because the node stops."""
        self._stopping = True
        self._end_all(NodeStoppedError("this node stops; its next leader goes on with the same members"))
        self._drop()

    # --- members --------------------------------------------------------------------------------------------
    async def open(self, command: JoinConsumerGroup, orderly: bool | None = None) -> MembershipStream:
        """Add a member, or a known one again: applying the command proves that this node leads.

        `orderly`: whether it keeps the order of a queue; None: it does not say.
        Raises: RefusedError, and what the pipeline raises.
        """
        if self._stopping:
            raise NodeStoppedError("this node stops")
        self._check_bounds(command)
        stream = MembershipStream(command.group_id, command.member)
        old = self._streams[command.group_id].get(command.member)
        if old is not None:
            old.fail(_taken_over(command.member))
        self._streams[command.group_id][command.member] = stream
        try:
            await self.subscribe(command)
        except BaseException:
            self.close(stream)
            raise
        if orderly is not None:
            self._groups[command.group_id].keeps_order(command.member, orderly)
            self._soon(command.group_id)
        logger.info("member joined group=%d member=%s", command.group_id, command.member)
        return stream

    async def subscribe(self, command: JoinConsumerGroup) -> None:
        """Store a member or its new subscription. Raises: as `open`."""
        if (coordinator := self._groups.get(command.group_id)) is not None:
            coordinator.came(command.member, self._now())  # else it may be removed behind its own command
        applied = await self._pipeline.run(command)
        if applied.result.group is None:
            raise _group_deleted()
        if command.group_id not in self._groups:
            raise NotLeaderError(None)

    def heard(self, stream: MembershipStream) -> None:
        """Record a request on the stream as a sign of life."""
        if self._is_current(stream):
            self._heard(stream)

    def _heard(self, stream: MembershipStream) -> None:
        if (coordinator := self._groups.get(stream.group_id)) is not None:
            coordinator.heard(stream.member, self._now())

    def released(self, stream: MembershipStream, rows: Iterable[tuple[QueueKey, int]]) -> None:
        """Record that the member released queues, each with its epoch."""
        coordinator = self._groups.get(stream.group_id)
        if coordinator is not None and self._is_current(stream):
            coordinator.released(stream.member, rows)
            self._soon(stream.group_id)

    def leave(self, stream: MembershipStream) -> None:
        """Let the member leave; its stream ends once that is applied."""
        coordinator = self._groups.get(stream.group_id)
        if coordinator is not None and self._is_current(stream):
            stream.leaving = True
            coordinator.leave(stream.member)
            self._soon(stream.group_id)

    def close(self, stream: MembershipStream) -> None:
        """Remove an ended stream. The member can return within its session timeout from now."""
        if self._is_current(stream):
            self._heard(stream)
            del self._streams[stream.group_id][stream.member]
            if not self._streams[stream.group_id]:
                del self._streams[stream.group_id]

    def view(self, stream: MembershipStream) -> MemberView | None:
        """Return the information for the member; None: it left. Raises: RefusedError, and `stream.error`."""
        if stream.error is not None:
            raise stream.error
        coordinator = self._groups.get(stream.group_id)
        found = coordinator.view(stream.member) if coordinator is not None else None
        if found is None and not stream.leaving:
            if self._replica.state.groups.get(stream.group_id) is None:
                raise _group_deleted()
            raise _was_silent(stream.member)
        return found

    def _is_current(self, stream: MembershipStream) -> bool:
        return self._streams.get(stream.group_id, {}).get(stream.member) is stream

    def _check_bounds(self, command: JoinConsumerGroup) -> None:
        """Check the limits, counting members that are about to join. Raises: RefusedError."""
        memberships = self._replica.state.memberships
        known = memberships.get(command.group_id)
        if known is not None and command.member in known.members:
            return
        counts = {}
        for group_id in {*memberships.group_ids(), *self._streams}:
            membership = memberships.get(group_id)
            names = {
                *(membership.members if membership is not None else ()),
                *self._streams.get(group_id, ()),
            }
            counts[group_id] = len(names - {command.member} if group_id == command.group_id else names)
        here, limits = counts.get(command.group_id, 0), (MEMBERS_PER_GROUP, MEMBERS_PER_NODE)
        for what, count, limit in zip(
            ("the consumer group", "the broker group"), (here, sum(counts.values())), limits, strict=True
        ):
            if count >= limit:
                raise RefusedError(
                    route_pb2.TOO_MANY_REQUESTS,
                    f"{what} has {count} members; the limit is {limit}. More than there are queues find"
                    " nothing to do; stop some, or come again when one has left",
                    retryable=True,
                    retry_after_ms=1000,
                )

    # --- passes ---------------------------------------------------------------------------------------------
    def _now(self) -> int:
        """Return a time in ms that counts stalls of this node's event loop as STALL_SECONDS at most."""
        read_at = self._clock()
        self._elapsed += min(read_at - self._read_at, STALL_SECONDS)
        self._read_at = read_at
        return int(self._elapsed * 1000)

    def on_leadership(self) -> None:
        """Start the coordinators when this node becomes leader; end all streams when it stops leading."""
        term = self._leadership.term if self._leadership.ready else None
        if term == self._term or self._stopping:
            return
        self._drop()
        self._term = term
        if term is None:
            self._end_all(NotLeaderError(None))
            return
        for group_id in self._replica.state.memberships.group_ids():
            self._coordinate(group_id)

    def _drop(self) -> None:
        self._groups.clear()
        self._again.clear()
        self._pauses.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    def _end_all(self, error: Exception) -> None:
        for streams in self._streams.values():
            for stream in streams.values():
                stream.fail(error)

    def _coordinate(self, group_id: int) -> None:
        """Start the coordinator of a consumer group."""
        now = self._now()
        self._groups[group_id] = Coordinator(group_id, self._replica.state, self._zone, now)
        self._soon(group_id)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._now()
        again, self._again = self._again, set()
        for group_id, coordinator in list(self._groups.items()):
            if group_id in again or coordinator.is_due(now):
                self._soon(group_id)
        if self._groups:
            self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def on_effects(self, effects: Effects) -> None:
        """Schedule passes over the consumer groups whose members, owners or topics an entry changed."""
        if self._term is None or self._stopping:
            return
        memberships = self._replica.state.memberships
        for group_id in effects.members_changed:
            if group_id not in self._groups and memberships.get(group_id) is not None:
                self._coordinate(group_id)
            self._soon(group_id)
        if effects.topics_changed:
            for group_id in self._groups:
                self._soon(group_id)

    def _soon(self, group_id: int) -> None:
        """Schedule a pass over a consumer group after the callbacks that are due now."""
        if group_id in self._due:
            return
        self._due.add(group_id)
        if pause := self._pauses.pop(group_id, 0.0):
            asyncio.get_running_loop().call_later(pause, self._pass, group_id)
        else:
            asyncio.get_running_loop().call_soon(self._pass, group_id)

    def _pass(self, group_id: int) -> None:
        self._due.discard(group_id)
        coordinator, began = self._groups.get(group_id), self._clock()
        if coordinator is not None and self._replica.state.memberships.get(group_id) is None:
            del self._groups[group_id]  # its last member left, or the consumer group was deleted
        elif coordinator is not None:
            self._propose(group_id, coordinator, coordinator.decide(self._now()))
            if (took := self._clock() - began) > LONG_PASS_SECONDS:
                self._pauses[group_id] = PAUSE_FACTOR * took
        for stream in self._streams.get(group_id, {}).values():
            stream.changed.set()

    def _propose(self, group_id: int, coordinator: Coordinator, wishes: list[Wish]) -> None:
        for place, wish in enumerate(wishes):
            try:
                future = self._run(wish)
            except REFUSABLE as error:
                logger.info("not proposed, it comes again group=%d reason=%s", group_id, error)
                for each in wishes[place:]:
                    coordinator.settled(each)
                self._again.add(group_id)
                return
            future.add_done_callback(partial(self._on_settled, group_id, coordinator, wish))

    def _run(self, wish: Wish) -> asyncio.Future[Applied]:
        """Propose a wish. Raises: as AppendPipeline.submit."""
        if not isinstance(wish, StartsByTime):
            return self._pipeline.run(wish)
        task = asyncio.get_running_loop().create_task(self._start_by_time(wish))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start_by_time(self, wish: StartsByTime) -> Applied:
        rows = [(*key, await self._offset_at_time(*key, wish.timestamp_ms)) for key in wish.keys]
        return await self._pipeline.run(SetPositions(wish.group_id, position_rows(rows)))

    def _on_settled(
        self, group_id: int, coordinator: Coordinator, wish: Wish, future: asyncio.Future[Applied]
    ) -> None:
        coordinator.settled(wish)
        if self._groups.get(group_id) is not coordinator:
            return
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            if isinstance(wish, LeaveConsumerGroup):
                logger.info("members left group=%d members=%s", group_id, ",".join(wish.members))
            self._soon(group_id)
            return
        logger.info("not applied, it comes again group=%d reason=%s", group_id, error)
        self._again.add(group_id)


def _taken_over(member: str) -> RefusedError:
    return RefusedError(
        route_pb2.FENCED,
        f'another stream with the member id "{member}" took this membership over.'
        " Give each consumer an id of its own",
    )


def _was_silent(member: str) -> RefusedError:
    return RefusedError(
        route_pb2.FENCED,
        f'"{member}" was not heard for its session timeout and was taken out; its queues went to others.'
        " Drop them, then come again with a new stream",
        retryable=True,
    )


def _group_deleted() -> RefusedError:
    return RefusedError(
        route_pb2.GROUP_NOT_FOUND,
        "the consumer group was deleted, with its offsets. A new membership creates it again",
    )

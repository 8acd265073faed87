"""Queue-exclusive groups at the node that leads: drives their coordinators, and tells members' streams of changes (D14).

A pass over a group follows every entry that changes its members, owners or topics, and time: ten times a second it is looked
whether something is due. What is proposed and refused comes again with the next look. Nothing waits for a disk.
Owns: coordinators and streams of this node's lead, and their bounds. Must not: decide; coordinators do.
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
from ..state.commands import JoinGroup, LeaveGroup, SetPositions, position_rows
from ..state.consume_queue import QueueKey
from ..state.effects import Effects
from .coordinator import Coordinator, MemberView, StartsByTime, Wish
from .pipeline import AppendPipeline, Applied

logger = logging.getLogger(__name__)

MEMBERS_PER_GROUP: Final = 256
MEMBERS_PER_NODE: Final = 4096
TICK_SECONDS: Final = 0.1
#: After a stall of the loop, signs of life wait to be read: no more than this is counted as time that passed.
STALL_SECONDS: Final = 0.2
#: A pass over a very large group takes long; then the next one waits so many times as long, for the sake of heartbeats.
LONG_PASS_SECONDS: Final = 0.005
PAUSE_FACTOR: Final = 4
#: Looks up the first queue offset stored at or after a time: (topic id, queue id, ms).
OffsetAtTime = Callable[[int, int, int], Awaitable[int]]


class MembershipStream:
    """The open stream of a member. `changed` is set when there may be something to tell; `error`: why it ends."""

    def __init__(self, group_id: int, member: str) -> None:
        self.group_id = group_id
        self.member = member
        self.changed = asyncio.Event()
        self.error: Exception | None = None
        self.leaving = False

    def fail(self, error: Exception) -> None:
        """End it; the first reason counts."""
        self.error = self.error or error
        self.changed.set()


class Coordination:
    """Use: `open` and `close` for each stream, `stop` at the node's end.

    Call `on_leadership` after each change of the leadership and `on_effects` after each entry.
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
        self._read_at = clock()
        self._elapsed = 0.0
        self._term: int | None = None
        self._stopping = False
        self._groups: dict[int, Coordinator] = {}
        self._streams: defaultdict[int, dict[str, MembershipStream]] = defaultdict(dict)
        self._due: set[int] = set()  # groups with a pass scheduled
        self._again: set[int] = set()  # groups in which something was refused
        self._pauses: dict[int, float] = {}  # seconds until the next pass over a group may begin
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Applied]] = set()

    def stop(self) -> None:
        """The node stops: end all streams."""
        self._stopping = True
        self._end_all(NodeStoppedError("this node stops; its next leader goes on with the same members"))
        self._drop()

    # --- members --------------------------------------------------------------------------------------------
    async def open(self, command: JoinGroup) -> MembershipStream:
        """Take a member in, also one that is known: that it is applied proves that this node leads.

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
        logger.info("member joined group=%d member=%s", command.group_id, command.member)
        return stream

    async def subscribe(self, command: JoinGroup) -> None:
        """Store a member, or what it subscribes to now. Raises: as `open`."""
        if (coordinator := self._groups.get(command.group_id)) is not None:
            coordinator.came(command.member, self._now())  # else it may be taken out behind its own command
        applied = await self._pipeline.run(command)
        if applied.result.group is None:
            raise _group_deleted()
        if command.group_id not in self._groups:
            raise NotLeaderError(None)

    def heard(self, stream: MembershipStream) -> None:
        """A request came in: the member lives."""
        if self._is_current(stream):
            self._heard(stream)

    def _heard(self, stream: MembershipStream) -> None:
        if (coordinator := self._groups.get(stream.group_id)) is not None:
            coordinator.heard(stream.member, self._now())

    def released(self, stream: MembershipStream, rows: Iterable[tuple[QueueKey, int]]) -> None:
        """The member hands over queues, each with its epoch."""
        coordinator = self._groups.get(stream.group_id)
        if coordinator is not None and self._is_current(stream):
            coordinator.released(stream.member, rows)
            self._soon(stream.group_id)

    def leave(self, stream: MembershipStream) -> None:
        """The member goes; its stream ends when that is applied."""
        coordinator = self._groups.get(stream.group_id)
        if coordinator is not None and self._is_current(stream):
            stream.leaving = True
            coordinator.leave(stream.member)
            self._soon(stream.group_id)

    def close(self, stream: MembershipStream) -> None:
        """The stream is over: from now on the member has its session timeout to come back."""
        if self._is_current(stream):
            self._heard(stream)
            del self._streams[stream.group_id][stream.member]
            if not self._streams[stream.group_id]:
                del self._streams[stream.group_id]

    def view(self, stream: MembershipStream) -> MemberView | None:
        """Return what to tell the member; None: it left. Raises: RefusedError, and `stream.error`."""
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

    def _check_bounds(self, command: JoinGroup) -> None:
        """Raises: RefusedError. Those that are on their way in count, too."""
        memberships = self._replica.state.memberships
        known = memberships.get(command.group_id)
        if known is not None and command.member in known.members:
            return
        counts = {}
        for group_id in {*memberships.group_ids(), *self._streams}:
            group = memberships.get(group_id)
            names = {*(group.members if group is not None else ()), *self._streams.get(group_id, ())}
            counts[group_id] = len(names - {command.member} if group_id == command.group_id else names)
        here, limits = counts.get(command.group_id, 0), (MEMBERS_PER_GROUP, MEMBERS_PER_NODE)
        for what, count, limit in zip(
            ("the group", "the broker group"), (here, sum(counts.values())), limits, strict=True
        ):
            if count >= limit:
                raise RefusedError(
                    route_pb2.TOO_MANY_REQUESTS,
                    f"{what} has {count} members; the limit is {limit}. More than there are queues find nothing to do; "
                    "stop some, or come again when one has left",
                    retryable=True,
                    retry_after_ms=1000,
                )

    # --- passes ---------------------------------------------------------------------------------------------
    def _now(self) -> int:
        """Time in ms, in which stalls of this node's loop hardly count."""
        read_at = self._clock()
        self._elapsed += min(read_at - self._read_at, STALL_SECONDS)
        self._read_at = read_at
        return int(self._elapsed * 1000)

    def on_leadership(self) -> None:
        """Begin with all groups when this node leads; end all streams when it does no longer."""
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
        """Begin with a group."""
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
        """Look at the groups whose members, owners or topics an entry changed."""
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
        """Look at a group behind the callbacks that are due now."""
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
            del self._groups[group_id]  # the last member is gone, or the group
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
        """Propose. Raises: as AppendPipeline.submit."""
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
            if isinstance(wish, LeaveGroup):
                logger.info("members left group=%d members=%s", group_id, ",".join(wish.members))
            self._soon(group_id)
            return
        logger.info("not applied, it comes again group=%d reason=%s", group_id, error)
        self._again.add(group_id)


def _taken_over(member: str) -> RefusedError:
    return RefusedError(
        route_pb2.FENCED,
        f'another stream with the member id "{member}" took this membership over. Give each consumer an id of its own',
    )


def _was_silent(member: str) -> RefusedError:
    return RefusedError(
        route_pb2.FENCED,
        f'"{member}" was not heard for its session timeout and was taken out; its queues went to others. Drop them, then '
        "come again with a new stream",
        retryable=True,
    )


def _group_deleted() -> RefusedError:
    return RefusedError(
        route_pb2.GROUP_NOT_FOUND,
        "the consumer group was deleted, with its offsets. A new membership creates it again",
    )

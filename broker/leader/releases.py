"""Recent deliveries that may not have reached their client, and the releases of their leases.

A lease bound to a session does not end while the client lives. If the node that forwards a delivery fails
between grant and arrival, the client does not know of the lease: the leader, or the next one, must release
it. Releasing a lease whose message did arrive costs a second delivery. Keeping one whose message did not
arrive withholds the message. In doubt, the lease is released.

The leader proposes releases; other nodes send them to the leader. Both retry until a release is applied.
Proposing a release twice is harmless, because it names the lease that it ends. Any later leader
can end a lease, because the grant is in its state, too.

Owns: the recent deliveries of a leader, the pending releases, and the task that sends them.
Must not: drop a release whose lease is still in the replicated state.

Pending leases are stored as merged ranges of offsets; none is dropped for space. A row is done when its lease
is no longer in the replicated state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ledgermq.raft.errors import NotLeaderError

from ..cluster.known_leader import Leadership
from ..cluster.members import ON_THE_WAY_SECONDS
from ..state.commands import ReleaseLeases, lease_rows
from ..state.consumption import Consumption
from ..state.machine import BrokerState
from .pipeline import Applied, TooManyRequestsError, settle_error
from .selection import Delivery, ReceiveRequest

_Place = tuple[int, int]  # consumer group id, topic id
_Lease = tuple[int, int]  # queue id, lease id
_Range = tuple[int, int]  # first offset, one past the last
_NONE: Final = np.empty(0, np.int64)
#: Pause after a failed attempt to reach a leader, unless the leadership changes earlier.
PAUSE_SECONDS: Final = 1.0
#: Maximum of commands that are sent concurrently; each holds up to `ROWS_MAX` leases.
MAX_UNDER_WAY: Final = 8
#: Time for which a repeated attempt is recognised.
REMEMBERED_SECONDS: Final = 60.0
#: Counterpart of ON_THE_WAY_SECONDS for the previous leader: log time (ms) before its last entry.
LAST_LEADER_MS: Final = 2000
#: Maximum of leases (20 bytes each) in one command: it must fit into the smallest entry size of a broker
#: group.
ROWS_MAX: Final = 4096
#: Maximum of leases, and of sessions, whose client a leader remembers.
HOLDERS_MAX: Final = 20_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    at: float  # monotonic seconds
    via: str  # node that forwarded it; "": this node itself
    attempt_id: str
    command: ReleaseLeases  # releases its leases


def release_of(request: ReceiveRequest, deliveries: Iterable[Delivery]) -> ReleaseLeases:
    """Return the command that releases these leases."""
    return release_rows(request.group_id, request.topic_id, deliveries)


def release_rows(group_id: int, topic_id: int, deliveries: Iterable[Delivery]) -> ReleaseLeases:
    """Return the command that releases these leases of a consumer group in a topic."""
    rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in deliveries]
    return ReleaseLeases(group_id, topic_id, lease_rows(rows))


class RecentDeliveries:
    """Deliveries of this leader under a session within REMEMBERED_SECONDS."""

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()  # oldest first

    def __len__(self) -> int:
        return len(self._sent)

    def add(
        self, now: float, via: str, request: ReceiveRequest, deliveries: Sequence[Delivery]
    ) -> ReleaseLeases | None:
        """Record a delivery; return the command that releases it.

        None: it has no session. Its leases end by time and are not recorded.
        """
        noted = None
        if request.session and deliveries:
            noted = release_of(request, deliveries)
            self._sent.append(_Sent(now, via, request.attempt_id, noted))
        while self._sent and self._sent[0].at < now - REMEMBERED_SECONDS:
            self._sent.popleft()
        return noted

    def repeated(self, attempt_id: str) -> list[ReleaseLeases]:
        """Return the releases for an attempt id that a client repeats: its answer did not arrive."""
        if not attempt_id:
            return []
        return self._take([each for each in self._sent if each.attempt_id == attempt_id])

    def node_lost(self, node_id: str, now: float) -> list[ReleaseLeases]:
        """Return the releases of deliveries that a lost node may not have forwarded."""
        since = now - ON_THE_WAY_SECONDS
        return self._take([each for each in self._sent if each.via == node_id and each.at >= since])

    def _take(self, found: list[_Sent]) -> list[ReleaseLeases]:
        if found:
            taken = set(map(id, found))
            self._sent = deque(each for each in self._sent if id(each) not in taken)
        return [each.command for each in found]


class LeaseHolders:
    """Clients that hold leases, as far as this leader remembers. For display only."""

    def __init__(self) -> None:
        self._by_lease: OrderedDict[int, str] = OrderedDict()  # lease id -> client id, oldest first
        self._by_session: OrderedDict[int, str] = OrderedDict()  # session -> client id, oldest first

    def granted(self, client_id: str, deliveries: Iterable[Delivery]) -> None:
        """Record that a client got these deliveries."""
        for lease_id in {each.lease_id for each in deliveries}:
            _note(self._by_lease, lease_id, client_id)

    def moved(self, client_id: str, lease_id: int) -> None:
        """Record that a client moved the deadline of a lease, which gave it a new id."""
        _note(self._by_lease, lease_id, client_id)

    def seen(self, client_id: str, session: int) -> None:
        """Record the client of a live session."""
        _note(self._by_session, session, client_id)

    def name(self, lease_id: int, session: int) -> str:
        """Return the client that holds a lease; "": unknown."""
        return (self._by_session.get(session, "") if session else "") or self._by_lease.get(lease_id, "")


def _note(names: OrderedDict[int, str], key: int, client_id: str) -> None:
    names[key] = client_id
    names.move_to_end(key)
    if len(names) > HOLDERS_MAX:
        names.popitem(last=False)


def granted_since(
    consumption: Mapping[tuple[int, int, int], Consumption], first_index: int
) -> list[ReleaseLeases]:
    """Return the releases of all session leases granted at or after a log index. For a new leader."""
    commands = []
    for (group_id, topic_id, queue_id), found in sorted(consumption.items(), key=lambda item: item[0]):
        young = found.leases[(found.leases["session"] != 0) & (found.leases["lease_id"] >= first_index)]
        for start in range(0, len(young), ROWS_MAX):
            part = young[start : start + ROWS_MAX]
            pairs = zip(part["offset"].tolist(), part["lease_id"].tolist(), strict=True)
            rows = [(queue_id, offset, lease_id) for offset, lease_id in pairs]
            commands.append(ReleaseLeases(group_id, topic_id, lease_rows(rows)))
    return commands


class OwedLeases:
    """Pending releases. `add` them, loop over `take()` until None, and `add` again those that failed."""

    def __init__(self) -> None:
        # Invariant: the ranges of a lease are sorted and not adjacent. No dict or list in it is empty.
        self._ranges: dict[_Place, dict[_Lease, list[_Range]]] = {}

    def __len__(self) -> int:
        """Return the number of ranges, which determines the memory use."""
        return sum(len(ranges) for leases in self._ranges.values() for ranges in leases.values())

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, command: ReleaseLeases) -> None:
        """Add the leases of a command."""
        offsets: defaultdict[_Lease, list[int]] = defaultdict(list)
        for queue_id, offset, lease_id in command.rows.tolist():
            offsets[queue_id, lease_id].append(offset)
        if not offsets:
            return
        leases = self._ranges.setdefault((command.group_id, command.topic_id), {})
        for lease, found in offsets.items():
            leases[lease] = _merged([*leases.get(lease, ()), *((offset, offset + 1) for offset in found)])

    def take(self) -> ReleaseLeases | None:
        """Remove and return one command's worth of leases, of the pair that waits longest.

        A pair is a consumer group and a topic. None: nothing is pending.
        """
        if not self._ranges:
            return None
        place = next(iter(self._ranges))
        leases = self._ranges.pop(place)
        rows: list[tuple[int, int, int]] = []
        while leases and (room := ROWS_MAX - len(rows)):
            lease, ranges = next(iter(leases.items()))
            first, end = ranges.pop(0)
            taken = min(end, first + room)
            rows += [(lease[0], offset, lease[1]) for offset in range(first, taken)]
            if taken < end:
                ranges.insert(0, (taken, end))
            if not ranges:
                del leases[lease]
        if leases:
            self._ranges[place] = leases  # last in the order
        return ReleaseLeases(*place, lease_rows(rows))

    def forget_ended(self, state: BrokerState) -> None:
        """Drop leases that ended in the state: released, acknowledged, granted again, deleted."""
        for place, leases in list(self._ranges.items()):
            for lease, ranges in list(leases.items()):
                queue_id, lease_id = lease
                if lease_id > state.applied_index:
                    continue  # this node has not applied the grant yet
                consumption = state.consumption.get((*place, queue_id))
                offsets = np.concatenate([np.arange(*each, dtype=np.int64) for each in ranges])
                held = _NONE if consumption is None else offsets[consumption.holds(offsets, lease_id)]
                leases[lease] = _merged((offset, offset + 1) for offset in held.tolist())
                if not leases[lease]:
                    del leases[lease]
            if not leases:
                del self._ranges[place]


def _merged(ranges: Iterable[_Range]) -> list[_Range]:
    """Return the ranges sorted, with adjacent and overlapping ones merged."""
    merged: list[_Range] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


class LeaseReleases:
    """Releases of this node. Call `again` about once a second while it leads, and `stop` at the end."""

    def __init__(
        self,
        run: Callable[[ReleaseLeases], asyncio.Future[Applied]],
        state: Callable[[], BrokerState],
        leadership: Leadership,
        tell: Callable[[ReleaseLeases], Awaitable[str]] | None = None,
    ) -> None:
        """`run`: that of the append pipeline. `state`: the replicated state, which shows ended leases.

        `tell` sends a command to the leader and returns the reason of a failure, "" on success. None: there
        is no other node.
        """
        self._run = run
        self._state = state
        self._leadership = leadership
        self._tell = tell
        self._owed = OwedLeases()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def propose(self, command: ReleaseLeases) -> asyncio.Future[Applied]:
        """Propose a release; a failure makes it pending. The future of this attempt need not be awaited."""
        try:
            future = self._run(command)
        except (NotLeaderError, TooManyRequestsError) as error:
            future = asyncio.get_running_loop().create_future()
            settle_error(future, error)
            self._failed(command, error)
            return future
        future.add_done_callback(partial(self._on_done, command))
        return future

    def again(self) -> None:
        """Propose the pending releases."""
        self._owed.forget_ended(self._state())
        while (command := self._owed.take()) is not None:
            if self.propose(command).done():
                return  # refused at once; the others would be, too

    def give_back(self, command: ReleaseLeases) -> None:
        """Release these leases as soon as there is a leader. Their attempts do not count."""
        self._owed.add(command)
        self._wake()

    @property
    def owed(self) -> int:
        """Number of pending ranges of leases."""
        return len(self._owed)

    async def stop(self, seconds: float) -> None:
        """Wait up to `seconds` for the pending releases to be sent, then stop."""
        self._stopped = True
        if (task := self._task) is not None:
            await asyncio.wait({task}, timeout=seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._owed:
            logger.warning(
                "leases not given back, they last as long as their clients live ranges=%d", self.owed
            )

    def _on_done(self, command: ReleaseLeases, future: asyncio.Future[Applied]) -> None:
        if future.cancelled():  # by its caller: the outcome is unknown
            self._failed(command, None)
        elif (error := future.exception()) is not None:
            self._failed(command, error)

    def _failed(self, command: ReleaseLeases, error: BaseException | None) -> None:
        logger.debug("leases not released, they are again in a moment reason=%s", error)
        self.give_back(command)

    # --- sending to the leader ------------------------------------------------------------------------------
    def _wake(self) -> None:
        if self._tell is not None and self._owed and self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._tell_all(self._tell), name="lease-releases")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._wake()  # for releases added after its last check

    async def _tell_all(self, tell: Callable[[ReleaseLeases], Awaitable[str]]) -> None:
        failing = False
        while self._owed:
            changes = self._leadership.changes
            commands = [self._owed.take() for _ in range(MAX_UNDER_WAY)]
            told = await asyncio.gather(
                *(self._tell_one(tell, each) for each in commands if each is not None)
            )
            refused = list(filter(None, told))
            if not refused:
                failing = False
                continue
            if not failing:
                logger.info("leases not given back, they are again in a moment reason=%s", refused[0])
            failing = True
            if self._leadership.changes == changes:
                await self._leadership.wait_change(PAUSE_SECONDS)
            self._owed.forget_ended(self._state())

    async def _tell_one(self, tell: Callable[[ReleaseLeases], Awaitable[str]], command: ReleaseLeases) -> str:
        reason = "unfinished"
        try:
            reason = await tell(command)
        finally:
            if reason:
                self.give_back(command)
        return reason

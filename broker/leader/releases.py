"""Releases of leases whose messages never reached a consumer.

The leader proposes releases; other nodes send them to the leader. Both retry until a release is applied. A
lease of a session does not expire, so a lost release would withhold its message from all consumers while that
client lives. Proposing a release twice is harmless, because it names the lease that it ends. Any later leader
can end a lease, because the grant is in its state, too.

Owns: the pending releases, and the task that sends them.   Must not: know why a lease is released, or drop a
release whose lease is still in the replicated state.

Pending leases are stored as merged ranges of offsets; none is dropped for space. A row is done when its lease
is no longer in the replicated state.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import numpy as np

from ledgermq.raft.errors import NotLeaderError

from ..cluster.known_leader import Leadership
from ..state.commands import ReleaseLeases, lease_rows
from ..state.machine import BrokerState
from .pipeline import Applied, TooManyRequestsError, settle_error
from .recent_deliveries import ROWS_MAX

_Place = tuple[int, int]  # consumer group id, topic id
_Lease = tuple[int, int]  # queue id, lease id
_Range = tuple[int, int]  # first offset, one past the last
_NONE: Final = np.empty(0, np.int64)
#: Pause after a failed attempt to reach a leader, unless the leadership changes earlier.
PAUSE_SECONDS: Final = 1.0
#: Maximum of commands that are sent concurrently; each holds up to `ROWS_MAX` leases.
MAX_UNDER_WAY: Final = 8

logger = logging.getLogger(__name__)


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

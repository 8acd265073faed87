"""Releases of leases whose messages never reached a consumer.

The leader proposes them, another node sends them to the leader, until one is applied. A lease of a session
does not expire, so a release that is refused or lost would withhold its message from everybody while that
client lives. Proposing one twice is harmless: it names the lease that it ends. Any later leader can end a
lease, because the grant is in its state too.

Owns: the releases that are owed, and the task that sends them. Must not: know why a lease is given back, or
drop a release whose lease the replicated state still has.

Owed leases are kept as ranges of offsets, small by merging; none is dropped. A row whose lease is gone from
the replicated state is owed no more.
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

_Place = tuple[int, int]  # group id, topic id
_Lease = tuple[int, int]  # queue id, lease id
_Range = tuple[int, int]  # first offset, one behind the last
_NONE: Final = np.empty(0, np.int64)
#: Between two tries to tell a leader when one failed and nothing new is heard about one.
PAUSE_SECONDS: Final = 1.0
#: Commands told at the same time; each names up to `ROWS_MAX` leases.
MAX_UNDER_WAY: Final = 8

logger = logging.getLogger(__name__)


class OwedLeases:
    """Use: `add(command)`; `while (command := take()) is not None: …`, and `add` what was not taken there."""

    def __init__(self) -> None:
        # Invariant: the ranges of a lease are sorted and do not touch one another; nothing in here is empty.
        self._ranges: dict[_Place, dict[_Lease, list[_Range]]] = {}

    def __len__(self) -> int:
        """Return the number of ranges: what they take in memory."""
        return sum(len(ranges) for leases in self._ranges.values() for ranges in leases.values())

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, command: ReleaseLeases) -> None:
        """Owe these, too."""
        offsets: defaultdict[_Lease, list[int]] = defaultdict(list)
        for queue_id, offset, lease_id in command.rows.tolist():
            offsets[queue_id, lease_id].append(offset)
        if not offsets:
            return
        leases = self._ranges.setdefault((command.group_id, command.topic_id), {})
        for lease, found in offsets.items():
            leases[lease] = _merged([*leases.get(lease, ()), *((offset, offset + 1) for offset in found)])

    def take(self) -> ReleaseLeases | None:
        """Take out what one command may name, of the group and topic that waits longest; None: nothing is owed."""
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
            self._ranges[place] = leases  # behind the others
        return ReleaseLeases(*place, lease_rows(rows))

    def forget_ended(self, state: BrokerState) -> None:
        """Forget what the state says is over: released, acknowledged, expired and granted anew, deleted."""
        for place, leases in list(self._ranges.items()):
            for lease, ranges in list(leases.items()):
                queue_id, lease_id = lease
                if lease_id > state.applied_index:
                    continue  # of a grant that this node has still to learn of
                consumption = state.consumption.get((*place, queue_id))
                offsets = np.concatenate([np.arange(*each, dtype=np.int64) for each in ranges])
                held = _NONE if consumption is None else offsets[consumption.holds(offsets, lease_id)]
                leases[lease] = _merged((offset, offset + 1) for offset in held.tolist())
                if not leases[lease]:
                    del leases[lease]
            if not leases:
                del self._ranges[place]


def _merged(ranges: Iterable[_Range]) -> list[_Range]:
    """Return ranges sorted, with those joined that touch or overlap."""
    merged: list[_Range] = []
    for first, end in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


class LeaseReleases:
    """Call `again` about once a second while this node leads, and `await stop(seconds)` at the end."""

    def __init__(
        self,
        run: Callable[[ReleaseLeases], asyncio.Future[Applied]],
        state: Callable[[], BrokerState],
        leadership: Leadership,
        tell: Callable[[ReleaseLeases], Awaitable[str]] | None = None,
    ) -> None:
        """`run`: that of the append pipeline; `state`: the replicated one, which says what is over.

        `tell` has the leader release these and returns why that failed, "" for success. None: there is no
        other node.
        """
        self._run = run
        self._state = state
        self._leadership = leadership
        self._tell = tell
        self._owed = OwedLeases()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def propose(self, command: ReleaseLeases) -> asyncio.Future[Applied]:
        """Propose a release, and again when that fails. The future is of this attempt; nobody needs to await it."""
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
        """Propose what is owed."""
        self._owed.forget_ended(self._state())
        while (command := self._owed.take()) is not None:
            if self.propose(command).done():
                return  # refused at once: so would the others be

    def give_back(self, command: ReleaseLeases) -> None:
        """These messages become visible again, as soon as there is a leader, without counting an attempt."""
        self._owed.add(command)
        self._wake()

    @property
    def owed(self) -> int:
        """How many ranges of leases are owed."""
        return len(self._owed)

    async def stop(self, seconds: float) -> None:
        """Tell what is owed, for so long at most."""
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
        if future.cancelled():  # by its caller: what became of it is not known
            self._failed(command, None)
        elif (error := future.exception()) is not None:
            self._failed(command, error)

    def _failed(self, command: ReleaseLeases, error: BaseException | None) -> None:
        logger.debug("leases not released, they are again in a moment reason=%s", error)
        self.give_back(command)

    # --- telling who leads ----------------------------------------------------------------------------------
    def _wake(self) -> None:
        if self._tell is not None and self._owed and self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._tell_all(self._tell), name="lease-releases")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._wake()  # what came since it looked

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

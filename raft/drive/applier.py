"""Applier: hands committed entries to the state machine, in order, one slice at a time.

Owns: `applied_index` and its waiters. Must not: apply entries that are not committed and locally durable
(P14), or block the loop for longer than a slice, because heartbeats must not be late. An exception from the
state machine faults the node.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ledgermq.proto.entry import EntryHeader

from ..errors import DamagedLogError, NodeStoppedError, RaftError
from ..log.commit_log import CommitLog
from ..state_machine import StateMachine
from ..types import NO_INDEX, LogIndex

Entries = Sequence[tuple[EntryHeader, memoryview]]


@dataclass(slots=True)
class Applier:
    """Usage: `advance(index)` as commit moves; `await wait(index)`; `close(reason)`."""

    log: CommitLog
    state_machine: StateMachine
    applied_index: LogIndex
    slice_bytes: int
    on_applied: Callable[[], None]
    on_failed: Callable[[str], None]
    # starts a repair, after which `resume` is called; False: no repair is possible, and the node fails
    on_damaged: Callable[[DamagedLogError], bool]
    _is_stalled: bool = False  # True while damage is being repaired
    _target: LogIndex = NO_INDEX  # apply up to here; never above the commit index
    _scheduled: asyncio.Handle | None = None
    _cold_read: asyncio.Task[None] | None = None
    # heap of (index, order, future)
    _waiting: list[tuple[int, int, asyncio.Future[None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)
    _closed: str = ""

    def advance(self, index: LogIndex) -> None:
        """Allow entries up to `index` to be applied. Applies the first slice at once."""
        self._target = max(self._target, index)
        if self._scheduled is None and self._cold_read is None and not self._closed and not self._is_stalled:
            self._apply_slice()

    def resume(self) -> None:
        """Read again after a repair."""
        if self._is_stalled:
            self._is_stalled = False
            self.advance(self._target)

    async def wait(self, index: LogIndex) -> None:
        """Return when `applied_index >= index`. Raises: NodeStoppedError."""
        if self._closed:
            raise NodeStoppedError(self._closed)
        if self.applied_index >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (index, next(self._order), future))
        await future

    async def close(self, reason: str) -> None:
        """Stop applying and fail all waiters."""
        self.halt(reason)
        if self._cold_read is not None:
            await asyncio.wait([self._cold_read])

    def halt(self, reason: str) -> None:
        """Stop synchronously, as the first part of `close`."""
        self._closed = self._closed or reason
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        if self._cold_read is not None:
            self._cold_read.cancel()
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(NodeStoppedError(reason))
                future.exception()
        self._waiting.clear()

    def _apply_slice(self) -> None:
        self._scheduled = None
        if self.applied_index >= self._target or self._closed:
            return
        lo = LogIndex(self.applied_index + 1)
        try:
            entries = self.log.entries_nowait(lo, self._target, self.slice_bytes)
        except RaftError as error:
            self._on_unreadable(lo, error)
            return
        if entries is None:
            self._cold_read = asyncio.get_running_loop().create_task(self._apply_cold(lo))
            return
        self._apply(entries)

    async def _apply_cold(self, lo: LogIndex) -> None:
        try:
            entries = await self.log.entries(lo, self._target, self.slice_bytes)
        except RaftError as error:
            self._on_unreadable(lo, error)
            return
        finally:
            self._cold_read = None
        if not self._closed:
            self._apply(entries)

    def _on_unreadable(self, lo: LogIndex, error: RaftError) -> None:
        if isinstance(error, DamagedLogError):
            self._is_stalled = self.on_damaged(error)
        else:
            self.on_failed(f"committed entry {lo} cannot be read: {error}")

    def _apply(self, entries: Entries) -> None:
        """Apply one slice. The next one gets its own turn of the loop."""
        try:
            self.state_machine.apply(entries)
        except Exception as error:  # noqa: BLE001 (whatever it is: replicas that differ are worse than one that stops)
            self.on_failed(f"state machine failed at entry {entries[0][0].index}: {error!r}")
            return
        self.applied_index = LogIndex(entries[-1][0].index)
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.applied_index:
            future = heapq.heappop(waiting)[2]
            if not future.done():
                future.set_result(None)
        self.on_applied()
        if self.applied_index < self._target and self._scheduled is None and not self._closed:
            self._scheduled = asyncio.get_running_loop().call_soon(self._apply_slice)

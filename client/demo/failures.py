"""Failure injection under load: kill the leader with SIGKILL, wait for the next one, restart the victim.

Owns: the times of the kills, and their measurements. Must not: print; it calls `on_event`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..admin.status_report import size
from ..errors import LedgerMQError
from .demo_cluster import DemoCluster, find_leader, wait_caught_up
from .ledger import SendBook

_POLL_SECONDS = 0.005
_DOWN_SECONDS = 2.0  # how long a victim stays down, so that it has to catch up
_PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class Strikes:
    """Results of the kills."""

    write_gaps: list[float] = field(default_factory=list)  # seconds without any acknowledgement
    done: int = 0
    last_victim: str = ""


class Striker:
    """Kills the leader `kills` times, at even intervals of the `messages` to send."""

    def __init__(
        self,
        cluster: DemoCluster,
        book: SendBook,
        *,
        kills: int,
        messages: int,
        on_event: Callable[[str], None],
    ) -> None:
        self.strikes = Strikes()
        self.finished = False
        self._cluster = cluster
        self._book = book
        self._kills = kills
        self._messages = messages
        self._on_event = on_event

    async def run(self) -> None:
        """Kill and restart `kills` times. Raises: LedgerMQError (the cluster does not recover)."""
        try:
            for number in range(1, self._kills + 1):
                await self._wait_acknowledged(number * self._messages // (self._kills + 2))
                await self._strike()
        finally:
            self.finished = True

    async def _strike(self) -> None:
        victim, before = await find_leader(self._cluster)
        self.strikes.last_victim = victim
        waiting, failed, recognised = self._book.in_flight, len(self._book.failed), self._book.recognised
        struck_at = time.monotonic()
        what = await asyncio.to_thread(self._cluster.kill, victim)
        self._on_event(f"kill -9 {victim}, the leader ({what}), {waiting:,} messages in flight")
        leader, view = await find_leader(self._cluster, other_than=victim)
        # More than was in flight: at least one was sent to the new leader, so the gap is over.
        await self._wait_acknowledged(len(self._book.acknowledged) + waiting + 1)
        gap = self._book.longest_gap(struck_at)
        self.strikes.write_gaps.append(gap)
        refused = len(self._book.failed) - failed
        again = self._book.recognised - recognised
        self._on_event(
            f"{leader} leads, term {view.term:,} (was {before.term:,})   writes stopped {gap * 1000:.0f} "
            f"ms   {again:,} retries recognised, {refused:,} refused"
        )
        await asyncio.sleep(_DOWN_SECONDS)
        await self._bring_back(victim, before.log_bytes)
        self.strikes.done += 1

    async def _bring_back(self, victim: str, had_bytes: int) -> None:
        _, view = await find_leader(self._cluster)
        behind = max(0, view.log_bytes - had_bytes)
        target = next(node.commit_index for node in view.nodes if node.node_id == view.node_id)
        started = time.monotonic()
        await asyncio.to_thread(self._cluster.restart, victim)
        await wait_caught_up(self._cluster, victim, target)
        seconds = time.monotonic() - started
        self._on_event(
            f"{victim} back, {size(behind)} behind -> caught up in {seconds:.1f} s, its start included"
        )

    async def _wait_acknowledged(self, count: int) -> None:
        """Wait until `count` messages are acknowledged. Raises: LedgerMQError (no progress)."""
        moved, last = time.monotonic(), -1
        while (now_count := len(self._book.acknowledged)) < count:
            if now_count != last:
                moved, last = time.monotonic(), now_count
            elif time.monotonic() - moved > _PATIENCE_SECONDS:
                raise LedgerMQError(f"no message was acknowledged for {_PATIENCE_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)

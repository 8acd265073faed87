"""The clock of the node: turns the monotonic clock into ticks, and measures how late the event loop runs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from .tick_schedule import TickSchedule


class Ticker:
    """Calls `on_ticks(count)` on the loop; `on_lateness(seconds)` with each firing."""

    def __init__(
        self,
        tick_ms: int,
        stall_ms: float,
        on_ticks: Callable[[int], None],
        on_lateness: Callable[[float], None],
    ) -> None:
        self._tick_ms = tick_ms
        self._stall_ms = stall_ms
        self._on_ticks = on_ticks
        self._on_lateness = on_lateness
        self._schedule: TickSchedule | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start ticking."""
        self._schedule = TickSchedule(self._tick_ms, self._stall_ms, _now_ms())
        self._arm()

    def stop(self) -> None:
        """Tick no more."""
        self._schedule = None
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._schedule is not None:
            # Whole milliseconds, upwards: the loop's timers have no finer ones, and one that fires early fires again
            # at once, a dozen times per tick.
            delay_ms = math.ceil(self._schedule.delay_ms(_now_ms()))
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        schedule = self._schedule
        if schedule is None:
            return
        count = schedule.due(_now_ms())
        self._on_lateness(schedule.lateness_ms / 1000)
        if count:
            self._on_ticks(count)
        self._arm()


def _now_ms() -> float:
    return time.monotonic() * 1000

"""Clock of the node: turns the monotonic clock into ticks, and measures how late the event loop runs.

Owns: one timer. It sleeps until the next tick at which the core decides something. Ticks in between are
delivered before the next input, or together with that tick, so the core always knows the time when it
decides.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..core.tick_schedule import TickSchedule

#: Reset a timer only for a sleep that is at least this much longer: once per heartbeat of an idle leader,
#: rarely under load.
WORTH_A_TIMER_MS: Final = 50


@dataclass(slots=True)
class Ticker:
    """Calls `on_ticks(count)` on the loop, and `on_lateness(seconds)` at each firing.

    Call `before_input` before every input to the core, and `after_input` after it.
    """

    tick_ms: int
    stall_ms: float
    on_ticks: Callable[[int], None]
    on_lateness: Callable[[float], None]
    quiet_ticks: Callable[[], int]  # returns how many of the next ticks decide nothing
    _schedule: TickSchedule | None = None
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start ticking."""
        self._schedule = TickSchedule(self.tick_ms, self.stall_ms, _now_ms())
        self._arm(self._schedule)

    def stop(self) -> None:
        """Stop ticking."""
        self._schedule = None
        if self._timer is not None:
            self._timer.cancel()

    def before_input(self) -> int:
        """Return the number of ticks to deliver to the core first. It decides nothing in them."""
        schedule, now_ms = self._schedule, _now_ms()
        if schedule is None or not schedule.has_passed(now_ms):
            return 0
        return schedule.take_passed(now_ms, self.quiet_ticks())

    def after_input(self) -> None:
        """Move the timer if the input brought the core's next decision nearer, or moved it far away."""
        schedule, timer = self._schedule, self._timer
        if schedule is None or timer is None:
            return
        later_ms = schedule.wake_at(self.quiet_ticks()) - schedule.wake_ms
        if later_ms < 0 or later_ms >= WORTH_A_TIMER_MS:
            timer.cancel()
            self._arm(schedule)

    def _arm(self, schedule: TickSchedule) -> None:
        schedule.wake_ms = schedule.wake_at(self.quiet_ticks())
        # Round up to whole milliseconds, the resolution of the loop's timers. A timer that fires early fires
        # again at once, a dozen times per tick.
        delay_ms = math.ceil(max(0.0, schedule.wake_ms - _now_ms()))
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        schedule = self._schedule
        if schedule is None:
            return
        self._timer = None  # so that `after_input` sets no timer while the ticks run
        count = schedule.take(_now_ms())
        self.on_lateness(schedule.lateness_ms / 1000)
        if count:
            self.on_ticks(count)
        if self._schedule is not None:
            self._arm(schedule)


def _now_ms() -> float:
    return time.monotonic() * 1000

"""An event loop without a clock, a selector or threads: what the broker's coroutines and futures run on in simulated time.

A turn runs what was ready when it began, like a turn of asyncio's own loop; when turns happen, and when timers fire,
is the simulator's business. Work for a thread is carried out at once and reported when the disk is done with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class TinyLoop:
    """`wake` asks for a turn, `later` for a timer (microseconds), `when_disk_is_done` for the end of a thread's work."""

    def __init__(
        self,
        wake: Callable[[], None],
        later: Callable[[int, asyncio.Handle], None],
        when_disk_is_done: Callable[[Callable[[], None]], None],
    ) -> None:
        self._self: Any = self  # asyncio asks for far more of a loop than its futures and tasks use
        self._wake = wake
        self._later = later
        self._when_disk_is_done = when_disk_is_done
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any]]] = []
        self._is_due = False
        self.is_dead = False

    def turn(self) -> None:
        """Run what is ready now; what that makes ready is for the next turn."""
        self._is_due = False
        ready, self._ready = self._ready, deque()
        with self.running():
            for handle in ready:
                if not handle.cancelled():
                    handle._run()

    def end(self) -> None:
        """The process is gone: nothing runs any more."""
        self.is_dead = True
        for task, coroutine in self._tasks:
            if not task.done():
                coroutine.close()
        self._tasks.clear()
        self._ready.clear()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def run_handle(self, handle: asyncio.Handle) -> None:
        """Let a timer fire: its callback runs in the next turn."""
        if not handle.cancelled():
            self._add(handle)

    def _add(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)
        if not self._is_due and not self.is_dead:
            self._is_due = True
            self._wake()

    # --- what asyncio asks of a loop -------------------------------------------------------------------------------
    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._add(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(0.0, callback, args, self._self, context)
        if not self.is_dead:
            self._later(int(delay * 1e6), handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing is kept of timers here."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        coroutine: Coroutine[Any, Any, Any] = coro
        task = asyncio.Task(coroutine, loop=self._self, name=options.get("name"))
        self._tasks = [each for each in self._tasks if not each[0].done()]
        self._tasks.append((task, coroutine))
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        future: asyncio.Future[_T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 (whatever it is belongs to who waits)
            caught = error
            self._when_disk_is_done(lambda: None if future.done() else future.set_exception(caught))
        else:
            self._when_disk_is_done(lambda: None if future.done() else future.set_result(result))
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback raised: that is a defect. (Futures whose error nobody read end with their node.)"""
        if "handle" in context:
            raise context["exception"]

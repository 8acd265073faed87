"""asyncio in simulated time: the coroutines of the code under test run on the world's heap of events.

Owns: the tasks of one life of a node. Time is the world's; what is given to a thread is done at once on the simulated
disk, and is reported when the disk is done. When the process dies its tasks end where they wait, and nothing that
their `finally` blocks ask of the disk happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .node import SimNode

_SECOND = 1_000_000
_MOST_FINALLY = 20  # awaits in `finally` blocks of one task


class _ProcessEnded(BaseException):
    """Goes through a task whose process died."""


_Loop: Any = asyncio.AbstractEventLoop  # to a type checker it has dozens of methods that must be there


class SimLoop(_Loop):  # type: ignore[misc]
    """As much of an event loop as tasks, futures, timeouts, locks and threads need."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self._world = node.world
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._number = 0
        self._dead = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the loop that code asks for."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def run(self, handle: asyncio.Handle) -> None:
        """Do what was scheduled."""
        if not handle.cancelled():
            with self.running():
                handle._run()

    def kill(self) -> None:
        """The process ends: throw every task out of where it waits."""
        self._dead = True
        with self.running():
            self._end_tasks()

    def _end_tasks(self) -> None:
        for task in list(self._tasks.values()):
            vars_of: Any = task
            vars_of._log_destroy_pending = False
            coroutine: Any = task.get_coro()
            for _ in range(_MOST_FINALLY):
                try:
                    coroutine.throw(_ProcessEnded())
                except BaseException:  # noqa: BLE001 (it has ended, whatever it says)
                    break
        self._tasks.clear()

    # --- AbstractEventLoop ---------------------------------------------------------------------------------------
    def time(self) -> float:
        return self._world.now / _SECOND

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._dead

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._schedule(0, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._schedule(max(0, round(when * _SECOND) - self._world.now), handle)
        return handle

    def _schedule(self, delay_us: int, handle: asyncio.Handle) -> None:
        if not self._dead:
            self._world.later(delay_us, self.node.name, "loop", handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self)
        self._number += 1
        number = self._number
        self._tasks[number] = task

        def done(ended: asyncio.Task[Any]) -> None:
            self._tasks.pop(number, None)
            if not ended.cancelled() and isinstance(error := ended.exception(), AssertionError):
                self._world.note_defect(error)

        task.add_done_callback(done)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        if self._dead:
            return future
        result: Any = None
        failure: Exception | None = None
        try:
            result = func(*args)
        except AssertionError as error:
            self._world.note_defect(error)
            failure = error
        except Exception as error:  # noqa: BLE001 (it is the caller's)
            failure = error
        until = max(0, self.node.files.busy_until - self._world.now) / _SECOND
        self.call_later(until, _report, future, result, failure)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and isinstance(error, Exception):
            self._world.note_defect(error)


def _report(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.done():
        return  # nobody waits any more
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)

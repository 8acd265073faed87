"""asyncio in simulated time: coroutines of the code under test run on the world's event heap.

Owns: the tasks of one process, or of part of it. The simulator decides when something runs: its callables put
it on the heap. Work for threads runs at once on the simulated disk and is reported when the disk is done.
When the process dies, its tasks end where they wait, and nothing that their `finally` blocks ask of the disk
happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

_SECOND = 1_000_000
_MOST_FINALLY = 20  # upper limit of awaits in a task's `finally` blocks
#: Exceptions that callers must not catch. A task that ends with one has a bug, even if its result is ignored.
_BUGS = (AssertionError, AttributeError, LookupError, NameError, TypeError)


class _ProcessEnded(BaseException):
    """Unwinds a task whose process died."""


class SimLoop:
    """The part of an event loop that tasks, futures, timeouts, locks and threads need."""

    def __init__(
        self,
        now: Callable[[], int],
        soon: Callable[[asyncio.Handle], None],
        later: Callable[[int, asyncio.Handle], None],
        when_disk_is_done: Callable[[asyncio.Handle], None],
        on_defect: Callable[[BaseException], None],
    ) -> None:
        """`now` and the delays of `later` are in microseconds. Handles come back through `run`."""
        self._self: Any = self  # asyncio's types demand far more of a loop than its futures and tasks use
        self._now = now
        self._soon = soon
        self._later = later
        self._when_disk_is_done = when_disk_is_done
        self._on_defect = on_defect
        self._tasks: list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any]]] = []
        self._dead = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the running loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def run(self, handle: asyncio.Handle) -> None:
        """Run a scheduled handle."""
        if not handle.cancelled():
            with self.running():
                handle._run()

    def kill(self) -> None:
        """End the process: unwind every task where it waits."""
        self._dead = True
        with self.running():
            for task, coroutine in self._tasks:
                self._end(task, coroutine)
        self._tasks.clear()

    def _end(self, task: asyncio.Task[Any], coroutine: Coroutine[Any, Any, Any]) -> None:
        vars_of: Any = task
        vars_of._log_destroy_pending = False
        for _ in range(_MOST_FINALLY):
            try:
                coroutine.throw(_ProcessEnded())
            except BaseException:  # noqa: BLE001 (it has ended, whatever it says)
                break

    # --- AbstractEventLoop ----------------------------------------------------------------------------------
    def time(self) -> float:
        return self._now() / _SECOND

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._dead

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        if not self._dead:
            self._soon(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)
        if not self._dead:
            self._later(max(0, round(when * _SECOND) - self._now()), handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: this loop keeps no timers."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(_Watched(coro, self._on_defect), loop=self._self, name=options.get("name"))
        self._tasks = [each for each in self._tasks if not each[0].done()]
        self._tasks.append((task, coro))
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
            self._on_defect(error)
            failure = error
        except Exception as error:  # noqa: BLE001 (it is the caller's)
            failure = error
        self._when_disk_is_done(asyncio.Handle(_report, (future, result, failure), self._self))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception in a callback as a defect. (Unread errors of futures end with their node.)"""
        error = context.get("exception")
        if "handle" in context and isinstance(error, Exception):
            self._on_defect(error)


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits. Without threads, reads of the log do not wait."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a read of the log waited for something")


class _Watched(Coroutine[Any, Any, Any]):
    """Reports the bugs of a coroutine at once, whatever becomes of its task."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], on_defect: Callable[[BaseException], None]
    ) -> None:
        self._coroutine = coroutine
        self._on_defect = on_defect

    def send(self, value: Any) -> Any:
        return self._go_on(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._go_on(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        return self._coroutine.__await__()

    def _go_on(self, step: Callable[..., Any], *args: Any) -> Any:
        try:
            return step(*args)
        except _BUGS as bug:
            self._on_defect(bug)
            raise


def _report(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.done():
        return  # no longer awaited
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)

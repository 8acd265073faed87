"""The event loop of all synchronous clients of a process, in a thread of its own, and what these clients have in common.

Owns: that loop (made by the first client, ended at exit), and of each client what it runs there; a client is closed by close(),
`with`, or at exit. Safe to use from several threads. After fork() the child makes its own: the parent's clients raise ClosedError there.

One loop, and never an earlier end: gRPC has one queue of events for all loops of a process, from which each of them takes what
comes, also for the others. What comes for a loop that is closed by then (the end of a call that was cancelled, for example) is
an error in the loop that took it.

Invariants:
    * a call that waits in another thread ends when its client is closed, with ClosedError
    * nothing of a client runs after its close()
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..errors import ClosedError, UsageError
from ..event_loop import new_event_loop

T = TypeVar("T")
#: How long the interpreter may overlook a signal while a thread waits, s.
_LOOK_S: Final = 0.5
#: On the loop: whose work is done now. Tasks and callbacks inherit it from who makes them.
_working_for: ContextVar[LoopThread | None] = ContextVar("working_for", default=None)


class _Thread:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.loop.set_task_factory(_new_task)
        self.thread = threading.Thread(target=self._run, name="ledgermq-clients", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def _new_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    **options: Any,
) -> asyncio.Task[T]:
    """Note the tasks of a client: they end with it."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    client = _working_for.get()
    if client is not None:
        client.tasks.add(task)
    return task


class LoopThread:
    """The loop's thread, as one client uses it."""

    def __init__(self) -> None:
        shared = _shared_thread()
        self.loop = shared.loop
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # its own, on the loop only
        self._thread = shared.thread
        self._lock = threading.Lock()
        self._stopped = False  # under the lock: what is submitted before stop() gets its turn on the loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Raises: ClosedError (after stop)."""
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise ClosedError("client")
            before = _working_for.set(self)
            try:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
            finally:
                _working_for.reset(before)

    def post(self, function: Callable[[], None]) -> None:
        """Run a function on the loop, soon. Raises: ClosedError (after stop)."""
        with self._lock:
            if self._stopped:
                raise ClosedError("client")
            before = _working_for.set(self)
            try:
                self.loop.call_soon_threadsafe(function)
            finally:
                _working_for.reset(before)

    def check_outside(self) -> None:
        """Refuse to wait, in its own thread, for what only that thread can do. Raises: UsageError."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a callback of a future must not call what waits",
                "It runs in the thread that would have to do it",
                "Use send_async() or send_oneway() there, or hand the work to a thread of your own",
            )

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. Ctrl-C cancels it. Raises: ClosedError (stopped meanwhile)."""
        future = self.submit(coroutine)
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise ClosedError("client") from None  # nobody else knows the future
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End what still runs of this client."""
        with self._lock:
            self._stopped = True
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop).result()

    async def _end_tasks(self) -> None:
        """Cancel its tasks: a thread that waits for one hears of it."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _result(future: Future[T]) -> T:
    """Wait for a result. Ctrl-C is noticed at the latest after _LOOK_S.

    A signal does not wake a wait when it comes in the last moment before it, or is delivered to another thread. Raises: what the
    future does.
    """
    while not future.done():
        with suppress(TimeoutError):  # or one of its own: then it is done
            future.result(_LOOK_S)
    return future.result()


async def make(build: Callable[[], T]) -> T:
    """Build an object on the loop it will belong to."""
    return build()


_open: weakref.WeakSet[Closing] = weakref.WeakSet()
_shared: Final[list[_Thread]] = []  # one, from the first client on
_shared_lock = threading.Lock()


def _shared_thread() -> _Thread:
    with _shared_lock:
        if not _shared:
            _follow_process()
            _shared.append(_Thread())
        return _shared[0]


@functools.cache
def _follow_process() -> None:
    """Register for exit and forks, once per process; children inherit it. An import must not do it."""
    atexit.register(_close_all)
    os.register_at_fork(after_in_child=_forget_all)


def _close_all() -> None:
    for each in list(_open):
        each.close()
    with _shared_lock:
        if _shared:
            _shared.pop().stop()


def _forget_all() -> None:
    """In a child of fork(): the thread stayed in the parent. What is used here must say so instead of waiting for it."""
    global _shared_lock
    for each in list(_open):
        each._closed = True
    _open.clear()
    _shared.clear()
    _shared_lock = threading.Lock()  # another thread may have held it


class Closing(ABC):
    """What synchronous clients share: the thread, `with`, and being closed at exit."""

    def __init__(self) -> None:
        self._thread = LoopThread()
        self._closed = False
        _open.add(self)

    def _build(self, twin: Callable[[], T]) -> T:
        """Build the asyncio twin on the loop; when that fails this object is closed. Raises: what `twin` raises."""
        try:
            return self._thread.call(make(twin))
        except BaseException:
            self._closed = True
            _open.discard(self)
            self._thread.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is open, then close every connection. May be called twice."""
        if self._closed:
            return
        self._thread.check_outside()
        self._closed = True
        _open.discard(self)
        try:
            self._thread.call(self._finish())
        finally:
            self._thread.stop()

    def _now(self, call: Callable[[], T]) -> T:
        """Make a call that does not wait, on the loop."""
        return self._thread.call(make(call))

    def _until_closed(self, receive: Callable[[], list[T]]) -> Iterator[T]:
        """Yield what `receive` returns, again and again, until this is closed."""
        while not self._closed:
            try:
                found = receive()
            except ClosedError:
                return  # closed by another thread
            yield from found

    @abstractmethod
    async def _finish(self) -> None:
        """Finish what is open and close what the twin holds; runs on the loop."""

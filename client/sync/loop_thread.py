"""Loop thread: the event loop of all synchronous clients of a process, and the base class of these clients.

Owns: that loop (created by the first client, stopped at exit), and the tasks of each client on it. A client
is closed by close(), `with`, or at exit. Safe to use from several threads. After fork() the child creates its
own loop; the parent's clients raise ClosedError there.

There is one loop, and it is never stopped earlier, because gRPC has one event queue for all loops of a
process.
Each loop takes events from it, including those of other loops. An event for a loop that is already closed,
for example the end of a cancelled call, is an error in the loop that took it.

Invariants:
    * a call that waits in another thread ends with ClosedError when its client is closed
    * nothing of a client runs after its close()
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Self, TypeVar

from ..errors import ClosedError, UsageError
from ..event_loop import new_event_loop

P = ParamSpec("P")
T = TypeVar("T")
#: How long Ctrl-C may go unnoticed while a thread waits, s.
_LOOK_S: Final = 0.5
#: On the loop: the client whose code is running. Tasks and callbacks inherit it from their creator.
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
    """Register the task with its client, which ends it on close."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    client = _working_for.get()
    if client is not None:
        client.tasks.add(task)
    return task


class LoopThread:
    """The shared loop thread, as one client uses it."""

    def __init__(self) -> None:
        shared = _shared_thread()
        self.loop = shared.loop
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()  # its own; used on the loop only
        self._thread = shared.thread
        self._lock = threading.Lock()
        self._stopped = False  # guarded by the lock: what is submitted before stop() still runs

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
        """Schedule a function on the loop. Raises: ClosedError (after stop)."""
        with self._lock:
            if self._stopped:
                raise ClosedError("client")
            before = _working_for.set(self)
            try:
                self.loop.call_soon_threadsafe(function)
            finally:
                _working_for.reset(before)

    def check_outside(self) -> None:
        """Refuse a call that would wait for the loop in the loop's own thread. Raises: UsageError."""
        if threading.current_thread() is self._thread:
            raise UsageError(
                "a callback of a future must not call what waits",
                "It runs in the thread that would have to do it",
                "Use send_async() or send_oneway() there, or hand the work to a thread of your own",
            )

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it. Ctrl-C cancels it.

        Raises: ClosedError (stopped meanwhile), UsageError (in the loop's own thread).
        """
        try:
            self.check_outside()
        except UsageError:
            coroutine.close()
            raise
        future = self.submit(coroutine)
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise ClosedError("client") from None  # only stop() can have cancelled it
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End what still runs for this client."""
        with self._lock:
            self._stopped = True
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self.loop).result()

    async def _end_tasks(self) -> None:
        """Cancel the client's tasks; threads that wait for them are woken."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _result(future: Future[T]) -> T:
    """Wait for a result. Ctrl-C is noticed within _LOOK_S.

    A signal does not wake a wait if it arrives just before the wait, or in another thread. Raises: what the
    future raises.
    """
    while not future.done():
        with suppress(TimeoutError):  # or the future's own TimeoutError: then it is done
            future.result(_LOOK_S)
    return future.result()


async def make(build: Callable[[], T]) -> T:
    """Build an object on the loop that it belongs to."""
    return build()


_open: weakref.WeakSet[Closing] = weakref.WeakSet()
_shared: Final[list[_Thread]] = []  # at most one, from the first client on
_shared_lock = threading.Lock()


def _shared_thread() -> _Thread:
    with _shared_lock:
        if not _shared:
            _follow_forks()
            _shared.append(_Thread())
        return _shared[0]


@cache
def _follow_forks() -> None:
    """Register the fork handler once per process; children inherit it. Must not run at import."""
    os.register_at_fork(after_in_child=_forget_all)


@atexit.register  # at import: handlers that the application registers later run before, with open clients
def _close_all() -> None:
    for each in list(_open):
        each.close()
    with _shared_lock:
        if _shared:
            _shared.pop().stop()


def _forget_all() -> None:
    """In a child of fork(): the thread remained in the parent. Its clients must fail instead of waiting."""
    global _shared_lock
    for each in list(_open):
        each._closed = True
    _open.clear()
    _shared.clear()
    _shared_lock = threading.Lock()  # another thread may have held the old one


class Closing:
    """Base of synchronous clients: the thread, the asyncio twin, `with`, and closing at exit."""

    _twin: Any
    _what: ClassVar = "client"  # in errors

    def __init__(self) -> None:
        self._thread = LoopThread()
        self._closed = False
        _open.add(self)

    def _build(self, twin: Callable[[], T]) -> T:
        """Build the asyncio twin on the loop. On failure close this object. Raises: what `twin` raises."""
        try:
            self._twin = built = self._thread.call(make(twin))
            return built
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
        """Finish open work, then disconnect. May be called twice."""
        if self._closed:
            return
        self._thread.check_outside()
        self._closed = True
        _open.discard(self)
        try:
            self._thread.call(self._finish())
        finally:
            self._thread.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(self._what)

    def _now(self, call: Callable[[], T]) -> T:
        """Run a non-waiting call on the loop."""
        return self._thread.call(make(call))

    def _until_closed(self, receive: Callable[[], list[T]]) -> Iterator[T]:
        """Yield what `receive` returns, repeatedly, until this is closed."""
        while not self._closed:
            try:
                found = receive()
            except ClosedError:
                return  # closed by another thread
            yield from found

    async def _finish(self) -> None:
        """Finish open work and close the twin. Runs on the loop."""
        await self._twin.close()


def awaited(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a synchronous client that calls this one of its asyncio twin, and waits."""
    name = method.__name__  # the twin may be of a subclass

    @wraps(method)
    def call(client: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        client._check_open()
        found: T = client._thread.call(getattr(client._twin, name)(*arguments, **named))
        return found

    return call


def direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """As `awaited`, for a method of the twin that does not wait. It runs on the loop nevertheless."""
    name = method.__name__

    @wraps(method)
    def call(client: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        client._check_open()
        found: T = client._now(partial(getattr(client._twin, name), *arguments, **named))
        return found

    return call

"""An event loop in a thread of its own, and what every synchronous client has in common: it ends with its loop.

Owns: the loop and its thread, one per object; closed by close(), `with`, or at exit. Safe to use from several threads.
After fork() the child makes its own: the parent's raise ClosedError there.
Invariant: a call that waits in another thread ends when the object is closed, with ClosedError.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from .errors import ClosedError, UsageError
from .event_loop import new_event_loop

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._lock = threading.Lock()
        self._stopped = False  # under the lock: what is submitted before stop() gets its turn on the loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(_end_tasks())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Raises: ClosedError (after stop)."""
        with self._lock:
            if self._stopped:
                coroutine.close()
                raise ClosedError("client")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def post(self, function: Callable[[], None]) -> None:
        """Run a function on the loop, soon. Raises: ClosedError (after stop)."""
        with self._lock:
            if self._stopped:
                raise ClosedError("client")
            self.loop.call_soon_threadsafe(function)

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
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("client") from None  # nobody else knows the future
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End what still runs, then the thread."""
        with self._lock:
            self._stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def _end_tasks() -> None:
    """Cancel all other tasks of the loop: a thread that waits for one hears of it."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def make(build: Callable[[], T]) -> T:
    """Build an object on the loop it will belong to."""
    return build()


_open: weakref.WeakSet[Closing] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.close()


def _forget_all() -> None:
    """In a child of fork(): the threads stayed in the parent. What is used here must say so instead of waiting for them."""
    for each in list(_open):
        each._closed = True
    _open.clear()


os.register_at_fork(after_in_child=_forget_all)


class Closing(ABC):
    """What synchronous clients share: the thread, `with`, and being closed at exit."""

    def __init__(self, name: str) -> None:
        self._thread = LoopThread(name)
        self._closed = False
        _open.add(self)

    def build(self, twin: Callable[[], T]) -> T:
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

    @abstractmethod
    async def _finish(self) -> None:
        """Finish what is open and close what the twin holds; runs on the loop."""

"""Synchronous push consumer: its listener is an ordinary function, called in threads.

Owns: the threads of listeners. All else: the asyncio push consumer.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from ..arguments import a_function, checked, instance_of, none_or, whole
from ..errors import UsageError
from ..message import MessageView
from ..push.listener_calls import WrongListenerError
from ..push.options import PushOptions, RetryLater
from ..push.push_consumer import CLOSE_MS
from ..push.push_consumer import PushConsumer as AsyncPushConsumer
from .loop_thread import Closing, awaited, direct

_USE_ASYNCIO: Final = (
    "Write def, or use PushConsumer of ledgermq.client, whose listeners are coroutine functions"
)


class PushConsumer(Closing):
    """Passes messages to a listener in threads, with up to `options.concurrency` concurrent calls.

    Example:

        def bill(messages: Sequence[MessageView]) -> None:
            for message in messages:
                print(message.queue, message.queue_offset, message.body)

        with PushConsumer("127.0.0.1:9876", group="billing", listener=bill) as consumer:
            consumer.subscribe("orders")
            consumer.run()  # until Ctrl-C
    """

    _what = "consumer"

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        group: str,
        listener: Callable[[list[MessageView]], RetryLater | None],
        on_exhausted: Callable[[MessageView, Exception | None], None] | None = None,
        options: PushOptions | None = None,
        **others: Any,
    ) -> None:
        """`others`: as for the asyncio PushConsumer. `listener`, `on_exhausted`: ordinary functions."""
        given = {"listener": listener} | ({} if on_exhausted is None else {"on_exhausted": on_exhausted})
        for name, function in given.items():
            a_function(name, function)
            if inspect.iscoroutinefunction(function):
                raise UsageError(
                    f"{function!r} is a coroutine function", "Threads cannot await", _USE_ASYNCIO
                )
        none_or(instance_of(PushOptions, "PushOptions"))("options", options)
        options = options or PushOptions()
        super().__init__()
        self._calling = threading.local()  # `now`: whether this thread runs a listener or the hook
        self._closing_lock = threading.Lock()
        self._closer: threading.Thread | None = None
        self._close_ms: int | None = None
        self._listeners = ThreadPoolExecutor(options.concurrency, thread_name_prefix="ledgermq-listener")

        async def call(messages: list[MessageView]) -> Any:
            return await self._in_thread(listener, messages)

        async def give_up(message: MessageView, error: Exception | None) -> Any:
            assert on_exhausted is not None, "only given when there is one"
            return await self._in_thread(on_exhausted, message, error)

        def build() -> AsyncPushConsumer:
            hook = give_up if on_exhausted is not None else None
            return AsyncPushConsumer(
                nameservers, group=group, listener=call, on_exhausted=hook, options=options, **others
            )

        self._build(build)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        call = partial(self._run, function, *arguments)
        return await self._thread.loop.run_in_executor(self._listeners, call)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a user's function in a thread. Raises: what it raises, adapted to the event loop if needed."""
        self._calling.now = True
        try:
            return function(*arguments)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            what = f"the listener or hook raised {error!r}"
            why = "In a thread that ends nothing. The consumer stops, nothing of this call counts as done"
            raise WrongListenerError(what, why, "Call the consumer's close() to end it") from error
        except StopIteration as error:  # futures do not accept it
            raise RuntimeError("StopIteration") from error
        finally:
            self._calling.now = False

    @checked(timeout_ms=whole(0))
    def close(self, timeout_ms: int = CLOSE_MS) -> None:
        """Let running listeners finish, commit final offsets, leave the consumer group, disconnect.

        Listeners that take longer than `timeout_ms` are abandoned; their messages are delivered again. When a
        listener calls this, it returns at once, and the consumer closes after the listener has returned. The
        timeout of the first call counts.
        """
        if self._close_ms is None:
            self._close_ms = timeout_ms
        if getattr(self._calling, "now", False):
            with self._closing_lock:
                if self._closer is None:
                    self._closer = threading.Thread(target=super().close, name="ledgermq-close")
                    self._closer.start()
            return
        if self._closer is not None:
            self._closer.join()
        super().close()

    subscribe = awaited(AsyncPushConsumer.subscribe)

    def run(self) -> None:
        """Wait until the consumer is closed by another thread, a listener, or Ctrl-C in the main thread.

        Ctrl-C calls close(), so it ends a program that waits here without a KeyboardInterrupt. A second
        Ctrl-C, while listeners finish, raises it. Raises: UsageError (no subscription); errors that a retry
        cannot heal.
        """
        try:
            if self._closer is not None:  # a listener was faster than this call
                self._closer.join()
                return
            self._check_open()
            self._thread.call(self._twin.run())
        except KeyboardInterrupt:
            self.close()

    statistics = direct(AsyncPushConsumer.statistics)
    lag = awaited(AsyncPushConsumer.lag)

    async def _finish(self) -> None:
        await self._twin.close(CLOSE_MS if self._close_ms is None else self._close_ms)
        self._listeners.shutdown(wait=False)

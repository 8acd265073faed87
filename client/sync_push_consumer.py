"""The push consumer without asyncio: its listener is an ordinary function, called from threads.

Owns: the threads of listeners. What it is: `push_consumer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .consumer_statistics import ConsumerStatistics
from .errors import ClosedError
from .loop_thread import Closing
from .message import MessageQueue, MessageView
from .push_consumer import PushConsumer as AsyncPushConsumer
from .push_options import PushOptions, RetryLater


class PushConsumer(Closing):
    """Calls a listener with messages, from threads: as many at once as `options.concurrency` says."""

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
        """`others` are those of the asyncio PushConsumer. `listener` and `on_exhausted` are ordinary functions."""
        super().__init__("ledgermq-push-consumer")
        options = options or PushOptions()
        self._listeners = ThreadPoolExecutor(options.concurrency, thread_name_prefix="ledgermq-listener")

        async def call(messages: list[MessageView]) -> RetryLater | None:
            return await self._thread.loop.run_in_executor(self._listeners, listener, messages)

        async def give_up(message: MessageView, error: Exception | None) -> None:
            assert on_exhausted is not None, "only given when there is one"
            await self._thread.loop.run_in_executor(self._listeners, on_exhausted, message, error)

        def build() -> AsyncPushConsumer:
            hook = give_up if on_exhausted is not None else None
            return AsyncPushConsumer(
                nameservers, group=group, listener=call, on_exhausted=hook, options=options, **others
            )

        self._consumer = self.build(build)

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Consume a topic. Raises: as the asyncio PushConsumer's `subscribe`."""
        self._check_open()
        self._thread.call(self._consumer.subscribe(topic, expression))

    def run(self) -> None:
        """Return when another thread closes the consumer. Ctrl-C ends it. Raises: what repeating cannot heal."""
        self._check_open()
        self._thread.call(self._consumer.run())

    def statistics(self) -> ConsumerStatistics:
        """Return figures of this moment."""
        self._check_open()

        async def read() -> ConsumerStatistics:
            return self._consumer.statistics()

        return self._thread.call(read())

    def lag(self) -> dict[MessageQueue, int]:
        """Ask the brokers how many messages of each queue are not finished."""
        self._check_open()
        return self._thread.call(self._consumer.lag())

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("consumer")

    async def _finish(self) -> None:
        await self._consumer.close()
        self._listeners.shutdown(wait=False)

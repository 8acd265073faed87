"""The simple consumer without asyncio, with the words of its asyncio twin. `Consumer` is shorter where one topic is enough.

    with SimpleConsumer("127.0.0.1:9876", group="billing") as consumer:
        consumer.subscribe("orders")
        for message in consumer.receive():
            ...
            consumer.ack(message)

Owns: nothing but the way to its asyncio twin, whose methods it has, with the same errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..consume.simple_consumer import RECEIVE_BATCH
from ..consume.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
from ..consume.statistics import LeaseStatistics
from ..message import LeasedMessage
from .loop_thread import Closing


class SimpleConsumer(Closing):
    """Receives with leases; for what a method does see the asyncio SimpleConsumer.

    Iterate over it, or call `receive`.

    Example:

        with SimpleConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.receive(32, timeout_ms=5_000):
                consumer.ack(message)
    """

    def __init__(
        self, nameservers: str | Sequence[str] = "127.0.0.1:9876", *, group: str, **options: Any
    ) -> None:
        """`options` are those of the asyncio SimpleConsumer."""
        super().__init__()
        self._consumer = self._build(lambda: AsyncSimpleConsumer(nameservers, group=group, **options))

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Receive from a topic; `expression` selects tags: "*", or "a || b"."""
        self._thread.call(self._consumer.subscribe(topic, expression))

    def receive(
        self,
        max_messages: int = RECEIVE_BATCH,
        *,
        invisible_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[LeasedMessage]:
        """Return up to `max_messages`; waits up to `timeout_ms` (None: without end) for the first one."""
        return self._thread.call(
            self._consumer.receive(max_messages, invisible_ms=invisible_ms, timeout_ms=timeout_ms)
        )

    def ack(self, message: LeasedMessage) -> None:
        """The message is done: it is not delivered again."""
        self._thread.call(self._consumer.ack(message))

    def change_invisible(self, message: LeasedMessage, invisible_ms: int) -> None:
        """Move the end of the lease to `invisible_ms` from now; 0 gives the message back at once."""
        self._thread.call(self._consumer.change_invisible(message, invisible_ms))

    def statistics(self) -> dict[str, LeaseStatistics]:
        """Return what this consumer did so far, by broker group."""
        return self._now(self._consumer.statistics)

    def __iter__(self) -> Iterator[LeasedMessage]:
        """Yield messages until close()."""
        return self._until_closed(self.receive)

    async def _finish(self) -> None:
        await self._consumer.close()

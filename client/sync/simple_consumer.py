"""Synchronous simple consumer. For a single topic, `Consumer` is shorter.

    with SimpleConsumer("127.0.0.1:9876", group="billing") as consumer:
        consumer.subscribe("orders")
        for message in consumer.receive():
            ...
            consumer.ack(message)

Owns: only the calls to its asyncio twin, with the same methods and errors.
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
    """Receives with leases. The asyncio SimpleConsumer describes the methods in full.

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
        """`options`: those of the asyncio SimpleConsumer."""
        super().__init__()
        self._consumer = self._build(lambda: AsyncSimpleConsumer(nameservers, group=group, **options))

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Receive from a topic. `expression` selects tags: "*", or "a || b"."""
        self._thread.call(self._consumer.subscribe(topic, expression))

    def receive(
        self,
        max_messages: int = RECEIVE_BATCH,
        *,
        invisible_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> list[LeasedMessage]:
        """Return up to `max_messages`; wait up to `timeout_ms` (None: for ever) for the first one."""
        return self._thread.call(
            self._consumer.receive(max_messages, invisible_ms=invisible_ms, timeout_ms=timeout_ms)
        )

    def ack(self, message: LeasedMessage) -> None:
        """Acknowledge a message: it is not delivered again."""
        self._thread.call(self._consumer.ack(message))

    def change_invisible(self, message: LeasedMessage, invisible_ms: int) -> None:
        """Set the end of the lease to `invisible_ms` from now; 0 returns the message at once."""
        self._thread.call(self._consumer.change_invisible(message, invisible_ms))

    def statistics(self) -> dict[str, LeaseStatistics]:
        """Return the counters since the start, by broker group."""
        return self._now(self._consumer.statistics)

    def __iter__(self) -> Iterator[LeasedMessage]:
        """Yield messages until close()."""
        return self._until_closed(self.receive)

    async def _finish(self) -> None:
        await self._consumer.close()

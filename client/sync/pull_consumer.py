"""Synchronous pull consumer.

    with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
        consumer.subscribe("orders")
        for message in consumer.poll(timeout_ms=1000):
            ...
        consumer.commit()

Owns: only the calls to its asyncio twin, with the same methods and errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..arguments import an_iterable
from ..consume.pull_consumer import COMMIT_TIMEOUT_MS, POLL_BATCH
from ..consume.pull_consumer import PullConsumer as AsyncPullConsumer
from ..consume.read_source import FetchSource
from ..consume.statistics import PullStatistics
from ..message import MessageQueue, MessageView
from .loop_thread import Closing


class PullConsumer(Closing):
    """Reads topics queue by queue. The asyncio PullConsumer describes the methods in full.

    Iterate over it, or call `poll`.

    Example:

        with PullConsumer("127.0.0.1:9876", group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer.poll(256, timeout_ms=1_000):
                print(message.queue, message.queue_offset, message.body)
            consumer.commit()
    """

    def __init__(self, nameservers: str | Sequence[str] = "127.0.0.1:9876", **options: Any) -> None:
        """`options`: those of the asyncio PullConsumer."""
        super().__init__()
        self._consumer = self._build(lambda: AsyncPullConsumer(nameservers, **options))

    # --- queues ---------------------------------------------------------------------------------------------

    def subscribe(self, topic: str) -> None:
        """Read all queues of the topic from the committed offsets, including those of later broker groups."""
        self._thread.call(self._consumer.subscribe(topic))

    def unsubscribe(self, topic: str) -> None:
        """Stop reading all queues of the topic."""
        self._now(lambda: self._consumer.unsubscribe(topic))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic."""
        return self._thread.call(self._consumer.queues(topic))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues, too, each from its committed offset."""
        an_iterable("queues", queues)
        self._thread.call(self._consumer.assign(list(queues)))

    def unassign(self, queues: Iterable[MessageQueue]) -> None:
        """Stop reading these queues."""
        self._now(lambda: self._consumer.unassign(queues))

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that are read."""
        return self._now(lambda: self._consumer.assignment)

    @property
    def missing(self) -> tuple[MessageQueue, ...]:
        """Wanted queues whose broker groups have not answered yet."""
        return self._now(lambda: self._consumer.missing)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop handing out messages of these queues until `resume`."""
        self._now(lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue paused queues at their positions."""
        self._now(lambda: self._consumer.resume(queues))

    @property
    def paused(self) -> tuple[MessageQueue, ...]:
        """The assigned queues that are paused."""
        return self._now(lambda: self._consumer.paused)

    @property
    def sources(self) -> dict[str, FetchSource]:
        """Node that answered last, by broker group."""
        return self._now(lambda: self._consumer.sources)

    def statistics(self) -> PullStatistics:
        """Return current statistics, as of the last answers."""
        return self._now(self._consumer.statistics)

    @property
    def deleted_count(self) -> int:
        """Number of messages that retention deleted before they were read."""
        return self._now(lambda: self._consumer.deleted_count)

    # --- positions and offsets ------------------------------------------------------------------------------

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message to hand out."""
        return self._now(lambda: self._consumer.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue a queue at `offset`."""
        self._now(lambda: self._consumer.seek(queue, offset))

    def seek_to_beginning(self, topic: str) -> None:
        """Continue all assigned queues of the topic at their first stored message."""
        self._thread.call(self._consumer.seek_to_beginning(topic))

    def seek_to_end(self, topic: str) -> None:
        """Continue all assigned queues of the topic after their last message."""
        self._thread.call(self._consumer.seek_to_end(topic))

    def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """Continue all assigned queues of the topic at the first message stored at or after that time."""
        self._thread.call(self._consumer.seek_to_time(topic, timestamp_ms))

    def offsets(self, topic: str) -> list[tuple[MessageQueue, int, int, int]]:
        """Return (queue, committed or -1, begin, end) of every queue of a topic."""
        return self._thread.call(self._consumer.offsets(topic))

    def committed(self, topic: str) -> dict[MessageQueue, int]:
        """Return the committed offset of each queue; -1: none."""
        return self._thread.call(self._consumer.committed(topic))

    def lag(self, topic: str) -> dict[MessageQueue, int]:
        """Return how many messages follow the position of each assigned queue."""
        return self._thread.call(self._consumer.lag(topic))

    def commit(
        self,
        offsets: Mapping[MessageQueue, int] | None = None,
        *,
        reset: bool = False,
        timeout_ms: int = COMMIT_TIMEOUT_MS,
    ) -> None:
        """Commit offsets for the consumer group; default: everything that was handed out."""
        self._thread.call(self._consumer.commit(offsets, reset=reset, timeout_ms=timeout_ms))

    # --- reading --------------------------------------------------------------------------------------------

    def poll(self, max_messages: int = POLL_BATCH, timeout_ms: int | None = None) -> list[MessageView]:
        """Return up to `max_messages`; wait up to `timeout_ms` (None: for ever) for the first one."""
        return self._thread.call(self._consumer.poll(max_messages, timeout_ms))

    def __iter__(self) -> Iterator[MessageView]:
        """Yield messages one by one until the consumer is closed. Each counts as handed out once yielded."""
        return self._until_closed(lambda: self.poll(1))

    async def _finish(self) -> None:
        await self._consumer.close()

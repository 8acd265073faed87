"""One broker group of a broadcast consumer: all its queues, from where this consumer left off.

Owns: which queues there are, and where each begins. Must not: know other consumers.
"""

from __future__ import annotations

import asyncio
import logging
import time

from ..cluster.topic_route import BrokerGroup, TopicInBrokerGroup
from ..consume.intake import OutOfRange
from ..consume.offsets import start_offsets
from ..errors import LedgerMQError, OffsetsFileError
from ..message import MessageQueue
from ..pauses import RETRY_PAUSE_S
from .offsets_file import FileCommits, OffsetsFile
from .owned_queue import OwnedQueue
from .push_group import QueueGroup, Shared

logger = logging.getLogger(__name__)


class BroadcastGroup(QueueGroup):
    """Reads every queue. Call `read` again with every new route."""

    def __init__(self, shared: Shared, group: BrokerGroup, file: OffsetsFile, start: str) -> None:
        """`start`: start position of queues that are not in the file."""
        super().__init__(shared, group)
        self._file = file
        self._start_position = start
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # topics whose route changed while they were being opened
        self._since: dict[str, int] = {}  # topics that could not be opened at once → since when, ms
        self._opened: set[str] = set()  # topics with queues that were read
        self._parts: dict[str, TopicInBrokerGroup] = {}  # readable parts by topic
        interval_ms = shared.options.commit_interval_ms
        self.commits = FileCommits(file, lambda: self.group, interval_ms, self.queues.values)

    def read(self, topic: str, part: TopicInBrokerGroup | None) -> None:
        """Read the queues that the topic has here now. `part` None: it has none."""
        if part is None or not part.readable:
            self._parts.pop(topic, None)
        else:
            self._parts[topic] = part
        part = self._parts.get(topic)
        for owned in list(self.queues.values()):
            is_there = part and part.topic_id == owned.topic_id and owned.queue.queue_id < part.queue_count
            if owned.queue.topic == topic and not is_there:
                self.lose(owned)
        if topic in self._opening:
            self._again.add(topic)
        elif part is not None:
            self._opening[topic] = asyncio.create_task(self._open(topic), name=f"ledgermq-open-{topic}")

    async def close(self) -> None:
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await super().close()

    async def _open(self, topic: str) -> None:
        """Start the queues of a topic that are not read yet."""
        began = time.time_ns() // 1_000_000
        try:
            while (part := self._parts.get(topic)) is not None:
                self._again.discard(topic)
                try:
                    await self._start_missing(topic, part)
                except LedgerMQError as error:
                    if not error.retryable:
                        self.fail(error)
                        return
                    logger.info("topic cannot be read yet topic=%s reason=%s", topic, error)
                    self._since.setdefault(topic, began)
                    await self._shared.refresh([topic])
                    await asyncio.sleep(RETRY_PAUSE_S)
                    continue
                if topic not in self._again:
                    return
        finally:
            del self._opening[topic]  # in the same step: a later change starts another task

    async def _start_missing(self, topic: str, part: TopicInBrokerGroup) -> None:
        ids = [each for each in range(part.queue_count) if (part.topic_id, each) not in self.queues]
        queues = [MessageQueue(topic, self.group.name, each) for each in ids]
        await asyncio.to_thread(self._file.use_broker_group, part.group)
        offsets = {queue: self._file.get(queue, part.topic_id) for queue in queues}
        unknown = [queue for queue, offset in offsets.items() if offset is None]
        if unknown:
            found = await start_offsets(
                self._shared.channels, lambda: self.group, topic, self._start_of(topic)
            )
            resolved = {queue: found.get(queue.queue_id, 0) for queue in unknown}
            # Stored at once: "latest" means the end at the first start, not at every start
            places = [((queue, part.topic_id), offset) for queue, offset in resolved.items()]
            await asyncio.to_thread(self._file.put, places, part.group)
            offsets.update(resolved)
        if self._parts.get(topic) is not part:
            self._again.add(topic)
            return
        for queue, offset in offsets.items():
            self.start(queue, part.topic_id, offset or 0)
        self._opened.add(topic)
        if offsets:
            self.restart()

    def _start_of(self, topic: str) -> str:
        """Return the start position of queues that are not in the file.

        No message that arrived since this consumer wanted the queue is left out.
        """
        if topic in self._opened:
            return "earliest"  # the topic was created again
        if self._start_position == "latest" and topic in self._since:
            return str(self._since[topic])
        return self._start_position

    async def on_ahead(self, ahead: list[OutOfRange[OwnedQueue]]) -> None:
        """The file is ahead of the node. Ask again: that node may no longer lead without knowing it."""
        for topic in sorted({each.assigned.queue.topic for each in ahead}):
            part = self._parts.get(topic)
            try:
                ends = await start_offsets(self._shared.channels, lambda: self.group, topic, "latest")
            except LedgerMQError as error:
                logger.info("end of a topic is not known topic=%s reason=%s", topic, error)
                continue
            for owned in (each.assigned for each in ahead if each.assigned.queue.topic == topic):
                end = ends.get(owned.queue.queue_id, owned.fetch_offset)
                if part is not None and part.topic_id == owned.topic_id and owned.fetch_offset > end:
                    self.intake.remove(owned)
                    self.fail(_too_far(self._file, owned, end))


def _too_far(file: OffsetsFile, owned: OwnedQueue, end: int) -> OffsetsFileError:
    why = (
        f"It says that {owned.queue} was read to offset {owned.fetch_offset}, and the queue ends at {end}: "
        "the end of its log was lost, or this is another cluster"
    )
    return OffsetsFileError(str(file.path), why, "Remove it, then the consumer begins at its start position")

"""One broker group as a broadcast consumer sees it: all its queues, from where this consumer left off.

Owns: which queues there are, where each begins. Must not: know of other consumers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from .errors import LedgerMQError
from .message import MessageQueue
from .offsets_file import FileCommits, OffsetsFile
from .push_group import QueueGroup, Shared
from .start_offsets import start_offsets
from .topic_route import BrokerGroup, TopicInGroup

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.5


class BroadcastGroup(QueueGroup):
    """Reads every queue; `read` again with every new route."""

    def __init__(self, shared: Shared, group: BrokerGroup, file: OffsetsFile, start: str) -> None:
        """`start`: where queues begin that the file does not know."""
        super().__init__(shared, group)
        self._file = file
        self._start_position = start
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # topics whose route changed while they were opened
        self._parts: dict[str, TopicInGroup] = {}
        interval_ms = shared.options.commit_interval_ms
        self.commits = FileCommits(file, group.name, interval_ms, self.queues.values)

    def read(self, topic: str, part: TopicInGroup | None) -> None:
        """Read the queues that a topic has here now; None: it has none."""
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
            task = asyncio.create_task(self._open(topic), name=f"ledgermq-open-{topic}")
            self._opening[topic] = task
            task.add_done_callback(lambda _: self._opening.pop(topic, None))

    async def stop_fetching(self) -> None:
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await super().stop_fetching()

    async def _open(self, topic: str) -> None:
        """Start the queues of a topic that are not read yet."""
        while (part := self._parts.get(topic)) is not None:
            self._again.discard(topic)
            try:
                await self._start_missing(topic, part)
            except LedgerMQError as error:
                if not error.retryable:
                    self.fail(error)
                    return
                logger.info("topic cannot be read yet topic=%s reason=%s", topic, error)
                await self._shared.refresh([topic])
                await asyncio.sleep(_RETRY_S)
                continue
            if topic not in self._again:
                return

    async def _start_missing(self, topic: str, part: TopicInGroup) -> None:
        ids = [each for each in range(part.queue_count) if (part.topic_id, each) not in self.queues]
        queues = [MessageQueue(topic, self.group.name, each) for each in ids]
        offsets = {queue: self._file.get(queue, part.topic_id) for queue in queues}
        unknown = [queue for queue, offset in offsets.items() if offset is None]
        if unknown:
            found = await start_offsets(
                self._shared.channels, lambda: self.group, topic, self._start_position
            )
            resolved = {queue: found.get(queue.queue_id, 0) for queue in unknown}
            # Stored at once: "latest" is where this consumer began, not where it begins again.
            places = [((queue, part.topic_id), offset) for queue, offset in resolved.items()]
            await asyncio.to_thread(self._file.put, places)
            offsets.update(resolved)
        if self._parts.get(topic) is not part:
            self._again.add(topic)
            return
        for queue, offset in offsets.items():
            self.start(queue, part.topic_id, offset or 0)
        if offsets:
            self._fetcher.restart()

"""Look at the brokers: which topics there are, and what each of their queues holds now. Runs on the driver.

Owns: the calls, and which broker groups may be missing in an answer. Must not: decide what to read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from ledgermq.client.errors import LedgerMQError, TopicNotFoundError
from ledgermq.client.message import MessageQueue
from ledgermq.client.sync import Admin
from ledgermq.client.sync.bulk_reader import BulkReader
from ledgermq.proto.route_pb2 import TopicInfo

from ..errors import SparkJobError
from .read_plan import QueueState
from .source_options import SourceOptions
from .stream_offsets import Positions

logger = logging.getLogger(__name__)

#: Topics of the broker itself begin so: retries, dead letters, traces.
SYSTEM_PREFIXES = ("%", "RMQ_SYS_")


def is_system(topic: TopicInfo) -> bool:
    """Tell whether a topic belongs to the brokers, not to users."""
    return topic.name.startswith(SYSTEM_PREFIXES)


class TopicLook:
    """Asks the brokers for one reader. Close it, or use it with `with`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._reader = BulkReader(options.nameservers, cluster=options.cluster, group=options.consumer_group)

    def __enter__(self) -> TopicLook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    def topics(self) -> tuple[str, ...]:
        """Return the topics to read now. Raises: SparkJobError (none matches), LedgerMQError."""
        if self._options.topics:
            return self._options.topics
        with Admin(self._options.nameservers, cluster=self._options.cluster) as admin:
            listed = [topic.name for topic in admin.topics() if not is_system(topic)]
        pattern = re.compile(self._options.pattern)
        found = tuple(name for name in listed if pattern.fullmatch(name))
        if not found:
            raise SparkJobError(
                f'no topic matches subscribePattern="{self._options.pattern}". Topics: '
                f"{', '.join(listed[:20]) or 'none'}"
            )
        return found

    def states(
        self, timestamp: int = 0, *, complete: bool, former: Positions | None = None
    ) -> list[QueueState]:
        """Return every queue of the topics, by topic, broker group and queue.

        `timestamp` (ms): also `time_offset`. `complete`: every broker group must answer. Otherwise one that
        is down is left out, so that a stream goes on with the others.
        `former`: topics of these positions are looked at, too.
        Raises: SparkJobError, LedgerMQError.
        """
        names = dict.fromkeys([*self.topics(), *(topic for topic, _ in former or {})])
        found: list[QueueState] = []
        for topic in names:
            found += self._states_of(topic, timestamp, complete=complete)
        if complete:
            self._refuse_gone(list(names))
        return found

    def _states_of(self, topic: str, timestamp: int, *, complete: bool) -> list[QueueState]:
        route = self._reader.route(topic)
        found: list[QueueState] = []
        last: LedgerMQError | None = None
        for part in route.parts:
            try:
                bounds = self._reader.bounds(topic, part.group.name, timestamp)
            except TopicNotFoundError:
                raise
            except LedgerMQError as error:
                if complete or not error.retryable:
                    raise
                logger.warning("left out for now topic=%s broker_group=%s: %s", topic, part.group.name, error)
                last = error
                continue
            found += [
                QueueState(
                    topic,
                    part.group,
                    part.topic_id,
                    each.queue_id,
                    each.begin_offset,
                    each.end_offset,
                    each.time_offset if each.HasField("time_offset") else None,
                )
                for each in bounds
            ]
        if last is not None and not found:
            raise last
        return found

    def _refuse_gone(self, topics: Sequence[str]) -> None:
        """Raises: LedgerMQError, if a broker group that may hold messages of the topics is down."""
        for gone in self._reader.gone_groups():
            if not gone.topics or set(topics) & set(gone.topics):
                raise gone.error

    def commit(self, positions: Positions) -> None:
        """Commit positions for the consumer group, which shows the lag. Raises: LedgerMQError."""
        self._reader.commit(
            {
                MessageQueue(topic, group, queue_id): offset
                for (topic, group), part in positions.items()
                for queue_id, offset in part.queues.items()
            }
        )

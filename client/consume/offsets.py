"""Offset calls to the brokers: committed offsets of a consumer group, begin and end of queues, commits.

Owns: the calls; broker groups are called independently and concurrently. Must not: keep offsets, read
messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ledgermq.proto import log_pb2 as pb

from ..cluster.calls import call_log_service
from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup
from ..message import MessageQueue
from ..pauses import CALL_TIMEOUT_S

logger = logging.getLogger(__name__)

#: Returns the current broker group for (topic, name).
BrokerGroupLookup = Callable[[str, str], BrokerGroup]


class ConsumerGroupOffsets:
    """Offsets of one consumer group; "": only begin and end of queues."""

    def __init__(self, consumer_group: str, channels: Channels, find: BrokerGroupLookup) -> None:
        self._consumer_group = consumer_group
        self._channels = channels
        self._find = find

    async def query(
        self,
        topic: str,
        broker_group: str,
        *,
        timestamp: int = 0,
        allow_stale: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[MessageQueue, pb.QueueOffset]:
        """Return the offsets of a topic's queues in one broker group. Raises: as call_broker_group.

        With a `timestamp` (ms), each answer includes the first offset at or after it (`time_offset`).
        `allow_stale`: without a leader, accept what a node has applied; committed offsets may have moved on.
        """
        request = pb.QueryOffsetsRequest(
            group=self._consumer_group, topic=topic, timestamp=timestamp, allow_stale=allow_stale
        )
        answer: pb.QueryOffsetsResponse = await call_log_service(
            lambda: self._find(topic, broker_group),
            self._channels,
            lambda stub: stub.QueryOffsets,
            request,
            timeout_s=timeout_s,
        )
        if answer.stale:
            text = "no leader: offsets may have moved on since topic=%s broker_group=%s"
            logger.warning(text, topic, broker_group)
        return {MessageQueue(topic, broker_group, each.queue_id): each for each in answer.offsets}

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, reset: bool, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Commit offsets. A broker group that does not answer does not delay the others.

        Raises: as call_broker_group, for the first failure.
        """
        requests: dict[str, pb.CommitOffsetsRequest] = {}
        for queue, offset in offsets.items():
            request = requests.setdefault(
                queue.broker_group, pb.CommitOffsetsRequest(group=self._consumer_group, reset=reset)
            )
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        # Fix the broker groups now: a retry must not go to another broker group with the same name
        sends = [
            self._commit_in(self._find(request.offsets[0].topic, name), request, timeout_s)
            for name, request in requests.items()
        ]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _commit_in(
        self, meant: BrokerGroup, request: pb.CommitOffsetsRequest, timeout_s: float
    ) -> None:
        def broker_group() -> BrokerGroup:
            now = self._find(request.offsets[0].topic, meant.name)
            return meant if now.is_another(meant) else now

        await call_log_service(
            broker_group, self._channels, lambda stub: stub.CommitOffsets, request, timeout_s=timeout_s
        )


async def start_offsets(
    channels: Channels, broker_group: Callable[[], BrokerGroup], topic: str, start: str
) -> dict[int, int]:
    """Return the start offset of each queue id of a topic. Raises: RefusedError, BrokerUnreachableError."""
    timestamp = int(start) if start.isdecimal() else 0
    request = pb.QueryOffsetsRequest(topic=topic, timestamp=timestamp)
    answer: pb.QueryOffsetsResponse = await call_log_service(
        broker_group, channels, lambda stub: stub.QueryOffsets, request
    )
    offsets = {}
    for each in answer.offsets:
        begin = each.time_offset if timestamp else each.begin_offset
        offsets[each.queue_id] = each.end_offset if start == "latest" else begin
    return offsets

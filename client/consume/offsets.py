"""What the brokers know of offsets: where a consumer group stands, where queues begin and end. Asked and committed here.

Owns: the calls, each broker group by itself, all at once. Must not: keep offsets, read messages.
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

#: Returns a broker group by (topic, name) as it is known now.
GroupLookup = Callable[[str, str], BrokerGroup]


class GroupOffsets:
    """The offsets of one consumer group ("": only those of the queues)."""

    def __init__(self, consumer_group: str, channels: Channels, find: GroupLookup) -> None:
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
        """Return what a broker group knows of the queues of a topic. Raises: as call_broker_group.

        With a `timestamp` (ms) the answer holds the first offset at or after it (`time_offset`). `allow_stale`: without a
        leader, what a node has applied; the committed offsets may have moved on since.
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
        """Store offsets; a broker group that does not answer holds up no other.

        Raises: as call_broker_group, for the first.
        """
        requests: dict[str, pb.CommitOffsetsRequest] = {}
        for queue, offset in offsets.items():
            request = requests.setdefault(
                queue.broker_group, pb.CommitOffsetsRequest(group=self._consumer_group, reset=reset)
            )
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        # The broker groups are those of this moment: a later attempt must not go to another one of the name.
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
        def group() -> BrokerGroup:
            now = self._find(request.offsets[0].topic, meant.name)
            return meant if now.is_another(meant) else now

        await call_log_service(
            group, self._channels, lambda stub: stub.CommitOffsets, request, timeout_s=timeout_s
        )

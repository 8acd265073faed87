"""What the brokers know of offsets: where a consumer group stands, where queues begin and end. Asked and committed here.

Owns: the calls, each broker group by itself, all at once. Must not: keep offsets, read messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from grpc import aio

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc

from .calls import CALL_TIMEOUT_S, call_group
from .channels import Channels
from .message import MessageQueue
from .topic_route import BrokerGroup

#: Returns a broker group by (topic, name) as it is known now.
GroupLookup = Callable[[str, str], BrokerGroup]


class GroupOffsets:
    """The offsets of one consumer group ("": only those of the queues)."""

    def __init__(self, consumer_group: str, channels: Channels, find: GroupLookup) -> None:
        self._consumer_group = consumer_group
        self._channels = channels
        self._find = find

    async def query(self, topic: str, broker_group: str) -> dict[MessageQueue, pb.QueueOffset]:
        """Return what a broker group knows of the queues of a topic. Raises: as call_group."""
        request = pb.QueryOffsetsRequest(group=self._consumer_group, topic=topic)

        async def send(channel: aio.Channel, timeout_s: float) -> pb.QueryOffsetsResponse:
            stub = log_pb2_grpc.LogServiceStub(channel)
            result: pb.QueryOffsetsResponse = await stub.QueryOffsets(request, timeout=timeout_s)
            return result

        answer = await call_group(lambda: self._find(topic, broker_group), self._channels, send)
        return {MessageQueue(topic, broker_group, each.queue_id): each for each in answer.offsets}

    async def commit(
        self, offsets: Mapping[MessageQueue, int], *, reset: bool, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Store offsets; a broker group that does not answer holds up no other. Raises: as call_group, for the first."""
        requests: dict[str, pb.CommitOffsetsRequest] = {}
        for queue, offset in offsets.items():
            request = requests.setdefault(
                queue.broker_group, pb.CommitOffsetsRequest(group=self._consumer_group, reset=reset)
            )
            request.offsets.add(topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        sends = [self._commit_in(name, request, timeout_s) for name, request in requests.items()]
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _commit_in(self, broker_group: str, request: pb.CommitOffsetsRequest, timeout_s: float) -> None:
        def send(channel: aio.Channel, attempt_s: float) -> Any:
            return log_pb2_grpc.LogServiceStub(channel).CommitOffsets(request, timeout=attempt_s)

        topic = request.offsets[0].topic
        await call_group(lambda: self._find(topic, broker_group), self._channels, send, timeout_s=timeout_s)

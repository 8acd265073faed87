"""Where a consumer begins that keeps its own offsets: at the first message, behind the last one, or at a time.

Owns: the questions to the brokers. Groups whose offsets brokers keep begin where the broker says, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc

from ..cluster.calls import call_group
from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup


async def start_offsets(
    channels: Channels, group: Callable[[], BrokerGroup], topic: str, start: str
) -> dict[int, int]:
    """Return the queue offset at which each queue id of a topic is begun. Raises: RefusedError, BrokerUnreachableError."""
    timestamp = int(start) if start.isdecimal() else 0
    request = pb.QueryOffsetsRequest(topic=topic, timestamp=timestamp)

    def query(channel: Any, timeout_s: float) -> Any:
        stub = log_pb2_grpc.LogServiceStub(channel)
        return stub.QueryOffsets(request, timeout=timeout_s, metadata=group().metadata)

    answer: pb.QueryOffsetsResponse = await call_group(group, channels, query)
    offsets = {}
    for each in answer.offsets:
        begin = each.time_offset if timestamp else each.begin_offset
        offsets[each.queue_id] = each.end_offset if start == "latest" else begin
    return offsets

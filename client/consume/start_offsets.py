"""Where a consumer begins that keeps its own offsets: at the first message, behind the last one, or at a time.

Owns: the questions to the brokers. Groups whose offsets brokers keep begin where the broker says, not here.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq.proto import log_pb2 as pb

from ..cluster.calls import call_log_service
from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup


async def start_offsets(
    channels: Channels, group: Callable[[], BrokerGroup], topic: str, start: str
) -> dict[int, int]:
    """Return the queue offset at which each queue id of a topic is begun. Raises: RefusedError, BrokerUnreachableError."""
    timestamp = int(start) if start.isdecimal() else 0
    request = pb.QueryOffsetsRequest(topic=topic, timestamp=timestamp)
    answer: pb.QueryOffsetsResponse = await call_log_service(
        group, channels, lambda stub: stub.QueryOffsets, request
    )
    offsets = {}
    for each in answer.offsets:
        begin = each.time_offset if timestamp else each.begin_offset
        offsets[each.queue_id] = each.end_offset if start == "latest" else begin
    return offsets

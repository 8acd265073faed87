"""Start offsets of a consumer that keeps its own offsets: first message, after the last one, or at a time.

Owns: the calls to the brokers. Consumer groups with offsets at the brokers start where the broker says.
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
    """Return the start offset of each queue id of a topic. Raises: RefusedError, BrokerUnreachableError."""
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

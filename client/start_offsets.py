"""Where a consumer begins that keeps its own offsets: at the first message, behind the last one, or at a time.

Owns: the questions to the brokers. Groups whose offsets brokers keep begin where the broker says, not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto import log_pb2_grpc

from .calls import call_group
from .channels import Channels
from .errors import UsageError
from .topic_route import BrokerGroup

_TIME_DIGITS_MAX: Final = 18  # as brokers read it: it must fit 64 bits


def check_start(start: str) -> None:
    """Check a start position. Raises: UsageError."""
    if start in ("earliest", "latest"):
        return
    if not (
        isinstance(start, str) and start.isascii() and start.isdecimal() and len(start) <= _TIME_DIGITS_MAX
    ):
        step = 'It must be "earliest", "latest" or a time in ms since the epoch, as text: "1767225600000"'
        raise UsageError(f"start is {start!r}", "", step)


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

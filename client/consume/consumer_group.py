"""Consumer group creation: makes sure that a consumer group exists in a broker group.

Owns: the two calls. A new consumer group gets the start position of its first consumer. Must not: change an
existing consumer group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import admin_pb2_grpc

from ..cluster.calls import call_broker_group
from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup
from ..errors import ConsumerGroupNotFoundError

logger = logging.getLogger(__name__)


async def ensure_group(
    channels: Channels, broker_group: Callable[[], BrokerGroup], name: str, start: str
) -> pb.ConsumerGroupInfo:
    """Return the consumer group, and create it if it does not exist.

    Raises: RefusedError, BrokerUnreachableError.
    """
    describe = pb.DescribeGroupRequest(name=name)
    create = pb.CreateGroupRequest(
        group=pb.ConsumerGroupInfo(name=name, start_position=start), if_not_exists=True
    )

    async def ask(channel: Any, timeout_s: float) -> pb.DescribeGroupResponse:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        answer: pb.DescribeGroupResponse = await stub.DescribeGroup(describe, timeout=timeout_s)
        return answer

    def make(channel: Any, timeout_s: float) -> Any:
        return admin_pb2_grpc.AdminServiceStub(channel).CreateGroup(create, timeout=timeout_s)

    try:
        found = (await call_broker_group(broker_group, channels, ask)).group
    except ConsumerGroupNotFoundError:
        await call_broker_group(broker_group, channels, make)
        found = (await call_broker_group(broker_group, channels, ask)).group
    return found

"""Unary callers of `apache.rocketmq.v2.MessagingService/SendMessage`: one message per call, like official
clients.

Owns: the addresses to call, and the requests. Must not: batch, retry, choose queues (the called node does).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

import grpc

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

from ..cluster.channels import Channels, unreachable
from ..cluster.topic_route import BrokerGroup, Node
from ..errors import LedgerMQError, RefusedError
from ..produce.message_ids import process_ids

_TIMEOUT_S = 10.0
# Brokers refuse calls without an id
_METADATA = (("x-mq-client-id", "ledgermq-bench"), ("x-mq-language", "PYTHON"))


def targets(groups: Sequence[BrokerGroup], target: str) -> list[Node]:
    """Return the nodes to call: each broker group's leader, or live followers. Raises: LedgerMQError."""
    found = []
    for group in groups:
        if target == "leader":
            nodes = [group.leader] if group.leader else []
        else:
            nodes = [node for node in group.nodes if node.alive and node.node_id != group.leader_id]
        usable = [node for node in nodes if node.messaging_address]
        if not usable:
            raise LedgerMQError(
                f"broker group {group.name} has no {target} that can be called",
                "It has no leader now" if not group.leader else "No such node is alive with a messaging port",
                "See: ledgermq cluster status",
            )
        found += usable
    return found


class UnaryCallers:
    """Calls that send one message each. `calls` has one per node; callers take them in turn."""

    def __init__(self, groups: Sequence[BrokerGroup], target: str, topic: str, body: bytes) -> None:
        self._channels = Channels()
        self._ids = process_ids()
        self._message = v2.Message(topic=v2.Resource(name=topic), body=body)
        self._message.system_properties.message_type = v2.NORMAL
        self.calls: list[Callable[[], Awaitable[object]]] = [
            functools.partial(self._call, node.messaging_address, self._stub(node))
            for node in targets(groups, target)
        ]

    def _stub(self, node: Node) -> rocketmq_v2_pb2_grpc.MessagingServiceStub:
        return rocketmq_v2_pb2_grpc.MessagingServiceStub(self._channels.get(node.messaging_address))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channels.close()

    async def _call(self, address: str, stub: rocketmq_v2_pb2_grpc.MessagingServiceStub) -> None:
        """Send one message. Raises: BrokerUnreachableError, RefusedError."""
        request = v2.SendMessageRequest(messages=[self._message])
        system, now_ms = request.messages[0].system_properties, time.time_ns() // 1_000_000
        system.message_id = self._ids.next(now_ms)[1]
        system.born_timestamp.FromMilliseconds(now_ms)
        try:
            answer: v2.SendMessageResponse = await stub.SendMessage(
                request, timeout=_TIMEOUT_S, metadata=_METADATA
            )
        except grpc.RpcError as error:
            raise unreachable(address, error) from error
        if answer.status.code != v2.OK:
            raise RefusedError(v2.Code.Name(answer.status.code), answer.status.message)

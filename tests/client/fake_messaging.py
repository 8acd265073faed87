"""A stand-in for a node's messaging port: receives with leases, acknowledgements, faults on demand.

Messages are in memory; a lease ends only when it is given back. Has only what SimpleConsumer depends on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from grpc import aio

from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto import rocketmq_v2_pb2_grpc

from .fakes import FakeCluster


def status(code: v2.Code, message: str = "") -> v2.Status:
    return v2.Status(code=code, message=message)


@dataclass
class FakeMessages:
    """What the group behind all nodes holds for one topic."""

    waiting: deque[bytes] = field(default_factory=deque)
    leased: dict[str, bytes] = field(default_factory=dict)  # receipt handle → body
    acked: list[bytes] = field(default_factory=list)
    groups: Container[str] | None = None  # the consumer groups that exist; None: all
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    next_offset: int = 0
    delivery_attempt: int = 1  # of what is leased next

    def add(self, *bodies: bytes) -> None:
        self.waiting.extend(bodies)
        self.grown.set()

    def lease(self, topic: str) -> v2.Message:
        body = self.waiting.popleft()
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        handle = f"h{offset}"
        self.leased[handle] = body
        message = v2.Message(topic=v2.Resource(name=topic), body=body)
        message.system_properties.message_id = f"01{offset:032X}"
        message.system_properties.receipt_handle = handle
        message.system_properties.queue_offset = offset
        message.system_properties.delivery_attempt = self.delivery_attempt
        return message


class FakeMessaging(rocketmq_v2_pb2_grpc.MessagingServiceServicer):
    """The messaging port of one node."""

    def __init__(self, messages: FakeMessages) -> None:
        self.messages = messages
        self.receives: list[v2.ReceiveMessageRequest] = []
        self.ack_sizes: list[int] = []  # entries of each acknowledgement request
        self.refusals: deque[v2.Status] = deque()  # answers to the next receives
        self.ack_refusals: deque[v2.Status] = deque()  # answers to the next acknowledgement requests
        self.break_after = -1  # break the stream of the next receive behind so many messages
        self.asked = asyncio.Event()  # a receive has begun
        self.acking = asyncio.Event()  # an acknowledgement has begun
        self.hold_acks: asyncio.Event | None = None
        self.creates_topics: FakeCluster | None = None
        self.route_refusal = status(v2.TOPIC_NOT_FOUND)  # the answer when it creates none
        self.sent: list[v2.Message] = []
        self.send_refusals: deque[v2.Status] = deque()  # answers to the next sends
        self.address = ""
        self._server: aio.Server | None = None

    async def start(self) -> Self:
        self._server = aio.server(options=(("grpc.so_reuseport", 0),))
        rocketmq_v2_pb2_grpc.add_MessagingServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def QueryRoute(self, request: v2.QueryRouteRequest, context: Any) -> v2.QueryRouteResponse:
        if self.creates_topics is None:
            return v2.QueryRouteResponse(status=self.route_refusal)
        group = self.creates_topics.groups[0]
        group.create_topic(request.topic.name, 2)
        self.creates_topics.register(group)
        return v2.QueryRouteResponse(status=status(v2.OK))

    async def SendMessage(self, request: v2.SendMessageRequest, context: Any) -> v2.SendMessageResponse:
        if self.send_refusals:
            return v2.SendMessageResponse(status=self.send_refusals.popleft())
        self.sent.extend(request.messages)
        return v2.SendMessageResponse(status=status(v2.OK))

    async def ReceiveMessage(
        self, request: v2.ReceiveMessageRequest, context: Any
    ) -> AsyncIterator[v2.ReceiveMessageResponse]:
        self.receives.append(request)
        self.asked.set()
        known = self.messages.groups
        if self.refusals:
            yield v2.ReceiveMessageResponse(status=self.refusals.popleft())
            return
        if known is not None and request.group.name not in known:
            yield v2.ReceiveMessageResponse(status=status(v2.CONSUMER_GROUP_NOT_FOUND))
            return
        poll_ms = request.long_polling_timeout.ToMilliseconds()
        if not self.messages.waiting and poll_ms:
            self.messages.grown.clear()
            try:
                async with asyncio.timeout(poll_ms / 1000):
                    await self.messages.grown.wait()
            except TimeoutError:
                pass
        found = bool(self.messages.waiting)
        yield v2.ReceiveMessageResponse(status=status(v2.OK if found else v2.MESSAGE_NOT_FOUND))
        sent = 0
        while self.messages.waiting and sent < request.batch_size:
            if sent == self.break_after:
                self.break_after = -1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the node died")
            yield v2.ReceiveMessageResponse(message=self.messages.lease(request.message_queue.topic.name))
            sent += 1

    async def AckMessage(self, request: v2.AckMessageRequest, context: Any) -> v2.AckMessageResponse:
        self.ack_sizes.append(len(request.entries))
        self.acking.set()
        if self.hold_acks is not None:
            await self.hold_acks.wait()
        if self.ack_refusals:
            return v2.AckMessageResponse(status=self.ack_refusals.popleft())
        answer = v2.AckMessageResponse(status=status(v2.OK))
        for entry in request.entries:
            body = self.messages.leased.pop(entry.receipt_handle, None)
            code = v2.OK if body is not None else v2.INVALID_RECEIPT_HANDLE
            answer.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status(code)
            )
            if body is not None:
                self.messages.acked.append(body)
        return answer

    async def ChangeInvisibleDuration(
        self, request: v2.ChangeInvisibleDurationRequest, context: Any
    ) -> v2.ChangeInvisibleDurationResponse:
        body = self.messages.leased.pop(request.receipt_handle, None)
        if body is None:
            return v2.ChangeInvisibleDurationResponse(status=status(v2.INVALID_RECEIPT_HANDLE))
        if request.invisible_duration.ToMilliseconds() == 0:
            self.messages.add(body)
        else:
            self.messages.leased["new-" + request.receipt_handle] = body
        return v2.ChangeInvisibleDurationResponse(
            status=status(v2.OK), receipt_handle="new-" + request.receipt_handle
        )


class MessagingCluster(FakeCluster):
    """A fake cluster whose nodes of the first group have a messaging port each."""

    def __init__(self, *groups: Any, nodes: int = 1) -> None:
        super().__init__(*groups, nodes=nodes)
        self.messages = FakeMessages()
        self.messaging: list[FakeMessaging] = []

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        for node in self.nodes.values():
            port = await FakeMessaging(self.messages).start()
            self.messaging.append(port)
            node.messaging_address = port.address
        for group in self.groups:
            self.register(group)
        return self

    async def __aexit__(self, *reason: object) -> None:
        for port in self.messaging:
            await port.stop()
        await super().__aexit__(*reason)

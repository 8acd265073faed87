"""`apache.rocketmq.v2.MessagingService`: every node answers every call of every official client (D16, D17).

Failures are in-band. Calls that need the leader go there (LeaderCalls); routes, assignments, heartbeats and Telemetry are
served by every node from replicated state and the leader's view of who lives.
Must not: rely on settings or on the client's choice of queue or node.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from ledgermq.proto import rocketmq_v2_pb2 as v2

from ..cluster.calls import Call
from ..cluster.forwarding import ForwardError
from ..service.context import NodeContext
from ..service.ensure import ensure_topic
from ..service.handlers import ENDING, end_call
from ..service.sessions import session_of
from ..state.commands import BrokerGroupMode
from ..state.topics import Topic
from ..wire.route import GroupQueues, assignments, route
from ..wire.status import StatusError, ok, topic_not_found
from ..wire.validation import check_client_id, check_group, check_resource
from .acknowledge import acknowledge, change_invisible, forward_to_dead_letters
from .receive_at_follower import GrantedReceives
from .receive_at_leader import last_frame, receive
from .refusals import IN_BAND, in_band_status
from .send import send

logger = logging.getLogger(__name__)

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
_UNARY: Final = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "QueryAssignment",
    "AckMessage",
    "ChangeInvisibleDuration",
    "NotifyClientTermination",
    "ForwardMessageToDeadLetterQueue",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "EndTransaction",
    "RecallMessage",
    "SyncLiteSubscription",
)


class MessagingService:
    """Make handlers for each port with `handlers(listener)`; "" is the Raft port, where forwarded calls come in."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._granted = GrantedReceives(context)
        self._at_leader: dict[str, Callable[[Any, Call], Awaitable[Any]]] = {
            "SendMessage": lambda request, call: send(context, request, call.remaining),
            "AckMessage": lambda request, call: acknowledge(context, request),
            "ChangeInvisibleDuration": lambda request, call: change_invisible(
                context, request, call.client_id
            ),
            "ForwardMessageToDeadLetterQueue": lambda request, call: forward_to_dead_letters(
                context, request
            ),
        }
        self._from_table: dict[str, Callable[[Any, Topic | None, Call], bytes]] = {
            "QueryRoute": self._route,
            "QueryAssignment": self._assignment,
        }

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return what a server of that listener serves. Requests stay bytes until a node serves them itself."""
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._unary_handler(name, listener)) for name in _UNARY
        }
        methods["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(self._receive_handler(listener))
        methods["PullMessage"] = grpc.unary_stream_rpc_method_handler(self._pull_handler())
        if listener:
            methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
                self._telemetry_handler(listener),
                response_serializer=v2.TelemetryCommand.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def stop(self) -> None:
        """Give back what receives hold that the stop ended."""
        await self._granted.stop()

    # --- unary ----------------------------------------------------------------------------------------------
    def _unary_handler(self, name: str, listener: str) -> Callable[[bytes, Any], Awaitable[bytes]]:
        response = getattr(v2, f"{name}Response")
        answer = self._answerer(name)

        async def serve(request: bytes, context: Any) -> bytes:
            call = Call.of(context, listener)
            try:
                self._note_client(call)
                return await answer(request, call)
            except IN_BAND as error:
                return bytes(response(status=in_band_status(self._context, error)).SerializeToString())
            except ENDING as error:
                await end_call(self._context, context, error)

        return serve

    def _note_client(self, call: Call) -> None:
        """Take a call as a sign of life. Raises: StatusError, TooManyClientsError."""
        check_client_id(call.client_id)
        self._context.sign_of_life(call.client_id, here=not call.forwarded)

    def _answerer(self, name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
        """Return what serves or forwards a call of that name.

        It raises: StatusError, LeaderUnavailableError; on forwarded calls also RaftErrors.
        """
        if name in self._at_leader:
            return self._leader_answerer(name)
        if name in self._from_table:
            return partial(self._from_topics, name)
        if name == "NotifyClientTermination":
            return self._terminated
        return self._heartbeat if name == "Heartbeat" else _not_built(name)

    async def _heartbeat(self, request: bytes, call: Call) -> bytes:
        """A sign of life, which was noted already."""
        return bytes(v2.HeartbeatResponse(status=ok()).SerializeToString())

    def _leader_answerer(self, name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
        serve, kind, method = self._at_leader[name], getattr(v2, f"{name}Request"), f"/{SERVICE}/{name}"

        def answer(request: bytes, call: Call) -> Awaitable[bytes]:
            async def local() -> bytes:
                answer = await serve(_parsed(kind, request), call)
                return answer if type(answer) is bytes else bytes(answer.SerializeToString())

            return self._context.calls.unary(method, request, call, local)

        return answer

    # --- routes ---------------------------------------------------------------------------------------------
    async def _from_topics(self, name: str, request: bytes, call: Call) -> bytes:
        """Answer from the replicated topic table; what is not there (yet) is asked of the leader."""
        build = self._from_table[name]
        message = _parsed(getattr(v2, f"{name}Request"), request)
        wanted = message.topic.name
        check_resource(message.topic)  # each queue of the answer names it
        topic = self._context.replica.state.topics.find(wanted)
        if topic is not None or self._context.others.queues(wanted, call.listener):
            return build(message, topic, call)

        async def local() -> bytes:
            before = self._context.replica.state.topics.find(wanted)
            created = before or await ensure_topic(self._context, wanted)
            if created is None:
                raise topic_not_found(wanted)
            if before is None:
                await self._context.others.create(wanted)
            return build(message, created, call)

        return await self._context.calls.unary(f"/{SERVICE}/{name}", request, call, local)

    def _queues(self, name: str, own: Topic | None, call: Call) -> tuple[list[GroupQueues], int]:
        """Return a topic's queues in all groups, by name, and the type of its messages."""
        context = self._context
        others = context.others.queues(name, call.listener)
        groups = [queues for queues, _ in others]
        if own is not None:
            nodes = sorted(context.members.alive(call.listener), key=lambda node: node[0])
            writable = context.replica.state.mode is BrokerGroupMode.ACTIVE
            groups.append(GroupQueues(context.config.group, own.queue_count, nodes, writable))
        message_type = int(own.message_type) if own is not None else others[0][1]
        return sorted(groups, key=lambda each: each.group), message_type

    def _route(self, message: v2.QueryRouteRequest, topic: Topic | None, call: Call) -> bytes:
        groups, message_type = self._queues(message.topic.name, topic, call)
        queues = route(message.topic, groups, message_type)
        return bytes(v2.QueryRouteResponse(status=ok(), message_queues=queues).SerializeToString())

    def _assignment(self, message: v2.QueryAssignmentRequest, topic: Topic | None, call: Call) -> bytes:
        check_group(message.group.name)
        group = self._context.replica.state.groups.find(message.group.name)
        groups, _ = self._queues(message.topic.name, topic, call)
        found = assignments(message.topic, groups, fifo=group is not None and group.fifo)
        return bytes(v2.QueryAssignmentResponse(status=ok(), assignments=found).SerializeToString())

    # --- clients --------------------------------------------------------------------------------------------
    async def _terminated(self, request: bytes, call: Call) -> bytes:
        """The client says goodbye: its auto-renewed leases end."""

        async def local() -> bytes:
            if self._context.replica.view is not None:
                self._context.replica.view.session_closed(session_of(call.client_id))
                self._context.replica.keep_house()
            return bytes(v2.NotifyClientTerminationResponse(status=ok()).SerializeToString())

        return await self._context.calls.unary(f"/{SERVICE}/NotifyClientTermination", request, call, local)

    def _telemetry_handler(self, listener: str) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
            call = Call.of(context, listener)
            try:
                check_client_id(call.client_id)
            except StatusError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            await self._context.telemetry.serve(requests, context, call.client_id, call.language)

        return serve

    # --- receiving ------------------------------------------------------------------------------------------
    def _receive_handler(self, listener: str) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
        async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
            call = Call.of(context, listener)
            try:
                async with aclosing(self._receive(request, call)) as frames:
                    async for frame in frames:
                        yield frame
            except IN_BAND as error:
                status = in_band_status(self._context, error)
                yield v2.ReceiveMessageResponse(status=status).SerializeToString()
                yield last_frame()
            except (*ENDING, ForwardError) as error:
                await end_call(self._context, context, error)

        return serve

    async def _receive(self, request: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        """A follower gets a grant of the leader, and asks the next leader again when the first is lost."""
        self._note_client(call)
        message = _parsed(v2.ReceiveMessageRequest, request)
        answer = self._context.calls.stream(
            call,
            lambda: receive(self._context, message, call),
            lambda leader, metadata, timeout: self._granted.receive(
                leader, message.message_queue.topic.name, request, metadata, timeout
            ),
        )
        async with aclosing(answer) as frames:
            async for frame in frames:
                yield frame

    def _pull_handler(self) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
        async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
            status = v2.Status(code=v2.NOT_IMPLEMENTED, message="PullMessage is not built yet")
            yield v2.PullMessageResponse(status=status).SerializeToString()

        return serve


def _not_built(name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def refuse(request: bytes, call: Call) -> bytes:
        raise StatusError(v2.NOT_IMPLEMENTED, f"{name} is not built yet")

    return refuse


def _parsed(kind: Any, request: bytes) -> Any:
    """Decode a request. Raises: StatusError."""
    try:
        return kind.FromString(request)
    except DecodeError:
        raise StatusError(v2.BAD_REQUEST, "the request cannot be decoded") from None

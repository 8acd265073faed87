"""`apache.rocketmq.v2.MessagingService`: every node answers every call of every official client (D16, D17).

Failures are in-band. Calls that need the leader are forwarded to it (LeaderCalls). Every node serves routes,
assignments, heartbeats and Telemetry itself, from replicated state and the leader's view of liveness.
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

from ..cluster.lane import ForwardError
from ..cluster.leader_calls import Call, LeaderCalls
from ..service.answers import ENDING, IN_BAND, Refusals
from ..service.sessions import SignsOfLife
from ..service.telemetry import TelemetryStreams
from ..wire.status import StatusError, ok
from ..wire.validation import check_client_id, check_resource
from .acknowledge import Acknowledgements
from .receive_at_follower import GrantedReceives
from .receive_at_leader import LeaderReceives, last_frame
from .send import Sends
from .topic_answers import TopicAnswers

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
    """The service. `handlers(listener)` returns a port's handlers; "" is the Raft port (forwarded calls)."""

    def __init__(
        self,
        calls: LeaderCalls,
        clients: SignsOfLife,
        refusals: Refusals,
        sends: Sends,
        at_leader: LeaderReceives,
        at_follower: GrantedReceives,
        acknowledgements: Acknowledgements,
        topics: TopicAnswers,
        telemetry: TelemetryStreams,
    ) -> None:
        self._calls = calls
        self._clients = clients
        self._refusals = refusals
        self._receives = at_leader
        self._granted_receives = at_follower
        self._topics = topics
        self._telemetry = telemetry
        self._by_leader: dict[str, Callable[[Any, Call], Awaitable[Any]]] = {
            "SendMessage": lambda request, call: sends.send(request, call.remaining),
            "AckMessage": lambda request, call: acknowledgements.acknowledge(request),
            "ChangeInvisibleDuration": lambda request, call: acknowledgements.change_invisible(
                request, call.client_id
            ),
            "ForwardMessageToDeadLetterQueue": lambda request, call: acknowledgements.forward_to_dead_letters(
                request
            ),
        }

    def handlers(self, listener: str) -> grpc.GenericRpcHandler[Any, Any]:
        """Return a listener's handlers. A request is decoded only by the node that serves it."""
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
                return bytes(response(status=self._refusals.status(error)).SerializeToString())
            except ENDING as error:
                await self._refusals.end_call(context, error)

        return serve

    def _note_client(self, call: Call) -> None:
        """Take a call as a sign of life. Raises: StatusError, TooManyClientsError."""
        check_client_id(call.client_id)
        self._clients.heard(call.client_id, here=not call.forwarded)

    def _answerer(self, name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
        """Return the coroutine function that serves or forwards a call of that name.

        It raises: StatusError, LeaderUnavailableError; on forwarded calls also RaftErrors.
        """
        if name in self._by_leader:
            return self._leader_answerer(name)
        if name in ("QueryRoute", "QueryAssignment"):
            return partial(self._from_topics, name)
        if name == "NotifyClientTermination":
            return self._terminated
        return self._heartbeat if name == "Heartbeat" else _not_built(name)

    async def _heartbeat(self, request: bytes, call: Call) -> bytes:
        """Answer only: the call was already noted as a sign of life."""
        return bytes(v2.HeartbeatResponse(status=ok()).SerializeToString())

    def _leader_answerer(self, name: str) -> Callable[[bytes, Call], Awaitable[bytes]]:
        serve, kind, method = self._by_leader[name], getattr(v2, f"{name}Request"), f"/{SERVICE}/{name}"

        def answer(request: bytes, call: Call) -> Awaitable[bytes]:
            async def local() -> bytes:
                answer = await serve(_parsed(kind, request), call)
                return answer if type(answer) is bytes else bytes(answer.SerializeToString())

            return self._calls.unary(method, request, call, local)

        return answer

    async def _from_topics(self, name: str, request: bytes, call: Call) -> bytes:
        """Answer from the replicated topic table; ask the leader about a topic that is not in it (yet)."""
        answer_to = self._topics.route if name == "QueryRoute" else self._topics.assignment
        message = _parsed(getattr(v2, f"{name}Request"), request)
        check_resource(message.topic)  # each queue of the answer repeats it
        known = self._topics.find(message.topic.name, call.listener)
        if known is not None:
            return answer_to(message, known)

        async def local() -> bytes:
            return answer_to(message, await self._topics.ensure(message.topic.name, call.listener))

        return await self._calls.unary(f"/{SERVICE}/{name}", request, call, local)

    # --- clients --------------------------------------------------------------------------------------------
    async def _terminated(self, request: bytes, call: Call) -> bytes:
        """Serve a client's goodbye: its auto-renewed leases end."""

        async def local() -> bytes:
            self._clients.gone(call.client_id)
            return bytes(v2.NotifyClientTerminationResponse(status=ok()).SerializeToString())

        return await self._calls.unary(f"/{SERVICE}/NotifyClientTermination", request, call, local)

    def _telemetry_handler(self, listener: str) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
            call = Call.of(context, listener)
            try:
                check_client_id(call.client_id)
            except StatusError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            await self._telemetry.serve(requests, context, call.client_id, call.language)

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
                status = self._refusals.status(error)
                yield v2.ReceiveMessageResponse(status=status).SerializeToString()
                yield last_frame()
            except (*ENDING, ForwardError) as error:
                await self._refusals.end_call(context, error)

        return serve

    async def _receive(self, request: bytes, call: Call) -> AsyncGenerator[bytes, None]:
        """Yield the frames of the answer: this node's own, or under a grant of the leader.

        A follower asks the next leader when the one that it asked is lost.
        """
        self._note_client(call)
        message = _parsed(v2.ReceiveMessageRequest, request)
        topic = message.message_queue.topic.name
        answer = self._calls.stream(
            call,
            lambda: self._receives.receive(message, call),
            lambda leader, metadata, timeout: self._granted_receives.receive(
                leader, topic, request, metadata, timeout
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

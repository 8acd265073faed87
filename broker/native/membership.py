"""Membership call of LogService: one stream per member of a queue-exclusive consumer group, at the leader.

One half of a stream reads the member's requests. The other writes the member's complete view after each
change; changes that come during a write go into the next one, so nothing queues up.
Owns: requests and answers. Must not: decide which member owns which queue (coordinator.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import grpc.aio

from ledgermq.proto import log_pb2, route_pb2
from ledgermq.raft.errors import NotLeaderError, TransferringError

from ..cluster.known_leader import Leadership
from ..leader.allocation import STRATEGIES
from ..leader.coordination import Coordination, MembershipStream
from ..leader.coordinator import MemberView
from ..refusals import REFUSABLE, RefusedError
from ..replica import Replica
from ..service.answers import Refusals, parsed
from ..service.broker_group_identity import BrokerGroupIdentity
from ..service.creation import Creation
from ..state.commands import JoinConsumerGroup
from ..state.topics import MAX_QUEUES
from ..wire.validation import group_problem, text_problem, topic_problem

SESSION_TIMEOUT_MS: Final = 3_000
SESSION_TIMEOUT_RANGE_MS: Final = (500, 60_000)
RELEASE_MS: Final = 1_000
RELEASE_MS_MAX: Final = 30_000
TOPICS_MAX: Final = 64
#: Most queues that one request releases: more than any member owns.
RELEASED_MAX: Final = TOPICS_MAX * MAX_QUEUES
#: Most characters of a member's id and zone, and of its filter.
NAME_MAX: Final = 255
FILTER_MAX: Final = 4096
#: A stream without its first request after this many seconds is closed.
FIRST_REQUEST_SECONDS: Final = 10.0
#: Seconds that a stream waits for the end of an election, so that its refusal names the leader.
ELECTION_PATIENCE_S: Final = 0.3
_EOF: Final[Any] = vars(grpc.aio)["EOF"]  # missing in the type stubs


class Memberships:
    """Serves the Membership streams of a node."""

    def __init__(
        self,
        coordination: Coordination,
        leadership: Leadership,
        replica: Replica,
        creation: Creation,
        identity: BrokerGroupIdentity,
        refusals: Refusals,
    ) -> None:
        self.coordination = coordination
        self.leadership = leadership
        self.replica = replica
        self.creation = creation
        self.identity = identity
        self._refusals = refusals

    def handler(self, listener: str) -> Callable[[Any, Any], Awaitable[None]]:
        """Return the stream handler for a listener's port."""

        async def serve(_requests: Any, grpc_context: Any) -> None:
            try:
                try:
                    await _Session(self, grpc_context).run()
                except REFUSABLE as error:
                    if isinstance(error, NotLeaderError | TransferringError):
                        await self.leadership.wait_settled(ELECTION_PATIENCE_S)
                    refused = self._refusals.of(error, listener)
                    await grpc_context.write(log_pb2.MembershipResponse(refusal=refused))
            except grpc.aio.InternalError:
                raise asyncio.CancelledError from None  # the client is gone: do not answer or log

        return serve


class _Session:
    """One member's stream, from its first request to its end."""

    def __init__(self, node: Memberships, grpc_context: Any) -> None:
        self._node = node
        self._grpc = grpc_context
        self._join: JoinConsumerGroup

    async def run(self) -> None:
        """Serve until the member leaves or its stream ends. Raises: REFUSABLE."""
        meant = self._node.identity.meant_by(self._grpc)
        meant.check()
        try:
            async with asyncio.timeout(FIRST_REQUEST_SECONDS):
                raw = await self._grpc.read()
        except TimeoutError:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                "the stream said nothing; its first request names consumer group and member",
            ) from None
        if raw is _EOF:
            return
        request = parsed(log_pb2.MembershipRequest, raw)
        check_request(request, first=True)
        if not self._node.leadership.ready:
            await self._node.leadership.wait_settled(ELECTION_PATIENCE_S)
        if not self._node.leadership.ready:
            raise NotLeaderError(None)
        meant.check()
        consumer_group = await self._node.creation.ensure_consumer_group(request.group)
        self._join = join_command(consumer_group.group_id, request)
        orderly = request.orderly if request.HasField("orderly") else None
        stream = await self._node.coordination.open(self._join, orderly)
        listening = asyncio.create_task(self._listen(stream))
        listening.add_done_callback(lambda _: stream.changed.set())
        try:
            self._take(stream, request)
            await self._tell(stream, listening)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            self._node.coordination.close(stream)

    async def _listen(self, stream: MembershipStream) -> None:
        """Process the member's requests. Raises: REFUSABLE."""
        while (raw := await self._grpc.read()) is not _EOF:
            request = parsed(log_pb2.MembershipRequest, raw)
            check_request(request, first=False)
            self._node.coordination.heard(stream)
            if request.topics:
                self._join = changed_subscription(self._join, request)
                await self._node.coordination.subscribe(self._join)
            self._take(stream, request)

    def _take(self, stream: MembershipStream, request: log_pb2.MembershipRequest) -> None:
        if request.released:
            rows = [((each.topic_id, each.queue_id), each.epoch) for each in request.released]
            self._node.coordination.released(stream, rows)
        if request.leave:
            self._node.coordination.leave(stream)

    async def _tell(self, stream: MembershipStream, listening: asyncio.Task[None]) -> None:
        """Send the member its view after each change. Raises: REFUSABLE."""
        told: MemberView | None = None
        while True:
            stream.changed.clear()
            if listening.done() and not stream.leaving:
                return listening.result()  # the member ended its half, or sent an invalid request
            view = self._node.coordination.view(stream)
            if view is None:  # the member left
                await self._grpc.write(log_pb2.MembershipResponse())
                return None
            if view != told:
                await self._grpc.write(self._response(view))
                told = view
            await stream.changed.wait()

    def _response(self, view: MemberView) -> log_pb2.MembershipResponse:
        revoked = set(view.revoked)
        owned = [self._ownership(key, epoch) for key, epoch in view.owned]
        return log_pb2.MembershipResponse(
            owned=owned,
            revoked=[each for each, row in zip(owned, view.owned, strict=True) if row in revoked],
            members=view.members,
            heartbeat_interval_ms=self._join.session_timeout_ms // 3,
            warnings=view.warnings,
        )

    def _ownership(self, key: tuple[int, int], epoch: int) -> log_pb2.QueueOwnership:
        state = self._node.replica.state
        topic = state.topics.get(key[0])
        offset = state.committed_offset(self._join.group_id, *key)
        return log_pb2.QueueOwnership(
            topic=topic.name if topic is not None else "",
            topic_id=key[0],
            queue_id=key[1],
            epoch=epoch,
            offset=state.queue_begin(*key) if offset is None else offset,
        )


def check_request(request: log_pb2.MembershipRequest, *, first: bool) -> None:
    """Check what does not depend on the state. Raises: RefusedError."""
    problem = _problem_of_first(request) if first else ""
    if not problem and len(request.topics) > TOPICS_MAX:
        problem = (
            f"{len(request.topics)} topics; a member subscribes to {TOPICS_MAX} at most. Use several "
            "consumer groups"
        )
    if not problem and len(request.filter) > FILTER_MAX:
        problem = f"the filter has {len(request.filter)} characters; at most {FILTER_MAX} are allowed"
    if not problem and len(request.released) > RELEASED_MAX:
        problem = f"{len(request.released)} queues are released at once; at most {RELEASED_MAX} are allowed"
    problem = problem or text_problem("filter", request.filter)
    problem = problem or next((found for name in request.topics if (found := topic_problem(name))), "")
    if problem:
        raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)


def _problem_of_first(request: log_pb2.MembershipRequest) -> str:
    low, high = SESSION_TIMEOUT_RANGE_MS
    if problem := group_problem(request.group):
        return problem
    if not 0 < len(request.member_id) <= NAME_MAX:
        return f"a member needs an id of 1 to {NAME_MAX} characters; this one has {len(request.member_id)}"
    if not request.topics:
        return "the member subscribes to no topic; name at least one"
    if request.allocation not in ("", *STRATEGIES):
        return f'there is no allocation "{request.allocation}"; use one of {", ".join(STRATEGIES)}'
    if problem := text_problem("member id", request.member_id) or text_problem("zone", request.zone):
        return problem
    if len(request.zone) > NAME_MAX:
        return f"the zone has {len(request.zone)} characters; at most {NAME_MAX} are allowed"
    if request.session_timeout_ms and not low <= request.session_timeout_ms <= high:
        return (
            f"session_timeout_ms is {request.session_timeout_ms}; "
            f"use {low} to {high}, or 0 for {SESSION_TIMEOUT_MS}"
        )
    if request.release_ms > RELEASE_MS_MAX:
        return (
            f"release_ms is {request.release_ms}; "
            f"at most {RELEASE_MS_MAX} are allowed, and 0 means {RELEASE_MS}"
        )
    return ""


def join_command(group_id: int, request: log_pb2.MembershipRequest) -> JoinConsumerGroup:
    """Return the command for a checked first request."""
    return JoinConsumerGroup(
        group_id,
        request.member_id,
        tuple(sorted(set(request.topics))),
        request.allocation,
        request.zone,
        request.filter,
        request.session_timeout_ms or SESSION_TIMEOUT_MS,
        request.release_ms or RELEASE_MS,
    )


def changed_subscription(join: JoinConsumerGroup, request: log_pb2.MembershipRequest) -> JoinConsumerGroup:
    """Return the command for a later request that names topics."""
    return replace(join, topics=tuple(sorted(set(request.topics))), filter=request.filter)

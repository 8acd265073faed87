"""Calls that a follower forwards to the leader over the Raft port: request bytes unchanged, one hop (D17).

Small unary calls share a stream (ForwardLane); larger ones and streams are gRPC calls of their own. Calls
that may wait long have separate lanes, so that any number of them leaves room for a send.
Owns: one channel and the lanes per peer, apart from Raft's own. Must not: inspect requests, or decide what
may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ledgermq.proto.call_metadata import GROUP_ID
from ledgermq.raft.peer_tls import NO_TLS, PeerTls
from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel, Reconnects
from ledgermq.rpc.wire_limits import MAX_MESSAGE

from ..reading.polls import MAX_WAITING, TooManyPollsError
from .lane import MAX_CALLS, METHOD, NOT_LEADER, ForwardError, ForwardLane, given_up, translated

logger = logging.getLogger(__name__)

#: Metadata of a forwarded call: the node that received it, and the listener whose addresses the answer names.
FORWARDED_BY: Final = "x-ledgermq-forwarded-by"
LISTENER: Final = "x-ledgermq-listener"
#: Metadata of a forwarded call that repeats an attempt with unknown outcome. It may only turn "exists
#: already" and "does not exist" into success where the state is as the call wants it, so a forged mark
#: changes nothing.
PERHAPS_DONE: Final = "x-ledgermq-perhaps-done"

#: Most polls under way: as many as a leader lets wait. One more is refused.
MAX_POLLS: Final = MAX_WAITING
#: Lanes for polls; each takes as many calls as the other node reads without pausing.
MAX_POLL_LANES: Final = -(-MAX_POLLS // MAX_CALLS)

_RECONNECTS: Final = Reconnects(first_s=0.05, most_s=0.5, attempt_s=2.0, patience_s=2.0)
_LIMITS: Final = replace(CLIENT_LIMITS, max_message=MAX_MESSAGE)
_PASSED_ON: Final = ("x-mq-", GROUP_ID)

Metadata = Sequence[tuple[str, str]]


class Forwarder:
    """Calls other nodes of the broker group by id. `addresses` are their Raft addresses."""

    def __init__(
        self,
        own_id: str,
        addresses: Mapping[str, str],
        on_unclaimed: Callable[[bytes], None],
        tls: PeerTls = NO_TLS,
    ) -> None:
        """`on_unclaimed` gets the answer to a poll whose caller is gone: the leases in it have no holder."""
        self._own_id = own_id
        self._addresses = dict(addresses)
        self._tls = tls
        self._channels: dict[str, GrpcChannel] = {}
        self._lanes: dict[str, ForwardLane] = {}
        self._poll_lanes: dict[str, list[ForwardLane]] = {}
        self._polls = 0  # under way, at most MAX_POLLS
        self._polls_alone: set[asyncio.Task[bytes]] = set()  # of them, those outside of a lane
        self._on_unclaimed = on_unclaimed
        self._unary_calls: dict[tuple[str, str], Any] = {}
        self._under_way: dict[Any, str] = {}  # node of each call outside of a lane; "": it was given up

    def channel(self, node_id: str) -> GrpcChannel:
        """Return the cached channel to a node."""
        channel = self._channels.get(node_id)
        if channel is None:
            channel = self._channels[node_id] = GrpcChannel(
                self._addresses[node_id],
                tls=self._tls.calling,
                takes_plaintext=self._tls.takes_plaintext,
                limits=_LIMITS,
                reconnects=_RECONNECTS,
            )
        return channel

    def metadata(self, received: Metadata, listener: str) -> Metadata:
        """Return the metadata to forward: the client's own, and the marks of a forwarded call."""
        passed = [
            (key, value) for key, value in received if key.startswith(_PASSED_ON) and isinstance(value, str)
        ]
        return (*passed, (FORWARDED_BY, self._own_id), (LISTENER, listener))

    async def unary(
        self, node_id: str, method: str, request: bytes, metadata: Metadata, timeout: float
    ) -> bytes:
        """Return the answer's bytes. Raises: ForwardError."""
        lane = self._lane(node_id)
        if lane.takes(len(request)):
            return await lane.call(method, request, metadata, timeout)
        return await self._alone(node_id, method, request, metadata, timeout)

    async def poll(
        self, node_id: str, method: str, request: bytes, metadata: Metadata, timeout: float
    ) -> bytes:
        """Make a unary call that may wait long. An answer that comes too late goes to `on_unclaimed`.

        Raises: ForwardError; TooManyPollsError (nothing was sent).
        """
        if self._polls >= MAX_POLLS:
            raise TooManyPollsError
        lane = self._poll_lane(node_id, len(request))
        if lane is None:
            return await self._poll_alone(node_id, method, request, metadata, timeout)
        self._polls += 1
        try:
            return await lane.call(method, request, metadata, timeout)
        finally:
            self._polls -= 1

    def _lane(self, node_id: str) -> ForwardLane:
        lane = self._lanes.get(node_id)
        if lane is None:
            lane = self._lanes[node_id] = self._new_lane(node_id, lambda answer: None)
        return lane

    def _poll_lane(self, node_id: str, size: int) -> ForwardLane | None:
        """Return the first lane with room; None: the request, or that node's version, needs its own call."""
        lanes = self._poll_lanes.setdefault(node_id, [])
        found = next((lane for lane in lanes if lane.takes(size)), None)
        if found is None and len(lanes) < MAX_POLL_LANES:
            lane = self._new_lane(node_id, self._on_unclaimed)
            lanes.append(lane)
            found = lane if lane.takes(size) else None
        return found

    def _new_lane(self, node_id: str, unclaimed: Callable[[bytes], None]) -> ForwardLane:
        channel = self.channel(node_id)
        return ForwardLane(node_id, lambda: channel.stream_stream(METHOD, None, None)(), unclaimed)

    def _every_lane(self) -> Iterator[tuple[str, ForwardLane]]:
        yield from self._lanes.items()
        for node_id, lanes in self._poll_lanes.items():
            for lane in lanes:
                yield node_id, lane

    async def _poll_alone(
        self, node_id: str, method: str, request: bytes, metadata: Metadata, timeout: float
    ) -> bytes:
        """Make a gRPC call that outlives its caller: after a cancel, an answer could arrive unnoticed."""
        task = asyncio.create_task(self._alone(node_id, method, request, metadata, timeout))
        self._polls += 1
        self._polls_alone.add(task)
        task.add_done_callback(self._poll_ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._poll_unclaimed)
            raise

    def _poll_ended(self, task: asyncio.Task[bytes]) -> None:
        self._polls -= 1
        self._polls_alone.discard(task)

    def _poll_unclaimed(self, task: asyncio.Task[bytes]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._on_unclaimed(task.result())

    async def _alone(
        self, node_id: str, method: str, request: bytes, metadata: Metadata, timeout: float
    ) -> bytes:
        """Make a gRPC call of its own."""
        method_call = self._unary_calls.get((node_id, method))
        if method_call is None:
            method_call = self.channel(node_id).unary_unary(method, None, None)
            self._unary_calls[node_id, method] = method_call
        call = method_call(request, timeout=timeout, metadata=metadata)
        with self._watched(call, node_id):
            answer: bytes = await call
        return answer

    async def stream(
        self, node_id: str, method: str, request: bytes, metadata: Metadata, timeout: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of the answer. Raises: ForwardError."""
        call = self.channel(node_id).unary_stream(method, None, None)(
            request, timeout=timeout, metadata=metadata
        )
        with self._watched(call, node_id):
            try:
                async for frame in call:
                    yield frame
            finally:
                call.cancel()

    def leader_changed(self, leader_id: str | None) -> None:
        """Give up calls to nodes other than the leader: a stopped or isolated node answers none of them."""
        if leader_id is None:
            return  # during an election; the same node may win it
        for node_id, lane in self._every_lane():
            lane.try_again()
            if node_id != leader_id:
                lane.end()
        for call, node_id in list(self._under_way.items()):
            if node_id != leader_id:
                self._under_way[call] = ""
                call.cancel()

    @contextmanager
    def _watched(self, call: Any, node_id: str) -> Iterator[None]:
        """Let `leader_changed` give up a call. Raises: ForwardError for the call's own error."""
        self._under_way[call] = node_id
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise translated(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._under_way[call] and not (task is not None and task.cancelling()):
                raise given_up(node_id) from None  # by `leader_changed`, not by the caller
            raise
        finally:
            del self._under_way[call]

    async def close(self) -> None:
        """Cancel polls under way, and close every lane and channel."""
        for _, lane in list(self._every_lane()):
            await lane.close()
        alone = list(self._polls_alone)
        for task in alone:
            task.cancel()
        await asyncio.gather(*alone, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close(None)


def answer_of(node_id: str, kind: Any, raw: bytes) -> Any:
    """Decode another node's answer. Raises: ForwardError (not repeatable: it would come again)."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise ForwardError(
            False, f"what {node_id} answered is no {kind.DESCRIPTOR.name}", repeatable=False
        ) from None


async def refuse_not_leader(context: Any, node_id: str, leader_id: str | None) -> None:
    """End a forwarded call at a node that does not lead. Definite: the caller looks for the leader again."""
    await context.abort(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"{node_id} does not lead (leader: {leader_id or 'unknown'})",
        ((NOT_LEADER, leader_id or ""),),
    )

"""Leader's side of a reset: sends its state to a follower that fell behind retention (ResetService, D8).

Owns: what is offered, and the segments kept for the follower meanwhile. Must not: decide who needs it (the
core does), or read the state into memory. It is sent piece by piece, as fast as the follower's disk takes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb

from ..core.machine import RaftCore
from ..core.outputs import Role
from ..errors import StateTransferError
from ..log.commit_log import CommitLog
from ..transport.hello import Hello, Refusal
from ..types import NO_INDEX, LogIndex, NodeId
from .state_transfer import OutgoingState, StateTransfer

logger = logging.getLogger(__name__)

FORMAT: Final = 1
SERVICE: Final = "ledgermq.v1.ResetService"
#: Limits of a pin.
IDLE_SECONDS: Final = 60.0
TOTAL_SECONDS: Final = 1800.0


@dataclass(slots=True)
class _Pin:
    first_index: LogIndex  # where the follower's log will begin; it and all later entries are kept
    target_index: LogIndex  # once the follower holds this entry it is no longer far behind
    since: float  # start of the first attempt, in monotonic seconds
    touched: float  # last progress, in monotonic seconds; invariant: not before `since`
    match_index: LogIndex = NO_INDEX

    def is_active(self, now: float) -> bool:
        return now - self.touched < IDLE_SECONDS and now - self.since < TOTAL_SECONDS


class SegmentPins:
    """Segments that retention must keep for a while for a follower under reset; at most one pin per follower.

    A pin ends when the follower holds the entries that it needs, when it makes no progress for a minute, or
    after half an hour in total. A follower that keeps trying then gets no pin for the same time again: a node
    that never returns, or never makes progress, must not fill the leader's disk. Pure: time (monotonic
    seconds) and the followers' progress are arguments.
    """

    def __init__(self) -> None:
        self._pins: dict[NodeId, _Pin] = {}

    def pin(self, node: NodeId, first_index: LogIndex, target_index: LogIndex, now: float) -> None:
        """Keep the entries from `first_index` on for a follower. Repeated attempts share one total time."""
        old = self._pins.get(node)
        since = old.since if old is not None and now - old.since < 2 * TOTAL_SECONDS else now
        self._pins[node] = _Pin(first_index, target_index, since, now)

    def touch(self, node: NodeId, now: float) -> None:
        """Note that the follower made progress."""
        pin = self._pins.get(node)
        if pin is not None:
            pin.touched = now

    def clear(self) -> None:
        """Drop all pins."""
        self._pins.clear()

    def holds(self, node: NodeId, now: float) -> bool:
        """Return whether entries are kept for a follower."""
        return node in self._pins and self._pins[node].is_active(now)

    def keep_from(self, match: Mapping[NodeId, LogIndex], now: float) -> LogIndex | None:
        """Return the first entry to keep; None: any may go. `match`: highest entry known on each follower."""
        needed: list[LogIndex] = []
        for node, pin in list(self._pins.items()):
            index = match.get(node, NO_INDEX)
            if index > pin.match_index:
                pin.match_index, pin.touched = index, now
            if index >= pin.target_index:
                del self._pins[node]
            elif pin.is_active(now):
                needed.append(max(pin.first_index, LogIndex(pin.match_index + 1)))
        return min(needed, default=None)


@dataclass(slots=True)
class ResetSender:
    """Usage: serve `handler()` on the Raft port; call `keep_from()` before segments are deleted."""

    core: RaftCore
    log: CommitLog
    transfer: StateTransfer
    admit: Callable[[Hello], Awaitable[Refusal | None]]
    node_id: NodeId
    _pins: SegmentPins = field(default_factory=SegmentPins)
    # running transfer to each follower; a newer one ends it
    _turns: dict[NodeId, object] = field(default_factory=dict)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler for the Raft port."""
        fetch = grpc.unary_stream_rpc_method_handler(self._serve)
        return grpc.method_handlers_generic_handler(SERVICE, {"Fetch": fetch})

    def keep_from(self) -> LogIndex | None:
        """Return the first entry that followers under reset need here; None: retention is free."""
        if self.core.role is not Role.LEADER:
            self._pins.clear()
        match = {p.node_id: p.match_index for p in self.core.progress()}
        return self._pins.keep_from(match, time.monotonic())

    def is_resetting(self, peer: NodeId) -> bool:
        """Return whether a follower is being reset from here, or still fetches the entries after that."""
        self.keep_from()
        return self._pins.holds(peer, time.monotonic())

    async def _serve(self, raw: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            async for frame in self._frames(raw):
                yield frame.SerializeToString()
        except StateTransferError as error:
            logger.warning("reset: not sent node=%s reason=%s", self.node_id, error)
            yield pb.ResetFrame(refusal=str(error)).SerializeToString()

    async def _frames(self, raw: bytes) -> AsyncIterator[pb.ResetFrame]:
        """Yield head, chunks and end. Raises: StateTransferError."""
        request, peer = await self._admitted(raw)
        turn = self._turns[peer] = object()
        first_index = self.log.first_index
        self._pins.pin(peer, first_index, self.core.commit_index, time.monotonic())
        state = await self.transfer.open(first_index)
        try:
            self._check(request.term)
            if self.log.first_index != first_index:
                raise StateTransferError(
                    "retention moved on meanwhile; asking again brings what is there now"
                )
            self._pins.pin(peer, first_index, state.index, time.monotonic())
            logger.warning(
                "reset: sending the state node=%s to=%s base_index=%d state_index=%d bytes=%d",
                self.node_id, peer, first_index - 1, state.index, state.size,
            )  # fmt: skip
            yield pb.ResetFrame(head=self._head(state))
            checksum = offset = 0
            async for piece in state.pieces():
                self._check(request.term)
                if self._turns.get(peer) is not turn:
                    raise StateTransferError("a newer request of the same node took over")
                self._pins.touch(peer, time.monotonic())
                yield pb.ResetFrame(chunk=pb.ResetChunk(offset=offset, crc32c=crc32c(piece), data=piece))
                checksum, offset = crc32c(piece, checksum), offset + len(piece)
            yield pb.ResetFrame(end=pb.ResetEnd(crc32c=checksum))
        finally:
            state.close()
        self._pins.touch(peer, time.monotonic())

    async def _admitted(self, raw: bytes) -> tuple[pb.ResetRequest, NodeId]:
        """Return the request and the peer that sent it. Raises: StateTransferError."""
        try:
            request = pb.ResetRequest.FromString(raw)
            hello = Hello.from_proto(request.hello)
        except (DecodeError, ValueError) as error:
            raise StateTransferError(f"the request cannot be read: {error}") from None
        if request.format != FORMAT:
            raise StateTransferError(
                f"the caller reads format {request.format} of a reset, this node writes {FORMAT}: run the "
                "same LedgerMQ on both"
            )
        refusal = await self.admit(hello)
        if refusal is not None:
            raise StateTransferError(refusal.text)
        self._check(request.term)
        return request, hello.node_id

    def _check(self, term: int) -> None:
        if self.core.role is not Role.LEADER or self.core.term != term:
            raise StateTransferError(f"{self.node_id} does not lead term {term}; the leader offers it anew")

    def _head(self, state: OutgoingState) -> pb.ResetHead:
        base = self.log.base
        return pb.ResetHead(
            format=FORMAT,
            term=self.core.term,
            base_index=base.first_index - 1,
            base_term=base.prev_term,
            base_crc=base.prev_crc,
            base_timestamp=base.prev_timestamp,
            first_offset=base.first_offset,
            state_index=state.index,
            state_size=state.size,
        )

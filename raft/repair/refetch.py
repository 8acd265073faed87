"""Refetch call on the Raft port: committed entries for a member whose copy is damaged, both ends (P18, D6).

Owns: the call, its checks of caller and callee, its limits.   Must not: send uncommitted entries, or trust
received ones: the writer verifies each entry against its own log (log/rewrite.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import grpc
import grpc.aio
from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.proto import raft_pb2 as pb
from ledgermq.rpc.grpc_channel import CLIENT_LIMITS, GrpcChannel
from ledgermq.rpc.wire_limits import MAX_MESSAGE

from ..config import Member, RaftConfig
from ..errors import DamagedLogError, InvalidWireError, RaftError
from ..log.commit_log import CommitLog
from ..log.wire_batch import check_wire
from ..types import LogIndex, NodeId

logger = logging.getLogger(__name__)

VERSION: Final = 1
#: Maximum of log bytes in one answer. A single entry may be larger.
CHUNK_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 10.0
_METHOD: Final = "/ledgermq.v1.RaftService/Refetch"
_CONCURRENT: Final = 2
_PROGRESS_LIFE_S: Final = 10.0
_LIMITS: Final = replace(CLIENT_LIMITS, max_message=MAX_MESSAGE)


@dataclass(frozen=True, slots=True)
class Offer:
    """Entries that a peer has: first_index..commit_index. `leader_id` empty: it knows of no leader."""

    peer: NodeId
    first_index: LogIndex  # first retained entry
    commit_index: LogIndex  # later entries are not committed there
    leader_id: str
    entries: bytes = b""  # wire form; verified by the writer


class RefetchError(RaftError):
    """A peer sent no entries: it is unreachable, refused, or sent damaged bytes. Ask another one."""

    retryable = True


@dataclass(slots=True)
class RefetchSource:
    """Data that a running node answers from."""

    log: CommitLog
    commit_index: Callable[[], LogIndex]  # no later entry is sent
    leader_id: Callable[[], NodeId | None]
    group_id: Callable[[], int]
    on_damage: Callable[[DamagedLogError], object]  # called with damage found while reading for a peer


class RefetchService:
    """Server side. `source` is set once the node's log is open."""

    def __init__(self, config: RaftConfig) -> None:
        self.source: RefetchSource | None = None
        self._config = config
        self._slots = asyncio.Semaphore(_CONCURRENT)
        self._repairs: dict[str, tuple[float, pb.RepairProgress]] = {}

    def repairing(self, node: NodeId) -> str:
        """Return what a peer reported about its repair a moment ago; "": nothing."""
        when, told = self._repairs.get(node, (0.0, None))
        fresh = told is not None and time.monotonic() - when < _PROGRESS_LIFE_S
        return repair_text(told) if told is not None and fresh else ""

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler for the Raft port."""

        async def serve(raw: bytes, context: Any) -> pb.RefetchReply:
            try:  # not in a deserializer: gRPC logs a traceback of its exceptions
                request = pb.RefetchRequest.FromString(raw)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no RefetchRequest")
            async with self._slots:
                return await self.answer(request)

        method = grpc.unary_unary_rpc_method_handler(
            serve, response_serializer=pb.RefetchReply.SerializeToString
        )
        return grpc.method_handlers_generic_handler("ledgermq.v1.RaftService", {"Refetch": method})

    async def answer(self, request: pb.RefetchRequest) -> pb.RefetchReply:
        """Answer one request from the committed entries."""
        refusal = self._refusal_of(request)
        source = self.source
        if refusal or source is None:
            return pb.RefetchReply(version=VERSION, refusal=refusal)
        if request.HasField("repair"):
            self._repairs[request.node_id] = (time.monotonic(), request.repair)
        commit = source.commit_index()
        reply = pb.RefetchReply(
            version=VERSION,
            first_index=source.log.first_index,
            commit_index=commit,
            leader_id=source.leader_id() or "",
        )
        first = LogIndex(request.first_index)
        if request.max_bytes and source.log.first_index <= first <= commit:
            try:
                size = min(request.max_bytes, CHUNK_BYTES)
                entries = await source.log.read_wire(first, commit, size)
                await self._verify(entries, first, source.log)
            except DamagedLogError as error:
                source.on_damage(error)
                return pb.RefetchReply(version=VERSION, refusal=f"its own copy is damaged: {error.reason}")
            except RaftError as error:
                return pb.RefetchReply(version=VERSION, refusal=str(error))
            reply.entries, reply.entries_crc = entries, crc32c(entries)
        return reply

    async def _verify(self, entries: bytes, first: LogIndex, log: CommitLog) -> None:
        """Verify the bytes that were read.

        The receiver would notice damage too, but only this node can repair it here.

        Raises: DamagedLogError.
        """
        try:
            await asyncio.to_thread(check_wire, entries, self._config.segment_size)
        except InvalidWireError:
            log.verify(entries, first)  # names the entry

    def _refusal_of(self, request: pb.RefetchRequest) -> str:
        config, source = self._config, self.source
        if source is None:
            return f"{config.node_id} is starting"
        mine = source.group_id()
        if request.version != VERSION:
            return f"{config.node_id} repairs with protocol version {VERSION}, not {request.version}"
        if (request.cluster_id, request.group) != (config.cluster_id, config.group):
            return f"{config.node_id} belongs to cluster {config.cluster_id}, broker group {config.group}"
        if request.group_id != mine or not mine:
            return (
                f"{config.node_id} is not known to belong to the same broker group (broker group ids "
                f"{request.group_id:016x} and {mine:016x}, 0: not known); another cluster may have the same "
                "names"
            )
        if request.to_node_id != config.node_id:
            return f"this is {config.node_id}, not {request.to_node_id}"
        if request.node_id not in {peer.node_id for peer in config.peers}:
            return f"{request.node_id} is no member of broker group {config.group} for {config.node_id}"
        if request.segment_size != config.segment_size:
            return f"{config.node_id} has segments of {config.segment_size} bytes"
        return ""


@dataclass(slots=True)
class RefetchClient:
    """Client side: one channel per peer, opened on first use."""

    config: RaftConfig
    group_id: int  # names may repeat, and another group's entries must never be written here
    _channels: dict[NodeId, GrpcChannel] = field(default_factory=dict)

    async def ask(self, peer: Member, first: LogIndex, max_bytes: int, repair: pb.RepairProgress) -> Offer:
        """Ask one peer for committed entries from `first` on. Raises: RefetchError."""
        config = self.config
        request = pb.RefetchRequest(
            version=VERSION,
            cluster_id=config.cluster_id,
            group=config.group,
            group_id=self.group_id,
            node_id=config.node_id,
            to_node_id=peer.node_id,
            segment_size=config.segment_size,
            first_index=first,
            max_bytes=max_bytes,
            repair=repair,
        )
        reply = await self._call(peer, request)
        if reply.refusal or reply.version != VERSION:
            raise RefetchError(f"{peer.node_id}: {reply.refusal or 'it speaks another version'}")
        if crc32c(reply.entries) != reply.entries_crc:
            raise RefetchError(f"{peer.node_id}: its answer was damaged on the way")
        return Offer(
            peer.node_id,
            LogIndex(reply.first_index),
            LogIndex(reply.commit_index),
            reply.leader_id,
            reply.entries,
        )

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()

    async def _call(self, peer: Member, request: pb.RefetchRequest) -> pb.RefetchReply:
        channel = self._channels.get(peer.node_id)
        if channel is None:
            tls = self.config.tls
            channel = self._channels[peer.node_id] = GrpcChannel(
                peer.address, tls=tls.calling, takes_plaintext=tls.takes_plaintext, limits=_LIMITS
            )
        call = channel.unary_unary(
            _METHOD,
            request_serializer=pb.RefetchRequest.SerializeToString,
            response_deserializer=pb.RefetchReply.FromString,
        )
        try:
            reply: pb.RefetchReply = await call(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            # A channel in reconnect backoff would delay the next attempt.
            await self._channels.pop(peer.node_id).close(None)
            raise RefetchError(f"{peer.node_id}: not reached ({error.code().name.lower()})") from None
        return reply


def repair_text(told: pb.RepairProgress) -> str:
    """Return the text shown for a repair: range, progress, what it waits for."""
    to = f"{told.to_offset:,}" if told.to_offset else "…"
    text = f"repairing {told.from_offset:,}-{to}, {told.repaired_bytes:,} bytes done"
    return f"{text}, waits for {told.waiting_for}" if told.waiting_for else text

"""Dump call: chooses the log position on the event loop, then streams files (broker/backup/stream.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.errors import StateTransferError
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex

from ..backup.stream import (
    DumpError,
    DumpOvertakenError,
    QueueSource,
    StateSource,
    dump_stream,
    live_point,
    range_stream,
)
from ..checkpoint.layout import Snapshot, take_snapshot
from ..checkpoint.transfer import BrokerStateTransfer, OutgoingCheckpoint
from ..config import BrokerConfig
from ..refusals import RefusedError
from ..replica import Replica
from ..state.consume_queue import BLOCK_UNITS, UNIT_SIZE, ColdRead, ConsumeQueue

logger = logging.getLogger(__name__)

#: Limits of one call for parts of the log.
MAX_RANGES: Final = 65_536
MAX_RANGE_BYTES: Final = 1 << 30
_SIGN_OF_LIFE_S: Final = 5.0  # a caller gives a node up that sends nothing for 30 s


@dataclass(eq=False, repr=False)
class Dumps:
    """Serves dumps of this node."""

    _config: BrokerConfig
    _raft: RaftNode
    _replica: Replica
    _transfer: BrokerStateTransfer

    async def chunks(self, request: admin_pb2.DumpRequest) -> AsyncIterator[admin_pb2.DumpChunk]:
        """Yield this node's dump, its digest dump, or parts of its log. Raises: RefusedError."""
        if request.ranges:
            stream = self._ranges(request)
        elif request.digests:
            stream = self._digests(reread=request.reread)
        else:
            stream = self._whole(request)
        try:
            async for chunk in stream:
                yield chunk
        except (DumpError, OSError) as error:
            raise RefusedError(
                route_pb2.INTERNAL,
                f"{self._config.node_id}: the dump failed: {error}",
                retryable=isinstance(error, DumpOvertakenError),
            ) from None

    async def _whole(self, request: admin_pb2.DumpRequest) -> AsyncIterator[admin_pb2.DumpChunk]:
        self._replica.require_whole_state()
        state = await self._state()
        try:
            point = await live_point(
                self._raft.log,
                self._raft.status(),
                voters=tuple(self._config.voters),
                log_folder=self._log_folder,
                queues=None if request.without_consume_queues else self._sources(),
                state=None if state is None else StateSource(state.index, state.size, state.read),
                snapshot=self._snapshot(),
            )
            if state is not None and state.log_start < point.base.first_index:
                raise DumpOvertakenError(
                    "retention deleted what the state counts on while the dump was taken. Run the dump again."
                )
            async for chunk in dump_stream(point):
                yield chunk
        finally:
            if state is not None:
                state.close()

    def _snapshot(self) -> Snapshot | None:
        """Return the state; None while its queues are made again: it lacks checksums of their units."""
        return None if self._replica.rebuild is not None else take_snapshot(self._replica.state)

    @property
    def _log_folder(self) -> Path:
        return self._config.data_dir / "commitlog"

    async def _digests(self, *, reread: bool) -> AsyncIterator[admin_pb2.DumpChunk]:
        """Yield digests, and the bytes behind them, after making those that are missing, or all (`reread`).

        Chunks without data keep the caller waiting meanwhile.
        """
        yield admin_pb2.DumpChunk()
        making = asyncio.ensure_future(self._raft.care.digests(lambda count: None, reread=reread))
        try:
            while not (await asyncio.wait([making], timeout=_SIGN_OF_LIFE_S))[0]:
                yield admin_pb2.DumpChunk()
        finally:
            making.cancel()
            await asyncio.wait([making])
        point = await live_point(
            self._raft.log, self._raft.status(), voters=tuple(self._config.voters),
            log_folder=self._log_folder, queues=None, digests=making.result(), snapshot=self._snapshot(),
        )  # fmt: skip
        async for chunk in dump_stream(point):
            yield chunk

    async def _ranges(self, request: admin_pb2.DumpRequest) -> AsyncIterator[admin_pb2.DumpChunk]:
        """Yield parts of the committed log. Raises: RefusedError."""
        log, status = self._raft.log, self._raft.status()
        ranges = [(each.begin, each.end) for each in request.ranges]
        if len(ranges) > MAX_RANGES or sum(hi - lo for lo, hi in ranges) > MAX_RANGE_BYTES:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"{len(ranges):,} parts of the log are too much for one call: at most {MAX_RANGES:,} parts, "
                f"{MAX_RANGE_BYTES:,} bytes",
            )
        settled = min(status.commit_index, status.durable_index)
        end = log.end_of(LogIndex(settled)) if settled >= log.first_index else log.first_offset
        for lo, hi in ranges:
            if (
                not log.first_offset <= lo < hi <= end
                or (hi - 1) // log.segment_size != lo // log.segment_size
            ):
                raise RefusedError(
                    route_pb2.OFFSET_OUT_OF_RANGE if lo < log.first_offset else route_pb2.INVALID_ARGUMENT,
                    f"{self._config.node_id} has no committed log bytes {lo:,} to {hi:,} in one segment: its "
                    f"log holds {log.first_offset:,} to {end:,}. Retention may have deleted them: take the "
                    "digests again",
                )
        yield admin_pb2.DumpChunk()
        async for chunk in range_stream(self._log_folder, log.segment_size, ranges):
            yield chunk

    async def _state(self) -> OutgoingCheckpoint | None:
        """Return the state that a log with a deleted beginning needs.

        None for a whole log, and when the state cannot be written just now. Without the state, a dump
        can be verified and its messages be read; `ledgermq dump` reports that it cannot be restored.
        """
        first_index = self._raft.log.first_index
        if first_index == 1:
            return None
        try:
            return await self._transfer.open(first_index)
        except StateTransferError as error:
            logger.warning("dump without the state node=%s reason=%s", self._config.node_id, error)
            return None

    def _sources(self) -> list[QueueSource]:
        """Return the sources of all queues, with their current bounds."""
        state, found = self._replica.state, []
        for topic in state.topics:
            for queue in state.queues_of(topic):
                reader = _reader(queue, self._replica.load_units)
                found.append(
                    QueueSource(topic.name, topic.topic_id, queue.key[1], queue.begin, queue.end, reader)
                )
        return found


def _reader(queue: ConsumeQueue, load: Callable[[ColdRead], bytes]) -> Callable[[int, int], bytes]:
    """Return a function that reads a queue from any thread: its files, and a copy of its current tail."""
    key, folder, written = queue.key, queue.folder, queue.written
    tail = queue.tail(written, queue.end).tobytes()

    def read(first: int, behind: int) -> bytes:
        parts = []
        unit = first
        while unit < min(behind, written):
            block = unit // BLOCK_UNITS
            stop = min(behind, written, (block + 1) * BLOCK_UNITS)
            raw = load(ColdRead(key, folder, block))
            start = block * BLOCK_UNITS
            parts.append(raw[(unit - start) * UNIT_SIZE : (stop - start) * UNIT_SIZE])
            unit = stop
        if unit < behind:
            parts.append(tail[(unit - written) * UNIT_SIZE : (behind - written) * UNIT_SIZE])
        return b"".join(parts)

    return read

"""Retention: deletes whole segments of the log that expired, refuses producing when the disk is nearly full (D8).

The leader decides and proposes where the log begins; every node hides what is below when it applies that, and unlinks it.
Never past this node's checkpoint: `floor` says how far. Owns: the timers, and the refusal with its hysteresis.
Must not: stop reads, acknowledgements or administration.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.errors import RaftError
from ledgermq.raft.files import DiskUse
from ledgermq.raft.segment import SegmentInfo

from .consume_queue import ColdRead
from .context import NodeContext
from .effects import Effects
from .produce import TooManyRequestsError
from .refusals import RefusedError

logger = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 1.0  # seconds between two looks at the disk
#: Producing is refused above the first share of the disk, and taken again below the second.
REFUSE_ABOVE: Final = 0.90
TAKE_BELOW: Final = 0.88
_HOUR_MS: Final = 3_600_000


class DiskWatch:
    """Decides when producing is refused. Pure: shares and sizes come in, a sentence comes out."""

    def __init__(self, node_id: str, folder: str) -> None:
        self._node_id = node_id
        self._folder = folder
        self.refusal = ""

    def look(self, used: int, limit: int, full: bool) -> bool:
        """Note the use in bytes of `limit` bytes, and whether a write met a full disk; return whether it changed."""
        share = used / limit if limit else 0.0
        refuse = full or share > (TAKE_BELOW if self.refusal else REFUSE_ABOVE)
        if not refuse:
            changed, self.refusal = bool(self.refusal), ""
            return changed
        changed = not self.refusal
        self.refusal = (
            f"{self._node_id} refuses messages: its disk is {'full' if full else f'{share:.0%} used'} "
            f"({used:,} of {limit:,} bytes at {self._folder}; the limit is {REFUSE_ABOVE:.0%}). "
            "Delete expired segments: ledgermq admin clean"
        )
        return changed


def expired_before(segments: list[SegmentInfo], now: int, keep_ms: int, floor: int) -> SegmentInfo | None:
    """Return the first segment to keep: those before it are older than `keep_ms` and wholly below index `floor`.

    None: nothing may go. The last segment always stays.
    """
    keep = 0
    for segment in segments[:-1]:
        if now - segment.last_timestamp < keep_ms or segment.last_index >= floor:
            break
        keep += 1
    return segments[keep] if keep else None


def next_clean(now: datetime, clean_at: str) -> datetime:
    """Return when the daily expiry runs next."""
    hour, minute = clean_at.split(":")
    today = now.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    return today if today > now else today + timedelta(days=1)


class Retention:
    """Runs the daily expiry and the disk watch of one node, and the Clean call. Use: `start`, `stop`."""

    def __init__(
        self,
        context: NodeContext,
        *,
        disk_use: Callable[[], DiskUse],
        checkpoint_now: Callable[[], Awaitable[int]],
        floor: Callable[[], int],
        on_change: Callable[[], None],
    ) -> None:
        self._context = context
        self._disk_use = disk_use
        self._checkpoint_now = checkpoint_now
        self._floor = floor
        self._on_change = on_change
        self._watch = DiskWatch(context.config.node_id, str(context.config.data_dir))
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted_start = 0
        self._again: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._context.replica.observe(self._on_effects)
        self._wanted_start = self._context.replica.state.log_start_index
        self._tasks = [asyncio.create_task(self._watch_disk()), asyncio.create_task(self._daily())]

    async def stop(self) -> None:
        """Stop watching."""
        tasks = [*self._tasks, *([self._again] if self._again is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the disk -------------------------------------------------------------------------------------------
    async def _watch_disk(self) -> None:
        while True:
            self.look()
            self._unlink()
            await asyncio.sleep(CHECK_INTERVAL)

    def look(self) -> None:
        """Look at the disk once and refuse or take messages accordingly."""
        use, config, raft = self._disk_use(), self._context.config, self._context.raft
        used, limit = use.total - use.available, use.total
        if config.max_store_bytes:
            used, limit = raft.log.end_offset - raft.log.first_offset, config.max_store_bytes
        if self._watch.look(used, limit, raft.storage.statistics().disk_full):
            self._context.replica.produce_refusal = self._watch.refusal
            if self._watch.refusal:
                logger.error("produce refused: %s", self._watch.refusal)
            else:
                logger.info("produce taken again node=%s", config.node_id)
            self._on_change()

    # --- expiry ---------------------------------------------------------------------------------------------
    async def _daily(self) -> None:
        while True:
            now = datetime.now()
            await asyncio.sleep((next_clean(now, self._context.config.clean_at) - now).total_seconds())
            if not self._context.leadership.ready:
                continue
            try:
                answer = await self.clean(self._context, admin_pb2.CleanRequest())
            except (RaftError, RefusedError, TooManyRequestsError) as error:
                logger.warning("daily expiry failed, the next is tomorrow reason=%s", error)
            else:
                logger.info("daily expiry segments=%d bytes=%d", len(answer.segments), answer.bytes)

    async def clean(self, context: NodeContext, request: admin_pb2.CleanRequest) -> admin_pb2.CleanResponse:
        """Delete (or name) expired segments, on the leader. Raises: RefusedError, and what the pipeline raises."""
        if request.older_than_ms < 0:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, "an age cannot be negative")
        log = context.raft.log
        segments = list(log.segments())
        keep_ms = request.older_than_ms or int(context.config.retention_hours * _HOUR_MS)
        if request.even_unexpired:
            keep_ms = 0
        applied = context.raft.applied_index
        reached = applied if request.dry_run else await self._checkpoint_now()
        if reached < applied:
            raise RefusedError(
                route_pb2.DISK_FULL,
                f"{context.config.node_id} deleted nothing: the checkpoint that must come first could not be written to "
                f"{context.config.data_dir / 'checkpoint'} (its log says why). Free some of that disk by other means, "
                "then repeat: ledgermq admin clean",
                retryable=True,
            )
        first_kept = expired_before(segments, context.raft.next_timestamp(), keep_ms, reached + 1)
        if first_kept is None:
            return admin_pb2.CleanResponse(log_start_index=context.replica.state.log_start_index)
        gone = [segment for segment in segments if segment.start_offset < first_kept.start_offset]
        answer = admin_pb2.CleanResponse(
            segments=[f"{segment.start_offset:020d}" for segment in gone],
            bytes=sum(segment.end_offset - segment.start_offset for segment in gone),
            log_start_index=first_kept.first_index,
        )
        if not request.dry_run:
            await self._propose_start(first_kept)
            self._again = asyncio.create_task(self._propose_again(first_kept))
        return answer

    async def _propose_start(self, first_kept: SegmentInfo) -> None:
        """Replicate that the log begins at a segment."""
        context, state = self._context, self._context.replica.state
        while isinstance(
            command := state.log_start_command(first_kept.first_index, first_kept.start_offset), ColdRead
        ):
            await context.replica.warm((command,))
        await context.pipeline.run(command)

    async def _propose_again(self, first_kept: SegmentInfo) -> None:
        """Say the same a moment later: nodes write a checkpoint each time, and segments below both may go."""
        await asyncio.sleep(3 * CHECK_INTERVAL)
        try:
            await self._propose_start(first_kept)
        except (RaftError, TooManyRequestsError) as error:
            logger.info("segments go with the next checkpoints reason=%s", error)

    def _on_effects(self, effects: Effects) -> None:
        if effects.log_start is not None:
            self._wanted_start = max(self._wanted_start, effects.log_start.index)

    def _unlink(self) -> None:
        """Unlink segments below the replicated start, as far as this node's checkpoint allows."""
        raft = self._context.raft
        below = min(self._wanted_start, self._floor())
        if below > raft.first_index:
            started = time.monotonic()
            count = raft.delete_segments_before(below)  # type: ignore[arg-type]
            if count:
                logger.info(
                    "segments deleted count=%d below=%d seconds=%.3f",
                    count,
                    below,
                    time.monotonic() - started,
                )

"""Retention of one node: deletes segments of the log, and refuses writes when the disk is nearly full (D8).

The leader decides on the start of the log and proposes it. When a node applies that, it hides everything
below and unlinks the segments at a limited rate: never beyond its checkpoint (`floor`), and never before its
kept checkpoints record that start. Otherwise a node that restarts from an older checkpoint could not reset a
follower to its state. The rules are in `policy.py`.
Owns: the timers, the refusals, the Clean call.   Must not: stop reads or commands that free space; wait for a
disk (the log unlinks in its own thread, after its new start is durable, and completes an interrupted deletion
at start).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.disk.files import DiskUse
from ledgermq.raft.errors import RaftError
from ledgermq.raft.log.segment import SegmentInfo
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex

from ..cluster.known_leader import Leadership
from ..config import BrokerConfig
from ..errors import BrokerError
from ..leader.pipeline import AppendPipeline, TooManyRequestsError
from ..metrics import Metrics
from ..refusals import RefusedError
from ..replica import Replica
from ..service.disk_steps import (
    DiskStep,
    DiskWatch,
    RetentionView,
    Use,
    bytes_to_free,
    hindering_share,
    limits_of,
    next_step,
)
from ..state.commands import LogStart, position_rows
from ..state.consume_queue import ColdRead, QueueKey
from ..state.effects import Effects, HoldLoss, Loss
from ..state.holds import named_since
from .policy import DeletionPace, Expiry, age_clock, expired_before, held_from, oldest_before, protected_by
from .protection import Protection, held, protection

logger = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 1.0  # seconds between two checks of the disk
#: Shorter interval (seconds) while the used share is within CLOSE below the step that deletes the oldest
#: segments: a small disk must not pass a whole step between two checks.
CLOSE_INTERVAL: Final = 0.1
CLOSE: Final = 0.05
#: A daily expiry that was missed, for example during an election, is made up within this time.
MAKE_UP: Final = timedelta(hours=1)
#: Interval (seconds) at which the effect of `protect_unconsumed` is computed while nothing is deleted.
PROTECTION_INTERVAL: Final = 30.0
#: Interval (seconds) at which the start of the log is proposed again while segments wait for checkpoints.
PUSH_INTERVAL: Final = 5.0
_HOUR_MS: Final = 3_600_000


def next_clean(now: datetime, clean_at: str) -> datetime:
    """Return the time of the next daily expiry. `clean_at`: "HH:MM"."""
    hour, minute = clean_at.split(":")
    today = now.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    return today if today > now else today + timedelta(days=1)


class Checkpoints(Protocol):
    """The part of Checkpointing that retention needs."""

    @property
    def floor(self) -> int: ...

    async def write_now(self) -> int: ...


class Retention:
    """Disk watch, expiry and deletion of one node, and the Clean call.

    Call `start`, `on_effects` after each entry, and `stop`.
    """

    def __init__(
        self,
        config: BrokerConfig,
        raft: RaftNode,
        replica: Replica,
        pipeline: AppendPipeline,
        leadership: Leadership,
        checkpoints: Checkpoints,
        metrics: Metrics,
        *,
        disk_use: Callable[[], DiskUse],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change`: called when messages are refused, or accepted again."""
        self._config = config
        self._raft = raft
        self._replica = replica
        self._pipeline = pipeline
        self._leadership = leadership
        self._checkpoints = checkpoints
        self._metrics = metrics
        self._disk_use = disk_use
        self._on_change = on_change
        #: Decisions and progress, for status and metrics.
        self.view = RetentionView()
        self._keep_ms = int(config.retention_hours * _HOUR_MS)
        self._limits = limits_of(
            config.disk_delete_expired_percent,
            config.disk_delete_oldest_percent,
            config.disk_refuse_messages_percent,
        )
        self._watch = DiskWatch(config.node_id, str(config.data_dir), self._limits)
        self._pace = DeletionPace(config.delete_segments_per_second)
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted_start = 0  # start of the log (index) in the state; never decreases
        self._known_start = 0  # start that every kept checkpoint records; at most `_wanted_start`
        # (index of the entry, start) that not all kept checkpoints record yet, oldest first
        self._starts: deque[tuple[int, int]] = deque()
        self._again: asyncio.Task[None] | None = None
        #: Step of the fullest node of the broker group: expired segments are deleted on all nodes.
        self._fullest = DiskStep.NORMAL
        self._hindering = DiskStep.NORMAL  # step of the usage that would hinder commits
        self._clean_at = next_clean(datetime.now(), config.clean_at)  # next daily expiry
        self._make_up_until: datetime | None = None  # the daily expiry is due until then
        self._protection_looked = 0.0  # monotonic seconds
        self._proposed_at = 0.0  # monotonic seconds of the last proposed start
        self._need = 0  # bytes to delete until the broker group can commit freely
        self._last_failure = ""

    def start(self) -> None:
        """Start the timers."""
        state = self._replica.state
        self._note_start(state.applied_index, state.log_start_index)
        self._tasks = [asyncio.create_task(self._watch_disk()), asyncio.create_task(self._decide_often())]

    async def stop(self) -> None:
        """Stop the timers."""
        tasks = [*self._tasks, *([self._again] if self._again is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the disk -------------------------------------------------------------------------------------------
    async def _watch_disk(self) -> None:
        while True:
            try:
                self.look()
                self._unlink()
            except Exception:  # as in `_decide_often`: an unwatched disk would fill up
                logger.exception("disk not watched, the next look follows node=%s", self._config.node_id)
            is_close = self._watch.use.share > self._limits[DiskStep.DELETE_OLDEST] - CLOSE
            await asyncio.sleep(CLOSE_INTERVAL if is_close else CHECK_INTERVAL)

    def look(self) -> None:
        """Check the disk once, and refuse or accept messages accordingly."""
        use, config, raft = self._disk_use(), self._config, self._raft
        used, limit = use.total - use.available, use.total
        if config.max_store_bytes:
            used, limit = raft.log.end_offset - raft.log.first_offset, config.max_store_bytes
        before, watch, pipeline = self._watch.step, self._watch, self._pipeline
        changed = watch.look(Use(used, limit, raft.storage.statistics().disk_full))
        view = self.view
        view.step, view.use = watch.step, watch.use
        view.going = raft.log.deleting
        if self._wanted_start > raft.first_index:  # only if needed: a long log has many segments
            view.going += sum(segment.last_index < self._wanted_start for segment in raft.log.segments()[:-1])
        refused_before = pipeline.produce_refusal
        pipeline.produce_refusal, pipeline.refusal = watch.refusal, watch.write_refusal
        if not changed:
            return
        level = logging.ERROR if watch.step >= DiskStep.REFUSE_MESSAGES else logging.WARNING
        logger.log(
            level if watch.step > before else logging.INFO,
            "disk step=%d node=%s used=%.0f%%: %s", watch.step, config.node_id, 100 * watch.use.share,
            watch.write_refusal or watch.refusal or watch.step.text or "there is room again",
        )  # fmt: skip
        if bool(refused_before) != bool(watch.refusal):
            self._on_change()

    def _note_nodes(self) -> None:
        """On the leader, include the disks of the other nodes; `max_store_bytes` is equal on all of them."""
        use, raft = self._watch.use, self._raft.status()
        others = []
        if not self._config.max_store_bytes:
            own = self._config.node_id
            others = [
                peer.disk_used_ratio
                for peer in raft.peers
                if peer.node_id != own and peer.connected and peer.disk_used_ratio is not None
            ]
        share, step_of = max((use.share, *others)), partial(next_step, full=use.full, limits=self._limits)
        self._fullest = step_of(self._fullest, share)
        hindering = hindering_share(use.share, others, raft.voters)
        self._hindering = step_of(self._hindering, hindering)
        self.view.fullest = self._fullest
        self._need = bytes_to_free(use, hindering, self._limits)

    # --- decisions ------------------------------------------------------------------------------------------
    async def _decide_often(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            due = self._follow_clock(datetime.now())
            if not self._leadership.ready:
                self.view.hold = self._watch.hold = ""
                continue
            try:
                await self._decide(due=due)
            except (RaftError, BrokerError, RefusedError, TooManyRequestsError) as error:
                if str(error) != self._last_failure:
                    logger.warning("nothing deleted, the next try follows reason=%s", error)
                self._last_failure = str(error)
            except Exception:  # a bug; without further tries the disk would fill up
                logger.exception("retention failed, the next try follows node=%s", self._config.node_id)
            else:
                self._last_failure = ""

    def _follow_clock(self, now: datetime) -> bool:
        """Return whether the daily expiry is due.

        Every node follows the clock, so that a new leader can make up a missed expiry.
        """
        if now >= self._clean_at:
            self._make_up_until = self._clean_at + MAKE_UP
            self._clean_at = next_clean(now, self._config.clean_at)
        if self._make_up_until is not None and now >= self._make_up_until:
            self._make_up_until = None
        return self._make_up_until is not None

    async def _decide(self, *, due: bool) -> None:
        """Delete segments as the disk steps and the time of day require.

        One decision at a time: its effect on the disk must be visible before the next one.
        """
        self._note_nodes()
        log = self._raft.log
        kept = await self._note_hold()
        if self.view.going:
            await self._push_on()
            return
        if due or self._fullest >= DiskStep.DELETE_EXPIRED:
            first_kept = await self._judge_segments(self._keep_ms)
            if first_kept is not None:
                await self._begin_at(first_kept, "expired", self._keep_ms)
            self._make_up_until = None
            if first_kept is not None:
                return
        elif time.monotonic() - self._protection_looked >= PROTECTION_INTERVAL:
            await self._judge_segments(self._keep_ms)
        if self._hindering >= DiskStep.DELETE_OLDEST and self._config.delete_unexpired:
            floor = self._raft.applied_index + 1
            first_kept = oldest_before(
                list(log.segments()), self._need, floor, kept.physical_offset if kept else None
            )
            if first_kept is not None:
                await self._begin_at(first_kept, "oldest")

    async def _note_hold(self) -> Protection | None:
        """Return the protection by topics that keep unread messages, on a nearly full disk.

        If it prevents a later start of the log, set the text for operators.
        """
        kept = None
        if max(self._hindering, self._watch.step) >= DiskStep.DELETE_OLDEST:
            kept = await self._protection(kept_only=True)
        segments = self._raft.log.segments()
        holds = kept is not None and len(segments) > 1 and segments[0].end_offset > kept.physical_offset
        self.view.hold = self._watch.hold = kept.hold if kept and holds else ""
        return kept

    async def _judge_segments(self, keep_ms: int, *, protect: bool = True) -> SegmentInfo | None:
        """Note the protected segments; return the first segment to keep (None: none may be deleted).

        `protect` False: protect only topics that keep unread messages.
        """
        raft, view = self._raft, self.view
        read = protect and self._config.protect_unconsumed
        first = await self._protection(kept_only=not read or self._hindering >= DiskStep.DELETE_OLDEST)
        hold = await self._held() if protect and self._fullest < DiskStep.DELETE_OLDEST else None
        needed = first.physical_offset if first is not None else None
        expiry = Expiry(self._now(), keep_ms, raft.applied_index + 1, needed)
        segments = list(raft.log.segments())
        kept, without_holds = protected_by(segments, expiry), 0
        if hold is not None:
            without_holds = _size(kept)
            begin = held_from(segments, expiry, hold.physical_offset, self._config.hold_max_bytes)
            if needed is None or begin < needed:
                first, expiry = hold, replace(expiry, protected_from=begin)
                kept = protected_by(segments, expiry)
        view.protected_segments = len(kept)
        view.protected_bytes = _size(kept)
        view.held_bytes = view.protected_bytes - without_holds if hold is not None else 0
        view.protected_for = f"{first} ({first.setting})" if first and kept else ""
        self._protection_looked = time.monotonic()
        return expired_before(segments, expiry)

    def _now(self) -> int:
        return age_clock(self._raft.next_timestamp(), time.time() * 1000)

    async def _protection(self, *, kept_only: bool) -> Protection | None:
        """Return the part of the log that is needed; None: nothing is."""
        replica = self._replica
        known: dict[tuple[QueueKey, int], int] = {}
        while isinstance(found := protection(replica.state, known, kept_only=kept_only), list):
            await replica.warm(found)
            await asyncio.sleep(0)
        return found

    async def _held(self) -> Protection | None:
        """Return the part of the log that holds need; None: they need nothing."""
        replica, known = self._replica, dict[tuple[QueueKey, int], int]()
        since = named_since(self._now(), self._config.hold_expires_hours)
        while isinstance(found := held(replica.state, known, since), list):
            await replica.warm(found)
            await asyncio.sleep(0)
        return found

    async def _begin_at(self, first_kept: SegmentInfo, reason: str, keep_ms: int | None = None) -> None:
        """Write the required checkpoint, then replicate the start of the log at a segment.

        `keep_ms`: as in `_judge_segments`, which then must still allow it after the checkpoint; None: only
        what topics keep unread counts. Raises: RefusedError (the checkpoint cannot be written, or messages
        were protected meanwhile), and what the pipeline raises.
        """
        config, applied = self._config, first_kept.first_index - 1
        if await self._checkpoints.write_now() < applied:
            raise RefusedError(
                route_pb2.DISK_FULL,
                f"{config.node_id} deleted nothing: the checkpoint that must come first could not be written"
                f" to {config.data_dir / 'checkpoint'} (its log says why). Free some of that disk by other"
                " means, then repeat: ledgermq admin clean",
                retryable=True,
            )
        kept = await self._protection(kept_only=True)  # needs may have changed during the checkpoint
        if kept is not None and kept.physical_offset < first_kept.start_offset:
            raise RefusedError(
                route_pb2.DISK_FULL, f"{config.node_id} deleted nothing. {kept.hold}", retryable=True
            )
        if keep_ms is not None:
            allowed = await self._judge_segments(keep_ms)
            if allowed is None or allowed.start_offset < first_kept.start_offset:
                raise RefusedError(
                    route_pb2.TOO_MANY_REQUESTS,
                    f"{config.node_id} deleted nothing: while it wrote its checkpoint, messages came to be"
                    " needed (by a hold, or by a consumer group). Repeat it",
                    retryable=True,
                )
        before = self._raft.log.first_offset
        await self._propose_start(first_kept)
        logger.log(
            logging.WARNING if reason == "oldest" else logging.INFO,
            "log begins later reason=%s index=%d bytes=%d used=%.0f%%", reason, first_kept.first_index,
            first_kept.start_offset - before, 100 * self._watch.use.share,
        )  # fmt: skip
        self._again = asyncio.create_task(self._propose_again(first_kept))

    async def _propose_start(self, first_kept: SegmentInfo) -> None:
        """Replicate the start of the log at a segment."""
        state = self._replica.state
        known: dict[QueueKey, int] = {}
        while isinstance(
            command := state.log_start_command(first_kept.first_index, first_kept.start_offset, known),
            ColdRead,
        ):
            await self._replica.warm((command,))
        self._proposed_at = time.monotonic()
        await self._pipeline.run(command)

    async def _push_on(self) -> None:
        """Propose the start again while segments below it wait for checkpoints.

        Without new entries, no node would write one.
        """
        state, now = self._replica.state, time.monotonic()
        deletable = min(self._advance_known_start(), self._checkpoints.floor)
        waits = self._raft.log.deleting == 0 and deletable < state.log_start_index
        if waits and now - self._proposed_at >= PUSH_INTERVAL:
            self._proposed_at = now
            await self._pipeline.run(
                LogStart(state.log_start_index, state.log_start_offset, position_rows([]))
            )

    async def _propose_again(self, first_kept: SegmentInfo) -> None:
        """Propose the start again shortly after: each time the nodes write a checkpoint.

        Segments below both kept checkpoints can then be deleted.
        """
        await asyncio.sleep(3 * CHECK_INTERVAL)
        try:
            await self._propose_start(first_kept)
        except (RaftError, BrokerError, TooManyRequestsError) as error:
            logger.info("segments go with the next checkpoints reason=%s", error)

    # --- by hand --------------------------------------------------------------------------------------------
    async def clean(self, request: admin_pb2.CleanRequest) -> admin_pb2.CleanResponse:
        """Delete or list expired segments, on the leader. Raises: RefusedError, and as the pipeline."""
        if request.older_than_ms < 0:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, "an age cannot be negative")
        keep_ms = 0 if request.even_unexpired else request.older_than_ms or self._keep_ms
        segments = list(self._raft.log.segments())
        first_kept = await self._judge_segments(keep_ms, protect=not request.even_unexpired)
        answer = admin_pb2.CleanResponse(
            log_start_index=self._replica.state.log_start_index,
            note=self._note(segments, first_kept, keep_ms),
        )
        if first_kept is None:
            return answer
        gone = [segment for segment in segments if segment.start_offset < first_kept.start_offset]
        answer.segments.extend(f"{segment.start_offset:020d}" for segment in gone)
        answer.bytes = sum(segment.end_offset - segment.start_offset for segment in gone)
        answer.log_start_index = first_kept.first_index
        if not request.dry_run:
            await self._begin_at(first_kept, "by hand", None if request.even_unexpired else keep_ms)
        return answer

    def _note(self, segments: list[SegmentInfo], first_kept: SegmentInfo | None, keep_ms: int) -> str:
        """Return a text for operators: the reason why the oldest remaining segment stays."""
        now = self._now()
        oldest = first_kept or (segments[0] if segments else None)
        if oldest is None or oldest is segments[-1]:
            return "the newest segment always stays"
        if kept := self.view.protection:
            return kept
        age = (now - oldest.last_timestamp) / _HOUR_MS
        return (
            f"the oldest segment that stays ends {age:.1f} hours ago; what is older than"
            f" {keep_ms / _HOUR_MS:g} hours goes"
        )

    # --- unlinking ------------------------------------------------------------------------------------------
    def on_effects(self, effects: Effects) -> None:
        """Record the new start of the log, and log messages that were deleted before someone had them."""
        if effects.log_start is not None:
            self._note_start(effects.index, effects.log_start.index)
        if effects.losses:
            self._tell_losses(effects.losses)
        if effects.hold_losses:
            self._tell_hold_losses(effects.hold_losses)

    def _note_start(self, said_at: int, start: int) -> None:
        if start > self._wanted_start:
            self._wanted_start = start
            self._starts.append((said_at, start))

    def _advance_known_start(self) -> int:
        """Follow the checkpoints; return the start of the log that every kept one records."""
        floor = self._checkpoints.floor
        while self._starts and self._starts[0][0] < floor:
            self._known_start = self._starts.popleft()[1]
        return self._known_start

    def _tell_losses(self, losses: list[Loss]) -> None:
        """Log one line per consumer group and topic; `ledgermq group describe` shows the queues."""
        state, counts = self._replica.state, Counter[tuple[int, int]]()
        for loss in losses:
            counts[loss.group_id, loss.topic_id] += loss.count
        for (group_id, topic_id), count in sorted(counts.items()):
            topic, consumer_group = state.topics.get(topic_id), state.groups.get(group_id)
            self._metrics.messages_lost.inc(count)
            logger.warning(
                "messages deleted before they were consumed group=%s topic=%s count=%d",
                consumer_group.name if consumer_group else group_id, topic.name if topic else topic_id, count,
            )  # fmt: skip

    def _tell_hold_losses(self, losses: list[HoldLoss]) -> None:
        """Log once per advance that a hold was overridden; `ledgermq topic describe` shows it."""
        topics, counts = self._replica.state.topics, Counter[tuple[int, str]]()
        for loss in losses:
            self._metrics.held_messages_deleted.inc(loss.count)
            if loss.is_first:
                counts[loss.topic_id, loss.name] += loss.count
        for (topic_id, name), count in sorted(counts.items()):
            topic = topics.get(topic_id)
            logger.warning(
                "messages deleted although a hold waited for them hold=%s topic=%s count=%d",
                name, topic.name if topic else topic_id, count,
            )  # fmt: skip

    def _unlink(self) -> None:
        """Unlink segments below the replicated start, as far as the checkpoints and the rate allow."""
        raft = self._raft
        below = min(self._advance_known_start(), self._checkpoints.floor)
        if below <= raft.first_index or raft.log.deleting:
            return
        ready = [segment for segment in raft.log.segments()[:-1] if segment.last_index < below]
        count = self._pace.take(len(ready), time.monotonic())
        if not count:
            return
        started, stop = time.monotonic(), LogIndex(ready[count - 1].last_index + 1)
        deleted = raft.delete_segments_before(stop)
        if not deleted:
            return  # a follower reset in progress needs them
        self._metrics.segments_deleted.inc(deleted)
        logger.info(
            "segments deleted count=%d below=%d seconds=%.3f", deleted, stop, time.monotonic() - started
        )


def _size(segments: list[SegmentInfo]) -> int:
    return sum(segment.end_offset - segment.start_offset for segment in segments)

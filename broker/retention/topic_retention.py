"""Retention of single topics: hides messages that exceed the retention time of their topic (D8).

The leader finds expired messages by log time and by its own clock, and proposes the new begin of each queue.
Every node moves the begin when it applies the command, so all nodes hide the same messages, and a new leader
cannot show them again.
Owns: the timer.   Must not: delete segments. Queue files whose units are all hidden are deleted with the
checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from ledgermq.raft.errors import LogCompactedError, RaftError
from ledgermq.raft.node.raft_node import RaftNode

from ..background import BackgroundWork
from ..cluster.known_leader import Leadership
from ..config import BrokerConfig
from ..errors import BrokerError
from ..leader.pipeline import AppendPipeline, TooManyRequestsError
from ..reading.log_reader import QueueReader
from ..replica import Replica
from ..service.disk_steps import DiskStep, RetentionView
from ..state.backlog import unconsumed
from ..state.commands import TrimQueues, position_rows
from ..state.consume_queue import ConsumeQueue, QueueKey
from ..state.holds import named_since
from .policy import age_clock
from .protection import held_offsets

logger = logging.getLogger(__name__)

TRIM_INTERVAL: Final = 10.0  # seconds between two passes
_ROWS_MAX: Final = 4096  # per command


class TopicRetention(BackgroundWork):
    """Timer that hides expired messages of topics while this node leads. Call `start` and `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        raft: RaftNode,
        replica: Replica,
        pipeline: AppendPipeline,
        leadership: Leadership,
        queues: QueueReader,
        retention: RetentionView,
    ) -> None:
        self._config = config
        self._raft = raft
        self._replica = replica
        self._pipeline = pipeline
        self._leadership = leadership
        self._queues = queues
        self._retention = retention
        # Last checked begin of each queue, and the log time (ms) at which the message there was stored.
        self._oldest: dict[QueueKey, tuple[int, int]] = {}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TRIM_INTERVAL)
            if not self._leadership.ready:
                continue
            try:
                await self.trim()
            except (RaftError, BrokerError, TooManyRequestsError) as error:
                logger.info("messages of topics not hidden, the next look follows reason=%s", error)
            except Exception:  # a bug; the next pass may succeed
                logger.exception("hiding messages of topics failed, the next look follows")

    async def trim(self) -> int:
        """Hide expired messages; return their number.

        Raises: RaftError, BrokerError, TooManyRequestsError.
        """
        now = age_clock(self._raft.next_timestamp(), time.time() * 1000)
        old: list[tuple[ConsumeQueue, int]] = []
        state = self._replica.state
        for topic in [topic for topic in state.topics if topic.retention_ms]:
            still_there = state.topics.get(topic.topic_id) is not None
            for queue in state.queues_of(topic) if still_there else ():
                begin = await self._begin(queue, now - topic.retention_ms)
                if begin > queue.begin:
                    old.append((queue, begin))
        hidden = 0
        for start in range(0, len(old), _ROWS_MAX):
            rows, count = self._not_needed(old[start : start + _ROWS_MAX], now)
            if rows:
                await self._pipeline.run(TrimQueues(position_rows(rows)))
                hidden += count
        if hidden:
            logger.debug("messages of topics hidden count=%d", hidden)
        return hidden

    def _not_needed(
        self, old: list[tuple[ConsumeQueue, int]], now: int
    ) -> tuple[list[tuple[int, int, int]], int]:
        """Return the rows to propose, without messages that are needed, and the number of hidden messages.

        The needs are read again here, because finding expired messages takes time. `now`: as in `trim`, ms.
        """
        protect = self._config.protect_unconsumed
        needs = unconsumed(
            self._replica.state,
            kept_only=not protect or self._retention.step >= DiskStep.DELETE_OLDEST,
        )
        since = named_since(now, self._config.hold_expires_hours)
        holds_count = self._retention.fullest < DiskStep.DELETE_OLDEST
        held = held_offsets(self._replica.state, since) if holds_count else {}
        rows, count = [], 0
        for queue, begin in old:
            for need in (needs.get(queue.key), held.get(queue.key)):
                begin = min(begin, need.offset) if need is not None else begin
            if begin > queue.begin:
                rows.append((*queue.key, begin))
                count += begin - queue.begin
        return rows, count

    async def _begin(self, queue: ConsumeQueue, before: int) -> int:
        """Return the first offset in a queue whose message was stored at or after `before` (log time, ms)."""
        begin = queue.begin
        if begin == queue.end:
            return begin
        known, stored = self._oldest.get(queue.key, (-1, 0))
        if known != begin:
            try:
                stored = await self._queues.stored_at(*queue.key, begin) or 0
            except LogCompactedError:
                stored = 0
            self._oldest[queue.key] = (begin, stored)
        return begin if stored >= before else await self._queues.offset_at_time(*queue.key, before)

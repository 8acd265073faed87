"""Holds of topics: set, advanced and released on the leader; and what any node tells of them (D41).

Raises (all): RefusedError, and what the pipeline raises.
Must not: change the state other than by commands.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.proto.foreign_text import safe_text
from ledgermq.raft.node.raft_node import RaftNode

from ..config import BrokerConfig
from ..leader.pipeline import AppendPipeline
from ..refusals import RefusedError
from ..replica import Replica
from ..service.features import Features
from ..service.read_barrier import ReadBarrier
from ..state.commands import HOLDS, ReleaseHold, SetHold, hold_rows
from ..state.holds import MAX_HOLDS, Held, named_since
from ..state.machine import BrokerState
from ..state.topics import Topic
from ..wire.validation import hold_problem
from .changes import known_topic

_FEATURE: Final = "let retention wait for a job"


def hold_infos(
    state: BrokerState, topic: Topic, name: str, held: Held, since: int
) -> Iterator[admin_pb2.HoldInfo]:
    """Yield what is told of a hold, by queue. `since`: as `TopicHolds.since` returns it."""
    for queue_id, need in sorted(held.items()):
        yield admin_pb2.HoldInfo(
            name=name,
            queue_id=queue_id,
            offset=need.offset,
            advanced_ms=need.advanced,
            lost=need.lost_at(state.queue_begin(topic.topic_id, queue_id)),
            expired=need.advanced < since,
        )


@dataclass(eq=False, repr=False)
class TopicHolds:
    """Serves SetHold and ReleaseHold."""

    _config: BrokerConfig
    _raft: RaftNode
    _replica: Replica
    _pipeline: AppendPipeline
    _barrier: ReadBarrier
    _features: Features

    def since(self) -> int:
        """Return the log time (ms) since which holders must have named their holds, so that they count."""
        now = min(self._raft.next_timestamp(), int(time.time() * 1000))
        return named_since(now, self._config.hold_expires_hours)

    async def set(self, request: admin_pb2.SetHoldRequest) -> admin_pb2.SetHoldResponse:
        """Set or advance a hold. Offsets that were deleted already are accepted, and the answer says so."""
        if problem := hold_problem(request.name):
            raise RefusedError(route_pb2.INVALID_ARGUMENT, f"{problem}. Nothing was changed")
        topic = known_topic(self._replica.state, request.topic)
        if self._problem(request, topic) is not None:
            await self._barrier.catch_up()  # the caller may know more than a leader that was deposed
            if (refusal := self._problem(request, topic)) is not None:
                raise refusal
        await self._features.require(HOLDS, _FEATURE)
        rows = hold_rows([(each.queue_id, each.offset) for each in request.queues])
        applied = await self._pipeline.run(SetHold(topic.topic_id, request.name, rows))
        held = applied.result.held
        if not applied.result.topic_exists:
            raise RefusedError(route_pb2.TOPIC_NOT_FOUND, f'topic "{topic.name}" was deleted meanwhile')
        if held is None:
            names = ", ".join(sorted(self._replica.state.holds.of_topic(topic.topic_id)))
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f'topic "{topic.name}" has {MAX_HOLDS} holds, and may not have more: {names}. Nothing was '
                f"changed. Release one that is not needed: ledgermq topic release {topic.name} --name NAME",
            )
        named = {each.queue_id: held[each.queue_id] for each in request.queues}
        state = self._replica.state
        if state.topics.get(topic.topic_id) is None:  # with an entry that was applied at once
            raise RefusedError(route_pb2.TOPIC_NOT_FOUND, f'topic "{topic.name}" was deleted meanwhile')
        return admin_pb2.SetHoldResponse(queues=hold_infos(state, topic, request.name, named, self.since()))

    async def release(self, request: admin_pb2.ReleaseHoldRequest) -> admin_pb2.ReleaseHoldResponse:
        """Remove a hold; a missing one is not an error."""
        topic = known_topic(self._replica.state, request.topic)
        await self._features.require(HOLDS, _FEATURE)
        applied = await self._pipeline.run(ReleaseHold(topic.topic_id, request.name))
        return admin_pb2.ReleaseHoldResponse(released=applied.result.held is not None)

    def _problem(self, request: admin_pb2.SetHoldRequest, topic: Topic) -> RefusedError | None:
        """Return why the queues and offsets of a request cannot be held; None: they can."""
        asked = [each.queue_id for each in request.queues]
        if not asked or len(set(asked)) < len(asked):
            what = "a queue is named twice" if asked else "no queue is named"
            return RefusedError(route_pb2.INVALID_ARGUMENT, f"{what}. Nothing was changed")
        for each in request.queues:
            queue = self._replica.state.queues.get(topic.topic_id, each.queue_id)
            if queue is None:
                return RefusedError(
                    route_pb2.INVALID_ARGUMENT,
                    f'topic "{topic.name}" has no queue {each.queue_id} in broker group '
                    f"{self._config.group}; its queues are 0 to {topic.queue_count - 1}. Nothing was changed",
                )
            if not 0 <= each.offset <= queue.end:
                return RefusedError(
                    route_pb2.OFFSET_OUT_OF_RANGE,
                    f'hold "{safe_text(request.name)}": queue {each.queue_id} of topic "{topic.name}" in '
                    f"broker group {self._config.group} has offsets up to {queue.end}, which is the next "
                    f"message; {each.offset} is not one of them. Nothing was changed. If the topic was "
                    "deleted and created again, the holder has to begin anew",
                )
        return None

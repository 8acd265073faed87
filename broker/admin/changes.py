"""Changes of topics, consumer groups and offsets, on the leader. Calls return once their command is applied.

Raises (all): RefusedError, NotThereError, LimitReachedError, and what the pipeline raises.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import admin_pb2, log_pb2, route_pb2
from ledgermq.proto.foreign_text import safe_text

from ..config import BrokerConfig
from ..leader.pipeline import AppendPipeline
from ..reading.log_reader import QueueReader
from ..refusals import RefusedError
from ..replica import Replica
from ..service.creation import Creation
from ..service.features import Features
from ..state.commands import (
    KEEP_UNREAD,
    NOT_BUILT,
    CommitOffsets,
    CreateConsumerGroup,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    MessageType,
    SetTopicKeepUnread,
    SetTopicRetention,
    StartPosition,
    position_rows,
)
from ..state.consumer_groups import ConsumerGroup
from ..state.machine import BrokerState
from ..state.topics import MAX_QUEUES, Topic
from ..wire.validation import MAX_TOPIC_LENGTH, group_problem, topic_problem
from .broker_group_view import topic_info

DEFAULT_MAX_ATTEMPTS: Final = 17
_KEEPING: Final = "keep unread messages of a topic"
_AS_IT_IS: Final = "--if-not-exists (in the client if_not_exists=True)"


def known_topic(state: BrokerState, name: str) -> Topic:
    """Return a topic; the refusal of a missing one suggests a similar name. Raises: RefusedError."""
    if (topic := state.topics.find(name)) is not None:
        return topic
    hint = _hint(name, [each.name for each in state.topics])
    text = (
        f'topic "{safe_text(name)}" does not exist.{hint} Create it: ledgermq topic create {safe_text(name)}'
    )
    raise RefusedError(route_pb2.TOPIC_NOT_FOUND, text)


def known_consumer_group(state: BrokerState, name: str) -> ConsumerGroup:
    """Return a consumer group; the refusal of a missing one suggests a similar name. Raises: RefusedError."""
    if (consumer_group := state.groups.find(name)) is not None:
        return consumer_group
    hint = _hint(name, [each.name for each in state.groups])
    name = safe_text(name)
    text = f'consumer group "{name}" does not exist.{hint} Consumer groups come into being by use, or: '
    raise RefusedError(route_pb2.GROUP_NOT_FOUND, f"{text}ledgermq group create {name}")


def consumed_topics(state: BrokerState, consumer_group: ConsumerGroup, name: str) -> list[Topic]:
    """Return the named topic, or for "" all that the consumer group has consumed. Raises: RefusedError."""
    if name:
        return [known_topic(state, name)]
    found = (state.topics.get(topic_id) for topic_id in state.consumed_topics(consumer_group.group_id))
    return [topic for topic in found if topic is not None]


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1) if len(name) <= MAX_TOPIC_LENGTH else []
    return f' Did you mean "{close[0]}"?' if close else ""


@dataclass(eq=False, repr=False)
class TopicChanges:
    """Creates, changes and deletes topics."""

    _config: BrokerConfig
    _replica: Replica
    _pipeline: AppendPipeline
    _creation: Creation
    _features: Features

    async def create(self, request: admin_pb2.CreateTopicRequest) -> admin_pb2.CreateTopicResponse:
        """Create a topic; an existing one is refused unless `if_not_exists`."""
        if problem := topic_problem(request.topic):
            raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
        count = request.queue_count or self._config.queues_per_topic
        if count > MAX_QUEUES:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT, f"{count} queues; a topic has at most {MAX_QUEUES} per group"
            )
        if request.message_type not in (0, *MessageType):
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"there is no message type {request.message_type}; the highest is {max(MessageType)}",
            )
        kind = MessageType(request.message_type) if request.message_type else MessageType.NORMAL
        if kind in NOT_BUILT:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"topics of type {kind.name.lower()} are not built yet: nothing could be sent to one. "
                "Nothing was created. Use normal, fifo (order by message group) or mixed (both)",
            )
        self._check_retention(request.retention_ms)
        if self._replica.state.topics.find(request.topic) is None:
            self._creation.check_room_for_topic(count)
        if request.keep_unread:
            await self._features.require(KEEP_UNREAD, _KEEPING)
        command = CreateTopic(request.topic, count, kind, request.retention_ms, request.keep_unread)
        applied = await self._pipeline.run(command)
        topic: Topic = applied.result.topic
        there = (topic.queue_count, topic.message_type, topic.retention_ms, topic.keep_unread)
        as_wanted = there == (count, kind, request.retention_ms, request.keep_unread)
        if not (applied.result.changed or request.if_not_exists or (request.perhaps_done and as_wanted)):
            raise RefusedError(
                route_pb2.ALREADY_EXISTS,
                f'topic "{topic.name}" exists already, with {topic.queue_count} queues. To take it as it is: '
                f"{_AS_IT_IS}",
            )
        return admin_pb2.CreateTopicResponse(topic=topic_info(topic))

    async def update(self, request: admin_pb2.UpdateTopicRequest) -> admin_pb2.UpdateTopicResponse:
        """Change how long a topic shows its messages, and whether unread ones are kept.

        Messages that are hidden already stay hidden.
        """
        topic = known_topic(self._replica.state, request.topic)
        commands: list[SetTopicRetention | SetTopicKeepUnread] = []
        if request.HasField("retention_ms"):
            self._check_retention(request.retention_ms)
            commands.append(SetTopicRetention(topic.topic_id, request.retention_ms))
        if request.HasField("keep_unread"):
            await self._features.require(KEEP_UNREAD, _KEEPING)
            commands.insert(0, SetTopicKeepUnread(topic.topic_id, request.keep_unread))
        if not commands:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT, "nothing to change was named; retention_ms and keep_unread can be"
            )
        for command in commands:
            applied = await self._pipeline.run(command)
            if applied.result.topic is None:
                raise RefusedError(
                    route_pb2.TOPIC_NOT_FOUND, f'topic "{request.topic}" was deleted meanwhile'
                )
        return admin_pb2.UpdateTopicResponse(topic=topic_info(applied.result.topic))

    def _check_retention(self, retention_ms: int) -> None:
        """Refuse a retention time longer than that of the log."""
        log_hours = self._config.retention_hours
        if retention_ms > log_hours * 3_600_000:
            raise RefusedError(
                route_pb2.INVALID_ARGUMENT,
                f"a topic cannot keep messages for {retention_ms / 3_600_000:g} hours: the log deletes them "
                f"after {log_hours:g} (retention_hours of the brokers). Give at most that, or raise it on "
                "all nodes first",
            )

    async def delete(self, request: admin_pb2.DeleteTopicRequest) -> admin_pb2.DeleteTopicResponse:
        """Delete a topic with its queues and offsets."""
        if request.perhaps_done and self._replica.state.topics.find(request.topic) is None:
            return admin_pb2.DeleteTopicResponse()
        topic = known_topic(self._replica.state, request.topic)
        await self._pipeline.run(DeleteTopic(topic.topic_id))
        return admin_pb2.DeleteTopicResponse()


@dataclass(eq=False, repr=False)
class ConsumerGroupChanges:
    """Creates and deletes consumer groups, and sets their offsets."""

    _replica: Replica
    _pipeline: AppendPipeline
    _creation: Creation
    _queues: QueueReader

    async def create(self, request: admin_pb2.CreateGroupRequest) -> admin_pb2.CreateGroupResponse:
        """Create a consumer group; an existing one is refused unless `if_not_exists`."""
        wanted = request.group
        if problem := group_problem(wanted.name):
            raise RefusedError(route_pb2.INVALID_ARGUMENT, problem)
        try:
            start = StartPosition.parse(wanted.start_position)
        except ValueError as error:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, str(error)) from None
        if self._replica.state.groups.find(wanted.name) is None:
            self._creation.check_room_for_consumer_group()
        command = CreateConsumerGroup(
            wanted.name, start, wanted.max_attempts or DEFAULT_MAX_ATTEMPTS, wanted.fifo
        )
        applied = await self._pipeline.run(command)
        consumer_group: ConsumerGroup = applied.result.group
        there = (consumer_group.start, consumer_group.max_attempts, consumer_group.fifo)
        as_wanted = there == (command.start, command.max_attempts, command.fifo)
        if not (applied.result.changed or request.if_not_exists or (request.perhaps_done and as_wanted)):
            raise RefusedError(
                route_pb2.ALREADY_EXISTS,
                f'consumer group "{wanted.name}" exists already. To take it as it is: {_AS_IT_IS}',
            )
        return admin_pb2.CreateGroupResponse()

    async def delete(self, request: admin_pb2.DeleteGroupRequest) -> admin_pb2.DeleteGroupResponse:
        """Delete a consumer group with its offsets and leases."""
        if request.perhaps_done and self._replica.state.groups.find(request.name) is None:
            return admin_pb2.DeleteGroupResponse()
        consumer_group = known_consumer_group(self._replica.state, request.name)
        await self._pipeline.run(DeleteConsumerGroup(consumer_group.group_id))
        return admin_pb2.DeleteGroupResponse()

    async def reset_offsets(self, request: admin_pb2.ResetOffsetsRequest) -> log_pb2.CommitOffsetsResponse:
        """Set a consumer group's offsets in all queues of a topic; its leases there end."""
        state = self._replica.state
        topic, consumer_group = known_topic(state, request.topic), known_consumer_group(state, request.group)
        which = request.WhichOneof("to")
        if which is None:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, "say where to: earliest, latest or a time")
        rows = []
        for queue in state.queues_of(topic):
            offset = queue.begin if which == "earliest" else queue.end
            if which == "timestamp_ms":
                offset = await self._queues.offset_at_time(*queue.key, request.timestamp_ms)
            rows.append((*queue.key, offset))
        applied = await self._pipeline.run(CommitOffsets(consumer_group.group_id, position_rows(rows), True))
        if not applied.result.accepted.all():
            raise RefusedError(
                route_pb2.STALE_ROUTE, f'topic "{topic.name}" or the consumer group was deleted meanwhile'
            )
        return log_pb2.CommitOffsetsResponse()

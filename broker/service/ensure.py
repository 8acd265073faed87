"""Finds topics and consumer groups, and creates those that may come into being by use. Runs on the leader."""

from __future__ import annotations

from ledgermq.raft.errors import NotLeaderError

from ..errors import LimitReachedError
from ..state.commands import CreateGroup, CreateTopic, MessageType
from ..state.consumer_groups import ConsumerGroup
from ..state.topics import Topic
from ..wire.validation import topic_problem
from .context import NodeContext


def check_room_for_topic(context: NodeContext, queue_count: int) -> None:
    """Whoever reaches a port may make topics: there is an end. Raises: LimitReachedError."""
    state, config = context.replica.state, context.config
    room = "Delete what nobody needs (ledgermq topic list, ledgermq topic delete)"
    if len(state.topics) >= config.max_topics:
        what = f"broker group {config.group} has {len(state.topics)} topics"
        raise LimitReachedError(what, config.max_topics, "max_topics", room)
    if len(state.queues) + queue_count > config.max_queues:
        what = f"broker group {config.group} has {len(state.queues)} queues, {queue_count} more are wanted"
        raise LimitReachedError(what, config.max_queues, "max_queues", room)


def check_room_for_group(context: NodeContext) -> None:
    """As `check_room_for_topic`: groups come into being by use. Raises: LimitReachedError."""
    count, config = len(context.replica.state.groups), context.config
    if count >= config.max_consumer_groups:
        what = f"broker group {config.group} has {count} consumer groups"
        room = "Delete those that nobody needs (ledgermq group list, ledgermq group delete)"
        raise LimitReachedError(what, config.max_consumer_groups, "max_consumer_groups", room)


async def ensure_topic(context: NodeContext, name: str) -> Topic | None:
    """Return the topic; create it when `auto_create_topics` is on; None when there is none.

    Raises: LimitReachedError, and what the pipeline raises.
    """
    topic = context.replica.state.topics.find(name)
    if topic is not None or not context.config.auto_create_topics or topic_problem(name):
        return topic
    if not context.leadership.ready:
        raise NotLeaderError(context.leadership.leader_id)
    check_room_for_topic(context, context.config.queues_per_topic)
    command = CreateTopic(name, context.config.queues_per_topic, MessageType.NORMAL)
    applied = await context.pipeline.run(command)
    created: Topic | None = applied.result.topic
    return created


async def ensure_group(context: NodeContext, name: str) -> ConsumerGroup:
    """Return the consumer group; groups come into being by use. Raises: LimitReachedError, and what the pipeline raises."""
    group = context.replica.state.groups.find(name)
    if group is not None:
        return group
    check_room_for_group(context)
    applied = await context.pipeline.run(CreateGroup(name))
    created: ConsumerGroup = applied.result.group
    return created

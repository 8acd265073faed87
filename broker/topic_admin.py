"""Finds topics and consumer groups, and creates those that may come into being by use. Runs on the leader."""

from __future__ import annotations

from ledgermq.raft.errors import NotLeaderError

from .commands import CreateGroup, CreateTopic, MessageType
from .context import NodeContext
from .groups import ConsumerGroup
from .messaging_validation import topic_problem
from .topics import Topic


async def ensure_topic(context: NodeContext, name: str) -> Topic | None:
    """Return the topic; create it when `auto_create_topics` is on; None when there is none.

    Raises: what the pipeline raises.
    """
    topic = context.replica.state.topics.find(name)
    if topic is not None or not context.config.auto_create_topics or topic_problem(name):
        return topic
    if not context.leadership.ready:
        raise NotLeaderError(context.leadership.leader_id)
    command = CreateTopic(name, context.config.queues_per_topic, MessageType.NORMAL)
    applied = await context.pipeline.run(command)
    created: Topic | None = applied.result.topic
    return created


async def ensure_group(context: NodeContext, name: str) -> ConsumerGroup:
    """Return the consumer group; groups come into being by use. Raises: what the pipeline raises."""
    group = context.replica.state.groups.find(name)
    if group is not None:
        return group
    applied = await context.pipeline.run(CreateGroup(name))
    created: ConsumerGroup = applied.result.group
    return created

"""Creation of topics and consumer groups on first use, and the limits on their number.

Runs on the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.raft.errors import NotLeaderError

from ..cluster.known_leader import Leadership
from ..config import BrokerConfig
from ..errors import LimitReachedError
from ..leader.pipeline import AppendPipeline
from ..replica import Replica
from ..state.commands import CreateConsumerGroup, CreateTopic, MessageType
from ..state.consumer_groups import ConsumerGroup
from ..state.topics import Topic
from ..wire.validation import topic_problem


@dataclass(eq=False, repr=False)
class Creation:
    """Finds topics and consumer groups by name, and creates missing ones where that is allowed."""

    _config: BrokerConfig
    _replica: Replica
    _pipeline: AppendPipeline
    _leadership: Leadership

    def check_room_for_topic(self, queue_count: int) -> None:
        """Check the limits: anyone who reaches a port may create topics. Raises: LimitReachedError."""
        state, config = self._replica.state, self._config
        room = "Delete what is not needed (ledgermq topic list, ledgermq topic delete)"
        if len(state.topics) >= config.max_topics:
            what = f"broker group {config.group} has {len(state.topics)} topics"
            raise LimitReachedError(what, config.max_topics, "max_topics", room)
        if len(state.queues) + queue_count > config.max_queues:
            what = (
                f"broker group {config.group} has {len(state.queues)} queues, {queue_count} more are wanted"
            )
            raise LimitReachedError(what, config.max_queues, "max_queues", room)

    def check_room_for_consumer_group(self) -> None:
        """Check the limit of consumer groups, which first use creates. Raises: LimitReachedError."""
        count, config = len(self._replica.state.groups), self._config
        if count >= config.max_consumer_groups:
            what = f"broker group {config.group} has {count} consumer groups"
            room = "Delete those that are not needed (ledgermq group list, ledgermq group delete)"
            raise LimitReachedError(what, config.max_consumer_groups, "max_consumer_groups", room)

    async def ensure_topic(self, name: str) -> Topic | None:
        """Return the topic, or None when there is none; create it first when `auto_create_topics` is on.

        Raises: LimitReachedError, and what the pipeline raises.
        """
        topic = self._replica.state.topics.find(name)
        if topic is not None or not self._config.auto_create_topics or topic_problem(name):
            return topic
        if not self._leadership.ready:
            raise NotLeaderError(self._leadership.leader_id)
        self.check_room_for_topic(self._config.queues_per_topic)
        command = CreateTopic(name, self._config.queues_per_topic, MessageType.NORMAL)
        applied = await self._pipeline.run(command)
        created: Topic | None = applied.result.topic
        return created

    async def ensure_consumer_group(self, name: str) -> ConsumerGroup:
        """Return the consumer group; create it if it does not exist.

        Raises: LimitReachedError, and what the pipeline raises.
        """
        consumer_group = self._replica.state.groups.find(name)
        if consumer_group is not None:
            return consumer_group
        self.check_room_for_consumer_group()
        applied = await self._pipeline.run(CreateConsumerGroup(name))
        created: ConsumerGroup = applied.result.group
        return created

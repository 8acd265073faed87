"""QueryRoute and QueryAssignment: the queues of a topic in all broker groups, for official clients.

Every node answers, from replicated state, the leader's view of liveness, and the nameservers' view of other
broker groups. Must not: rely on the client's choice of node.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq.proto import rocketmq_v2_pb2 as v2

from ..cluster.members import Members
from ..cluster.other_broker_groups import OtherBrokerGroups
from ..replica import Replica
from ..service.creation import Creation
from ..state.commands import BrokerGroupMode
from ..state.topics import Topic
from ..wire.route import BrokerGroupQueues, assignments, route
from ..wire.status import ok, topic_not_found
from ..wire.validation import check_consumer_group


@dataclass(frozen=True, slots=True)
class RoutedTopic:
    """A topic's queues in all broker groups, and the type of its messages."""

    broker_groups: list[BrokerGroupQueues]  # one per broker group, ordered by its name
    message_type: int


@dataclass(eq=False, repr=False)
class TopicAnswers:
    """Answers clients' queries about topics."""

    _broker_group: str
    _replica: Replica
    _creation: Creation
    _members: Members
    _others: OtherBrokerGroups

    def find(self, name: str, listener: str) -> RoutedTopic | None:
        """Return the queues of a topic; None when it is not known in any broker group."""
        own = self._replica.state.topics.find(name)
        return self._queues(name, own, listener)

    async def ensure(self, name: str, listener: str) -> RoutedTopic:
        """Do what `find` does, on the leader; create the topic in all broker groups where that is allowed.

        Raises: StatusError (there is none), LimitReachedError, and what the pipeline raises.
        """
        before = self._replica.state.topics.find(name)
        own = before or await self._creation.ensure_topic(name)
        if own is not None and before is None:
            await self._others.create(name)
        found = self._queues(name, own, listener) if own is not None else None
        if found is None:
            raise topic_not_found(name)
        return found

    def _queues(self, name: str, own: Topic | None, listener: str) -> RoutedTopic | None:
        others = self._others.queues(name, listener)
        if own is None and not others:
            return None
        broker_groups = [queues for queues, _ in others]
        if own is not None:
            broker_groups.append(self._own_queues(own, listener))
        message_type = int(own.message_type) if own is not None else others[0][1]
        return RoutedTopic(sorted(broker_groups, key=lambda each: each.broker_group), message_type)

    def _own_queues(self, topic: Topic, listener: str) -> BrokerGroupQueues:
        nodes = sorted(self._members.alive(listener), key=lambda node: node[0])
        writable = self._replica.state.mode is BrokerGroupMode.ACTIVE
        return BrokerGroupQueues(self._broker_group, topic.queue_count, nodes, writable)

    def route(self, message: v2.QueryRouteRequest, found: RoutedTopic) -> bytes:
        """Return the encoded QueryRouteResponse."""
        queues = route(message.topic, found.broker_groups, found.message_type)
        return bytes(v2.QueryRouteResponse(status=ok(), message_queues=queues).SerializeToString())

    def assignment(self, message: v2.QueryAssignmentRequest, found: RoutedTopic) -> bytes:
        """Return the encoded QueryAssignmentResponse. Raises: StatusError."""
        check_consumer_group(message.group.name)
        consumer_group = self._replica.state.groups.find(message.group.name)
        queues = assignments(
            message.topic, found.broker_groups, fifo=consumer_group is not None and consumer_group.fifo
        )
        return bytes(v2.QueryAssignmentResponse(status=ok(), assignments=queues).SerializeToString())

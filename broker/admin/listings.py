"""Listings of topics and consumer groups from this node's state, which the caller has ensured is fresh.

Raises (all): RefusedError.
"""

from __future__ import annotations

from collections import Counter

from ledgermq.proto import admin_pb2, log_pb2

from ..state.backlog import progress
from ..state.consumer_groups import ConsumerGroup
from ..state.machine import BrokerState
from ..state.memberships import ConsumerGroupMembership
from ..state.topics import Topic
from .broker_group_view import topic_info
from .changes import consumed_topics, known_consumer_group, known_topic
from .topic_holds import hold_infos


def list_topics(state: BrokerState, request: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
    """Return all topics, sorted by name."""
    topics = sorted(state.topics, key=lambda topic: topic.name)
    return admin_pb2.ListTopicsResponse(topics=[topic_info(topic) for topic in topics])


def describe_topic(
    state: BrokerState, request: admin_pb2.DescribeTopicRequest, holds_since: int = 0
) -> admin_pb2.DescribeTopicResponse:
    """Return a topic, the offset ranges of its queues, and its holds. `holds_since`: as in `hold_infos`."""
    topic = known_topic(state, request.topic)
    queues = [
        log_pb2.QueueOffset(
            topic=topic.name,
            queue_id=queue.key[1],
            offset=-1,
            begin_offset=queue.begin,
            end_offset=queue.end,
        )
        for queue in state.queues_of(topic)
    ]
    consumers = [
        admin_pb2.TopicProgress(group=row.group, topic=row.topic, lost=row.lost, parked=row.parked)
        for row in progress(state, topic=topic.name)
        if row.lost or row.parked
    ]
    deleted = sum(queue.begin_offset for queue in queues)
    if deleted and not any(key[1] == topic.topic_id for key in state.consumption.copy()):
        consumers.append(admin_pb2.TopicProgress(topic=topic.name, lost=deleted))
    holds = [
        info
        for name, held in sorted(state.holds.of_topic(topic.topic_id).items())
        for info in hold_infos(state, topic, name, held, holds_since)
    ]
    return admin_pb2.DescribeTopicResponse(
        topic=topic_info(topic), queues=queues, consumers=consumers, holds=holds
    )


def list_consumer_groups(
    state: BrokerState, request: admin_pb2.ListConsumerGroupsRequest
) -> admin_pb2.ListConsumerGroupsResponse:
    """Return all consumer groups, sorted by name."""
    consumer_groups = sorted(state.groups, key=lambda consumer_group: consumer_group.name)
    return admin_pb2.ListConsumerGroupsResponse(
        groups=[_consumer_group_info(state, consumer_group) for consumer_group in consumer_groups]
    )


def describe_consumer_group(
    state: BrokerState, request: admin_pb2.DescribeGroupRequest
) -> admin_pb2.DescribeGroupResponse:
    """Return a consumer group and its progress in one topic, or in all that it has consumed."""
    consumer_group = known_consumer_group(state, request.name)
    topics = consumed_topics(state, consumer_group, request.topic)
    queues = [progress for topic in topics for progress in _progress(state, consumer_group, topic)]
    return admin_pb2.DescribeGroupResponse(
        group=_consumer_group_info(state, consumer_group),
        queues=queues,
        members=_members(state, consumer_group),
    )


def _consumer_group_info(state: BrokerState, consumer_group: ConsumerGroup) -> admin_pb2.ConsumerGroupInfo:
    return admin_pb2.ConsumerGroupInfo(
        name=consumer_group.name,
        start_position=str(consumer_group.start),
        max_attempts=consumer_group.max_attempts,
        fifo=consumer_group.fifo,
        connected_clients=len(_membership(state, consumer_group).members),
    )


def _membership(state: BrokerState, consumer_group: ConsumerGroup) -> ConsumerGroupMembership:
    return state.memberships.get(consumer_group.group_id) or ConsumerGroupMembership()


def _members(state: BrokerState, consumer_group: ConsumerGroup) -> list[admin_pb2.GroupMember]:
    """Return the members of a queue-exclusive consumer group, oldest first."""
    membership = _membership(state, consumer_group)
    owned = Counter(owner.member for owner in membership.owners.values())
    return [
        admin_pb2.GroupMember(
            member_id=member.name,
            topics=member.topics,
            filter=member.filter,
            allocation=member.allocation,
            zone=member.zone,
            queues=owned[member.name],
            joined_ms=member.joined_at,
        )
        for member in membership.by_age()
    ]


def _progress(
    state: BrokerState, consumer_group: ConsumerGroup, topic: Topic
) -> list[admin_pb2.GroupQueueProgress]:
    membership = _membership(state, consumer_group)
    found = []
    for queue in state.queues_of(topic):
        committed = state.committed_offset(consumer_group.group_id, *queue.key)
        owner = membership.of(queue.key)
        found.append(
            admin_pb2.GroupQueueProgress(
                topic=topic.name,
                queue_id=queue.key[1],
                committed_offset=-1 if committed is None else committed,
                begin_offset=queue.begin,
                end_offset=queue.end,
                leased=state.leased_count(consumer_group.group_id, *queue.key),
                lost=state.lost_count(consumer_group.group_id, *queue.key),
                parked=state.parked_count(consumer_group.group_id, *queue.key),
                owner=owner.member,
                epoch=owner.epoch if owner.member else 0,
            )
        )
    return found

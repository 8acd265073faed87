"""Changes that meet another change on their way: the answer tells what was applied."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.admin.changes import ConsumerGroupChanges, TopicChanges
from ledgermq.broker.admin.listings import describe_topic
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.errors import LimitReachedError
from ledgermq.broker.leader.pipeline import Applied
from ledgermq.broker.refusals import RefusedError, refusal_of
from ledgermq.broker.service.creation import Creation
from ledgermq.broker.service.features import Features
from ledgermq.broker.state.commands import (
    KEEP_UNREAD,
    Command,
    CommitOffsets,
    DeleteConsumerGroup,
    DeleteTopic,
    TrimQueues,
    position_rows,
)
from ledgermq.proto import admin_pb2, route_pb2

from ..entry_log import Node


@pytest.mark.parametrize("first", [DeleteTopic(1), DeleteConsumerGroup(1)])
def test_a_reset_that_comes_behind_a_deletion_is_not_called_done(first: Command) -> None:
    node = Node()
    node.topic("orders")
    node.group("billing")

    async def apply(command: Command) -> Applied:
        node.command(first)
        return await node.run(command)

    nothing: Any = None
    groups = ConsumerGroupChanges(
        cast(Any, SimpleNamespace(state=node.state)), cast(Any, SimpleNamespace(run=apply)), nothing, nothing
    )
    request = admin_pb2.ResetOffsetsRequest(group="billing", topic="orders", earliest=True)
    with pytest.raises(RefusedError, match="deleted meanwhile") as refused:
        asyncio.run(groups.reset_offsets(request))
    assert refused.value.refusal.code == route_pb2.STALE_ROUTE


class Small:
    """A node that leads, with room for little."""

    def __init__(self, **limits: Any) -> None:
        self.node = Node()
        self.peers: list[Any] = []
        leadership = Leadership("n1")
        leadership.on_ready(1)
        config = BrokerConfig(auto_create_topics=True, node_id="n1", **limits)
        replica: Any = SimpleNamespace(state=self.node.state)
        pipeline: Any = self.node
        raft: Any = SimpleNamespace(status=lambda: SimpleNamespace(peers=self.peers))
        nothing: Any = None
        self.creation = Creation(config, replica, pipeline, leadership)
        features = Features(config, raft, replica, pipeline, leadership)
        self.topics = TopicChanges(config, replica, pipeline, self.creation, features)
        self.groups = ConsumerGroupChanges(replica, pipeline, self.creation, nothing)

    def create_topic(self, name: str, queues: int = 4) -> None:
        request = admin_pb2.CreateTopicRequest(topic=name, queue_count=queues, if_not_exists=True)
        asyncio.run(self.topics.create(request))

    def create_group(self, name: str) -> None:
        info = admin_pb2.ConsumerGroupInfo(name=name)
        asyncio.run(self.groups.create(admin_pb2.CreateGroupRequest(group=info)))


def test_one_more_topic_than_the_limit_is_refused_by_command_and_by_use_until_one_is_deleted() -> None:
    small = Small(max_topics=2)
    small.create_topic("a")
    assert asyncio.run(small.creation.ensure_topic("b")) is not None
    with pytest.raises(LimitReachedError, match=r"max_topics.*ledgermq topic delete") as refused:
        small.create_topic("c")
    assert not refusal_of(refused.value).retryable
    with pytest.raises(LimitReachedError, match="max_topics"):
        asyncio.run(small.creation.ensure_topic("c"))
    small.create_topic("b")  # it is there
    small.node.command(DeleteTopic(1))
    small.create_topic("c")


def test_all_topics_together_have_a_limit_of_queues() -> None:
    small = Small(max_queues=10)
    small.create_topic("a", 7)
    with pytest.raises(LimitReachedError, match="7 queues, 4 more are wanted; the limit is 10"):
        small.create_topic("b", 4)
    small.create_topic("b", 3)


def test_one_more_consumer_group_than_the_limit_is_refused_by_command_and_by_use() -> None:
    small = Small(max_consumer_groups=1)
    asyncio.run(small.creation.ensure_consumer_group("a"))
    asyncio.run(small.creation.ensure_consumer_group("a"))
    with pytest.raises(LimitReachedError, match="max_consumer_groups"):
        asyncio.run(small.creation.ensure_consumer_group("b"))
    with pytest.raises(LimitReachedError, match="max_consumer_groups"):
        small.create_group("b")


@pytest.mark.parametrize("kind", [route_pb2.DELAY, route_pb2.TRANSACTION])
def test_a_topic_of_a_type_that_is_not_built_is_refused(kind: route_pb2.TopicMessageType) -> None:
    small = Small()
    request = admin_pb2.CreateTopicRequest(topic="later", queue_count=1, message_type=kind)
    with pytest.raises(RefusedError, match="not built yet: nothing could be sent") as refused:
        asyncio.run(small.topics.create(request))
    assert refused.value.refusal.code == route_pb2.NOT_SUPPORTED
    assert small.node.state.topics.find("later") is None
    request.message_type = route_pb2.MIXED
    asyncio.run(small.topics.create(request))


def test_a_topic_name_may_have_dots_but_not_in_the_first_place() -> None:
    small = Small()
    small.create_topic("com.acme.orders")
    assert small.node.state.topics.named("com.acme.orders").folder == "com.acme.orders@1"
    for name in (".hidden", "..", "."):
        with pytest.raises(RefusedError, match="not in the first place"):
            small.create_topic(name)
    small.create_group("com.acme")


def test_a_topic_keeps_what_is_unread_only_when_every_node_knows_how() -> None:
    small = Small()
    old = SimpleNamespace(node_id="n2", feature_level=KEEP_UNREAD - 1)
    small.peers.append(old)
    create_kept = admin_pb2.CreateTopicRequest(topic="orders", keep_unread=True)
    update = admin_pb2.UpdateTopicRequest(topic="plain", keep_unread=True)
    small.create_topic("plain")
    for change in (lambda: small.topics.create(create_kept), lambda: small.topics.update(update)):
        with pytest.raises(RefusedError, match=r"nodes of an older version.*n2") as refused:
            asyncio.run(change())
        assert refused.value.refusal.code == route_pb2.NOT_SUPPORTED
    assert [(each.name, each.keep_unread) for each in small.node.state.topics] == [("plain", False)]

    old.feature_level = KEEP_UNREAD
    assert asyncio.run(small.topics.create(create_kept)).topic.keep_unread
    assert asyncio.run(small.topics.update(update)).topic.keep_unread
    update.retention_ms, update.keep_unread = 5, False
    changed = asyncio.run(small.topics.update(update)).topic
    assert (changed.keep_unread, changed.retention_ms) == (False, 5)
    with pytest.raises(RefusedError, match="nothing to change was named"):
        asyncio.run(small.topics.update(admin_pb2.UpdateTopicRequest(topic="plain")))
    create_kept.perhaps_done = True
    assert asyncio.run(small.topics.create(create_kept)).topic.keep_unread, "this very topic"
    create_kept.keep_unread = False
    with pytest.raises(RefusedError, match="exists already"):
        asyncio.run(small.topics.create(create_kept))


def test_what_was_deleted_of_a_topic_that_nobody_consumes_is_told() -> None:
    node = Node()
    topic, group = node.topic("orders", queues=2), node.group("billing")
    node.fill(topic, 0, 5)
    node.fill(topic, 1, 5)
    node.command(TrimQueues(position_rows([(topic, 0, 2), (topic, 1, 4)])))
    request = admin_pb2.DescribeTopicRequest(topic="orders")
    assert [(each.group, each.lost) for each in describe_topic(node.state, request).consumers] == [("", 6)]
    node.command(CommitOffsets(group, position_rows([(topic, 0, 5)])))
    assert not describe_topic(node.state, request).consumers

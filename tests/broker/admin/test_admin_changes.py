"""Changes that meet another change on their way: the answer tells what was applied."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.admin.changes import create_group, create_topic, reset_offsets, update_topic
from ledgermq.broker.admin.reads import describe_topic
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.errors import LimitReachedError
from ledgermq.broker.leader.pipeline import Applied
from ledgermq.broker.refusals import RefusedError, refusal_of
from ledgermq.broker.service.ensure import ensure_group, ensure_topic
from ledgermq.broker.state.commands import (
    KEEP_UNREAD,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    TrimQueues,
    position_rows,
)
from ledgermq.proto import admin_pb2, route_pb2

from ..entry_log import Node


@pytest.mark.parametrize("first", [DeleteTopic(1), DeleteGroup(1)])
def test_a_reset_that_comes_behind_a_deletion_is_not_called_done(first: Command) -> None:
    node = Node()
    node.topic("orders")
    node.group("billing")

    async def apply(command: Command) -> Applied:
        node.command(first)
        effects = node.command(command)
        return Applied(effects.results[0], effects.index)

    context: Any = SimpleNamespace(
        replica=SimpleNamespace(state=node.state), pipeline=SimpleNamespace(run=apply)
    )
    request = admin_pb2.ResetOffsetsRequest(group="billing", topic="orders", earliest=True)
    with pytest.raises(RefusedError, match="deleted meanwhile") as refused:
        asyncio.run(reset_offsets(context, request))
    assert refused.value.refusal.code == route_pb2.STALE_ROUTE


def _small(**limits: Any) -> Any:
    """A node that leads, with room for little."""
    node = Node()

    async def apply(command: Command) -> Applied:
        effects = node.command(command)
        return Applied(effects.results[0], effects.index)

    return SimpleNamespace(
        replica=SimpleNamespace(state=node.state),
        pipeline=SimpleNamespace(run=apply),
        leadership=SimpleNamespace(ready=True),
        config=BrokerConfig(auto_create_topics=True, **limits),
    )


def _create_topic(context: Any, name: str, queues: int = 4) -> None:
    request = admin_pb2.CreateTopicRequest(topic=name, queue_count=queues, if_not_exists=True)
    asyncio.run(create_topic(context, request))


def test_one_more_topic_than_the_limit_is_refused_by_command_and_by_use_until_one_is_deleted() -> None:
    context = _small(max_topics=2)
    _create_topic(context, "a")
    assert asyncio.run(ensure_topic(context, "b")) is not None
    with pytest.raises(LimitReachedError, match=r"max_topics.*ledgermq topic delete") as refused:
        _create_topic(context, "c")
    assert not refusal_of(refused.value).retryable
    with pytest.raises(LimitReachedError, match="max_topics"):
        asyncio.run(ensure_topic(context, "c"))
    _create_topic(context, "b")  # it is there
    asyncio.run(context.pipeline.run(DeleteTopic(1)))
    _create_topic(context, "c")


def test_all_topics_together_have_a_limit_of_queues() -> None:
    context = _small(max_queues=10)
    _create_topic(context, "a", 7)
    with pytest.raises(LimitReachedError, match="7 queues, 4 more are wanted; the limit is 10"):
        _create_topic(context, "b", 4)
    _create_topic(context, "b", 3)


def test_one_more_consumer_group_than_the_limit_is_refused_by_command_and_by_use() -> None:
    context = _small(max_consumer_groups=1)
    asyncio.run(ensure_group(context, "a"))
    asyncio.run(ensure_group(context, "a"))
    with pytest.raises(LimitReachedError, match="max_consumer_groups"):
        asyncio.run(ensure_group(context, "b"))
    with pytest.raises(LimitReachedError, match="max_consumer_groups"):
        asyncio.run(
            create_group(context, admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroupInfo(name="b")))
        )


@pytest.mark.parametrize("kind", [route_pb2.DELAY, route_pb2.TRANSACTION])
def test_a_topic_of_a_type_that_is_not_built_is_refused(kind: route_pb2.TopicMessageType) -> None:
    context = _small()
    request = admin_pb2.CreateTopicRequest(topic="later", queue_count=1, message_type=kind)
    with pytest.raises(RefusedError, match="not built yet: nothing could be sent") as refused:
        asyncio.run(create_topic(context, request))
    assert refused.value.refusal.code == route_pb2.NOT_SUPPORTED
    assert context.replica.state.topics.find("later") is None
    request.message_type = route_pb2.MIXED
    asyncio.run(create_topic(context, request))


def test_a_topic_name_may_have_dots_but_not_in_the_first_place() -> None:
    context = _small()
    _create_topic(context, "com.acme.orders")
    assert context.replica.state.topics.named("com.acme.orders").folder == "com.acme.orders@1"
    for name in (".hidden", "..", "."):
        with pytest.raises(RefusedError, match="not in the first place"):
            _create_topic(context, name)
    asyncio.run(
        create_group(
            context, admin_pb2.CreateGroupRequest(group=admin_pb2.ConsumerGroupInfo(name="com.acme"))
        )
    )


def test_a_topic_keeps_what_is_unread_only_when_every_node_knows_how() -> None:
    context = _small()
    old = SimpleNamespace(node_id="n2", feature_level=KEEP_UNREAD - 1)
    context.raft = SimpleNamespace(status=lambda: SimpleNamespace(peers=[old]))
    create_kept = admin_pb2.CreateTopicRequest(topic="orders", keep_unread=True)
    update = admin_pb2.UpdateTopicRequest(topic="plain", keep_unread=True)
    _create_topic(context, "plain")
    for change in (lambda: create_topic(context, create_kept), lambda: update_topic(context, update)):
        with pytest.raises(RefusedError, match=r"nodes of an older version.*n2") as refused:
            asyncio.run(change())
        assert refused.value.refusal.code == route_pb2.NOT_SUPPORTED
    assert [(each.name, each.keep_unread) for each in context.replica.state.topics] == [("plain", False)]

    old.feature_level = KEEP_UNREAD
    assert asyncio.run(create_topic(context, create_kept)).topic.keep_unread
    assert asyncio.run(update_topic(context, update)).topic.keep_unread
    update.retention_ms, update.keep_unread = 5, False
    changed = asyncio.run(update_topic(context, update)).topic
    assert (changed.keep_unread, changed.retention_ms) == (False, 5)
    with pytest.raises(RefusedError, match="nothing to change was named"):
        asyncio.run(update_topic(context, admin_pb2.UpdateTopicRequest(topic="plain")))
    create_kept.perhaps_done = True
    assert asyncio.run(create_topic(context, create_kept)).topic.keep_unread, "this very topic"
    create_kept.keep_unread = False
    with pytest.raises(RefusedError, match="exists already"):
        asyncio.run(create_topic(context, create_kept))


def test_what_was_deleted_of_a_topic_that_nobody_consumes_is_told() -> None:
    node = Node()
    topic, group = node.topic("orders", queues=2), node.group("billing")
    node.fill(topic, 0, 5)
    node.fill(topic, 1, 5)
    node.command(TrimQueues(position_rows([(topic, 0, 2), (topic, 1, 4)])))
    context: Any = SimpleNamespace(replica=SimpleNamespace(state=node.state))
    request = admin_pb2.DescribeTopicRequest(topic="orders")
    assert [(each.group, each.lost) for each in describe_topic(context, request).consumers] == [("", 6)]
    node.command(CommitOffsets(group, position_rows([(topic, 0, 5)])))
    assert not describe_topic(context, request).consumers

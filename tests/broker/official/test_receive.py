"""What a receive asks for: filters and how long it may wait."""

from __future__ import annotations

import weakref

import pytest
from google.protobuf.duration_pb2 import Duration

from ledgermq.broker.leader.leader_view import IN_USE_MS, MAX_FILTERS, MAX_WATCHED, SAID_AGAIN_MS, FilterWatch
from ledgermq.broker.official.receive_at_leader import check_not_exclusive, polling_seconds, tags_of
from ledgermq.broker.state.commands import JoinConsumerGroup, LeaveConsumerGroup
from ledgermq.broker.wire.status import StatusError
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import hash_text

from ..entry_log import Node
from .test_receive_lost import Rig


def test_tags_are_split_and_hashed() -> None:
    assert tags_of(v2.FilterExpression(type=v2.TAG, expression="a || b")) == frozenset(
        (hash_text("a"), hash_text("b"))
    )
    for everything in ("", "*", " * ", "a||*"):
        assert tags_of(v2.FilterExpression(type=v2.TAG, expression=everything)) is None


def test_a_filter_without_a_tag_is_illegal_and_sql_is_not_built() -> None:
    with pytest.raises(StatusError) as error:
        tags_of(v2.FilterExpression(type=v2.TAG, expression="||"))
    assert error.value.code == v2.ILLEGAL_FILTER_EXPRESSION
    with pytest.raises(StatusError, match="longer than 4,096"):
        tags_of(v2.FilterExpression(type=v2.TAG, expression="a||" * 2_000))
    with pytest.raises(StatusError) as error:
        tags_of(v2.FilterExpression(type=v2.SQL, expression="a > 1"))
    assert error.value.code == v2.NOT_IMPLEMENTED


def test_a_poll_ends_half_a_second_before_the_deadline_and_after_20_seconds() -> None:
    request = v2.ReceiveMessageRequest()
    request.long_polling_timeout.FromSeconds(30)
    assert polling_seconds(request, 100) == 20
    assert polling_seconds(request, 10) == 9.5
    assert polling_seconds(request, 0.1) == 0


def test_a_client_that_does_not_want_to_wait_is_answered_at_once() -> None:
    request = v2.ReceiveMessageRequest()
    request.long_polling_timeout.FromMilliseconds(0)
    assert polling_seconds(request, 10) == 0


def test_a_client_that_names_no_polling_time_gets_it_from_its_deadline() -> None:
    assert polling_seconds(v2.ReceiveMessageRequest(), 13) == 11.5


def test_a_group_is_not_consumed_under_leases_where_its_members_own_the_queues() -> None:
    node = Node()
    group = node.state.groups.get(node.group())
    assert group is not None
    node.command(JoinConsumerGroup(group.group_id, "a", ("orders",)))
    with pytest.raises(StatusError, match="use another consumer group, or stop them first") as error:
        check_not_exclusive(node.state, group, "orders")
    assert error.value.code == v2.ILLEGAL_CONSUMER_GROUP
    check_not_exclusive(node.state, group, "other")
    node.command(LeaveConsumerGroup(group.group_id, ("a",)))
    check_not_exclusive(node.state, group, "orders")


def named(watch: FilterWatch, text: str, now: int, group: int = 1, topic: int = 1) -> list[str]:
    return watch.look(group, topic, tags_of(v2.FilterExpression(type=v2.TAG, expression=text)), text, now)


def test_consumers_of_a_group_that_filter_differently_are_told_now_and_then() -> None:
    watch = FilterWatch()
    assert named(watch, "a || b", 0) == named(watch, "b||a", 1) == [], "the same, written otherwise"
    assert named(watch, "*", 2, group=2) == named(watch, "*", 2, topic=2) == [], "another group or topic"
    assert named(watch, " ", 3) == ["'*'", "'b||a'"]
    assert named(watch, "*", 4) == named(watch, "a||b", SAID_AGAIN_MS) == []
    assert named(watch, "*", 3 + SAID_AGAIN_MS) == ["'*'", "'a||b'"]


async def test_the_leader_says_in_its_log_and_to_who_gets_nothing_what_a_group_loses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    await rig.prepare()
    everything = rig.receive()
    await (await rig.granted(everything))
    x = v2.FilterExpression(type=v2.TAG, expression="x")
    frames = [f async for f in rig.receive(filter_expression=x, long_polling_timeout=Duration())]
    assert len(frames) == 2, "a status and the time, no message"
    told = v2.ReceiveMessageResponse.FromString(frames[0]).status
    assert told.code == v2.MESSAGE_NOT_FOUND
    text = (
        "consumers of consumer group \"billing\" filter topic \"a\" differently: by '*', by 'x'. What one of "
        "them leaves out"
    )
    assert text in told.message and text in caplog.text
    await everything.aclose()


def test_a_filter_that_is_out_of_use_differs_from_none() -> None:
    watch = FilterWatch()
    assert named(watch, "a", 0) == named(watch, "b", IN_USE_MS) == named(watch, "b", IN_USE_MS + 1) == []
    assert named(watch, "a", IN_USE_MS + 2) == ["'a'", "'b'"]


def test_a_filter_of_very_many_tags_is_not_kept() -> None:
    """A request may have megabytes of them."""
    watch, tags = FilterWatch(), frozenset(range(10_000))
    kept = weakref.ref(tags)
    assert watch.look(1, 1, tags, "0 || 1", 0) == []
    del tags
    assert kept() is None
    assert watch.look(1, 1, frozenset(range(10_000)), "1 || 0", 1) == [], "the same"
    assert watch.look(1, 1, frozenset([1]), "1", 2) == ["'1 || 0'", "'1'"]


def test_what_is_known_of_filters_is_bounded_and_steers_no_terminal() -> None:
    watch = FilterWatch()
    for number in range(MAX_WATCHED + 10):
        named(watch, "*", 0, group=number)
    assert len(watch._watched) == MAX_WATCHED
    for number in range(MAX_FILTERS + 10):
        named(watch, f"tag-{number}", number, group=MAX_WATCHED)
    (told,) = [named(watch, "\x1b[2J\n" + "x" * 1000, SAID_AGAIN_MS + 100, group=MAX_WATCHED)]
    assert len(told) == MAX_FILTERS
    assert all(len(text) <= 80 and text.isprintable() for text in told)

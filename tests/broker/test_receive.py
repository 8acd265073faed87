"""What a receive asks for: filters and how long it may wait."""

from __future__ import annotations

import pytest

from ledgermq.broker.commands import JoinGroup, LeaveGroup
from ledgermq.broker.messaging_status import StatusError
from ledgermq.broker.receive import check_not_exclusive, polling_seconds, tags_of
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import hash_text

from .entry_log import Node


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
    node.command(JoinGroup(group.group_id, "a", ("orders",)))
    with pytest.raises(StatusError, match="use another group, or stop them first") as error:
        check_not_exclusive(node.state, group, "orders")
    assert error.value.code == v2.ILLEGAL_CONSUMER_GROUP
    check_not_exclusive(node.state, group, "other")
    node.command(LeaveGroup(group.group_id, ("a",)))
    check_not_exclusive(node.state, group, "orders")

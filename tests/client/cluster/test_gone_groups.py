"""A broker group without a running node, which the nameserver lists no more: it was not removed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator

import pytest

from ledgermq.client import Admin, Message, Producer
from ledgermq.client.admin.broker_groups import BrokerGroupAdmin
from ledgermq.client.cli import run_cli
from ledgermq.client.errors import (
    BrokerGroupsGoneError,
    ConsumerGroupNotFoundError,
    NoBrokersError,
    UsageError,
)
from ledgermq.client.trace.events import TRACE_TOPIC
from ledgermq.proto.route_pb2 import MODE_REMOVED

from ..fakes import FakeCluster, FakeGroup
from ..served import Served, served

TOPICS = {"orders": 1, TRACE_TOPIC: 1}


def two_groups() -> FakeCluster:
    return FakeCluster(FakeGroup("g0", TOPICS), FakeGroup("g1", TOPICS))


CALLS: dict[str, Callable[[BrokerGroupAdmin], Awaitable[object]]] = {
    "topics": lambda admin: admin.topics(),
    "describe topic": lambda admin: admin.describe_topic("orders"),
    "update topic": lambda admin: admin.update_topic("orders", retention_ms=5),
    "delete topic": lambda admin: admin.delete_topic("orders"),
    "groups": lambda admin: admin.consumer_groups(),
    "describe group": lambda admin: admin.describe_group("billing"),
    "members": lambda admin: admin.group_members("billing"),
    "delete group": lambda admin: admin.delete_group("billing"),
    "reset": lambda admin: admin.reset_offsets("billing", "orders", "earliest"),
    "deliveries": lambda admin: admin.deliveries("billing"),
    "lag": lambda admin: admin.progress(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_what_needs_every_group_names_the_one_that_is_gone_and_changes_nothing(
    call: Callable[[BrokerGroupAdmin], Awaitable[object]],
) -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        left, gone = cluster.groups
        await admin.create_group("billing")
        for group in (left, gone):
            group.queues[1, 0].end, group.committed["billing", "orders", 0] = 9, 7
        await cluster.expire(gone)
        before = (dict(left.topics), dict(left.groups), dict(left.retention_ms), dict(left.committed))
        with pytest.raises(
            BrokerGroupsGoneError, match=r'"g1" does not answer.*Nothing was changed'
        ) as caught:
            await call(admin)
        assert (caught.value.groups, caught.value.retryable) == (("g1",), True)
        assert (left.topics, left.groups, left.retention_ms, left.committed) == before
        await cluster.revive(gone)
        await call(admin)


async def test_a_group_that_is_gone_is_said_to_be_down_where_it_is_asked_for_by_its_name() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await cluster.expire(cluster.groups[1])
        for change in (admin.group("g1"), admin.drain("g1"), admin.remove_group("g1")):
            with pytest.raises(BrokerGroupsGoneError) as caught:
                await change
            text = str(caught.value)
            assert 'broker group "g1" does not answer: no node of it is up (last heard: ' in text
            assert "It is down, not removed. Nothing was changed. Start its nodes and repeat it" in text
            assert text.endswith("It is lost for good: ledgermq cluster forget-group g1")
        with pytest.raises(BrokerGroupsGoneError, match='"g1" does not answer'):
            await admin.transfer_leadership("g1")
        with pytest.raises(UsageError, match='"g2" is not known'):
            await admin.group("g2")


async def test_lag_is_told_of_the_groups_that_are_up_and_names_the_one_that_is_gone() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await admin.create_group("billing")
        await cluster.expire(cluster.groups[1])
        found = await admin.lag()
        assert list(found.silent) == ["g1"]
        assert {broker_group for broker_group, _ in found.rows} <= {"g0"}


async def test_a_group_that_was_removed_is_not_missed() -> None:
    async with two_groups() as cluster, BrokerGroupAdmin(cluster.address) as admin:
        cluster.set_mode(cluster.groups[1], MODE_REMOVED)
        assert await admin.gone_groups() == []
        await admin.create_group("billing")
        for name in ("topics", "update topic", "delete topic", "lag", "delete group"):
            await CALLS[name](admin)
        with pytest.raises(ConsumerGroupNotFoundError):
            await admin.delete_group("billing")


async def test_what_is_good_in_the_groups_that_are_up_goes_on_without_the_others() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        await cluster.expire(cluster.groups[1])
        assert await admin.gone_groups() == ["g1"]
        assert await admin.create_topic("new", 4) == 4
        await admin.create_group("billing")
        assert [name for name, _ in await admin.clean()] == ["g0"]


async def test_a_cluster_that_is_wholly_down_has_no_brokers() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        for group in cluster.groups:
            await cluster.expire(group)
        for call in (admin.topics(), admin.query_messages("orders"), admin.gone_groups()):
            with pytest.raises(NoBrokersError):
                await call


async def test_no_node_of_a_broker_group_that_is_gone_is_asked() -> None:
    stranger = FakeGroup("g0", TOPICS)
    async with two_groups() as cluster, FakeCluster(stranger) as other:
        gone = cluster.groups[1]
        await cluster.expire(gone)
        port = int(cluster.node(group="g1").address.rpartition(":")[2])
        await other.node().stop()
        await other.node().start(port)
        async with Admin(cluster.address) as admin:
            with pytest.raises(BrokerGroupsGoneError):
                await admin.delete_topic("orders")
            assert not (await admin.query_messages("orders")).is_complete
        assert "orders" in stranger.topics and other.node().queries == []


# --- the command line ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Served[FakeCluster]]:
    with served(two_groups) as running:
        yield running


def send(cluster: Served[FakeCluster]) -> str:
    async def work() -> str:
        async with Producer(cluster.address) as producer:
            return (await producer.send(Message("orders", b"hello"))).message_id

    return cluster.run(work())


@pytest.mark.parametrize("arguments", [["message", "get"], ["message", "trace"]])
def test_a_message_that_may_be_in_a_gone_group_is_not_called_unknown(
    arguments: list[str], cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    message_id = send(cluster)
    (holder,) = [group for group in cluster.cluster.groups if group.stored()]
    cluster.run(cluster.cluster.expire(holder))
    assert run_cli([*arguments, message_id, "-n", cluster.address]) != 0
    printed = capsys.readouterr().err
    assert f"broker group {holder.name} does not answer" in " ".join(printed.split())
    assert "never stored" not in printed


def test_a_query_says_that_it_is_incomplete(
    cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run(cluster.cluster.expire(cluster.cluster.groups[1]))
    assert run_cli(["message", "query", "-t", "orders", "--json", "-n", cluster.address]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["silent_groups"] == ["g1"]
    assert "incomplete: broker group g1 does not answer: no node of it is up" in printed.err


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("topic list", "orders"),
        ("topic describe orders", "g0"),
        ("group list", "billing"),
        ("group describe billing", "g0"),
        ("group lag", "billing"),
    ],
)
def test_what_the_others_hold_is_shown_with_a_warning_that_names_the_group_that_is_gone(
    command: str, shown: str, cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command.split()
    assert run_cli(["group", "create", "billing", "-n", cluster.address]) == 0
    left, gone = cluster.cluster.groups
    for group in (left, gone):
        group.committed["billing", "orders", 0] = 0
    cluster.run(cluster.cluster.expire(gone))
    capsys.readouterr()
    assert run_cli([*arguments, "-n", cluster.address]) == 0
    printed = capsys.readouterr()
    assert shown in printed.out
    assert "incomplete: broker group g1 does not answer: no node of it is up (last heard: " in printed.err
    assert "cluster forget-group g1" in printed.err
    assert run_cli([*arguments, "--json", "-n", cluster.address]) == 0
    found = json.loads(capsys.readouterr().out)
    for row in found if isinstance(found, list) else [found]:
        assert row["silent_groups"] == ["g1"]
    cluster.run(cluster.cluster.revive(gone))
    assert run_cli([*arguments, "-n", cluster.address]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("arguments", [["topic", "list"], ["group", "list"]], ids=" ".join)
def test_an_empty_list_of_the_others_does_not_say_that_there_is_nothing(
    arguments: list[str], cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    for group in cluster.cluster.groups:
        group.topics.clear()
    cluster.run(cluster.cluster.expire(cluster.cluster.groups[1]))
    assert run_cli([*arguments, "-n", cluster.address]) == 0
    printed = capsys.readouterr()
    assert (printed.out, "broker group g1 does not answer" in printed.err) == ("", True)


def test_a_topic_that_the_group_that_is_gone_may_have_is_not_called_missing(
    cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run(cluster.cluster.expire(cluster.cluster.groups[1]))
    for arguments in (["topic", "describe", "order"], ["group", "describe", "billing"]):
        assert run_cli([*arguments, "-n", cluster.address]) == 1
        printed = capsys.readouterr().err
        assert '"g1" does not answer' in printed and "does not exist" not in printed


@pytest.mark.parametrize(
    ("command", "named"),
    [("topic create news", 'topic "news"'), ("group create billing", 'consumer group "billing"')],
)
def test_what_is_created_meanwhile_says_which_group_did_not_get_it(
    command: str, named: str, cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    gone = cluster.cluster.groups[1]
    cluster.run(cluster.cluster.expire(gone))
    assert run_cli([*command.split(), "-n", cluster.address]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{named} is there")
    assert printed.err == (
        f"broker group g1 is down and did not get {named}. "
        "When its nodes run again: ledgermq cluster add-group g1\n"
    )
    cluster.run(cluster.cluster.revive(gone))
    assert run_cli([*command.split(), "--if-not-exists", "-n", cluster.address]) == 0
    assert capsys.readouterr().err == ""


def test_a_deletion_fails_and_says_so(
    cluster: Served[FakeCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run(cluster.cluster.expire(cluster.cluster.groups[1]))
    assert run_cli(["topic", "delete", "orders", "--yes", "-n", cluster.address]) != 0
    printed = capsys.readouterr()
    assert "is deleted" not in printed.out and '"g1" does not answer' in " ".join(printed.err.split())
    assert all("orders" in group.topics for group in cluster.cluster.groups)

"""Growing and shrinking a cluster by broker groups, against fake nodes on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ledgermq.client import BrokerGroupAdmin
from ledgermq.client.errors import BrokerGroupsGoneError, NoQuorumError, RefusedError, RouteError, UsageError
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.admin_pb2 import ConsumerGroupInfo

from ..fakes import FakeCluster, FakeGroup, FakeQueue
from ..reading import fill


def old_and_new() -> tuple[FakeGroup, FakeGroup]:
    """A group with two topics, of which one is consumed, and one that has just come."""
    old, new = FakeGroup("g0", {"orders": 2, "news": 1}), FakeGroup("g1")
    old.groups["billing"] = ConsumerGroupInfo(name="billing", start_position="latest", max_attempts=5)
    old.committed["billing", "orders", 0] = 0
    return old, new


@asynccontextmanager
async def with_a_third() -> AsyncIterator[tuple[FakeCluster, BrokerGroupAdmin, FakeGroup, FakeGroup]]:
    """Yield `old_and_new` with a third group, which has the topics of the old one: the new and the third."""
    old, new = old_and_new()
    third = FakeGroup("g2", {"orders": 2, "news": 1})
    async with (
        FakeCluster(old, new, third) as cluster,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        yield cluster, admin, new, third


async def test_a_new_group_gets_topics_and_consumer_groups_which_begin_at_its_first_message() -> None:
    old, new = old_and_new()
    async with FakeCluster(old, new) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        added = await admin.add_group("g1")
        assert [info.name for info in added.topics.missing] == ["news", "orders"]
        assert {name: queues for name, (_, queues) in new.topics.items()} == {"orders": 2, "news": 1}
        assert new.groups["billing"].max_attempts == 5
        assert new.committed == {("billing", "orders", 0): 0, ("billing", "orders", 1): 0}
        assert new.modes == [pb.MODE_DRAINING, pb.MODE_ACTIVE], "no message came in between"
        again = await admin.add_group("g1")
        assert again.topics.existing == ["news", "orders"]
        assert again.consumer_groups.existing == ["billing"]
        assert not (again.topics.missing or again.conflicts)
        assert len(new.modes) == 2


async def test_a_dry_run_and_conflicts_change_nothing() -> None:
    old, new = old_and_new()
    async with FakeCluster(old, new) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        added = await admin.add_group("g1", dry_run=True)
        assert len(added.topics.missing) == 2
        assert (new.topics, new.groups, new.modes) == ({}, {}, [])
        new.create_topic("orders", 9)
        added = await admin.add_group("g1")
        assert added.conflicts == ['topic "orders" differs (g0: 2 queues, normal; g1: 9 queues, normal)']
        assert {name: queues for name, (_, queues) in new.topics.items()} == {"orders": 9, "news": 1}


async def test_only_some_topics_of_one_group_are_taken() -> None:
    old, new = old_and_new()
    third = FakeGroup("g2", {"orders": 5})
    async with FakeCluster(old, new, third) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        added = await admin.add_group("g1", source="g0", topics=["orders"])
        assert not added.conflicts
        assert new.topics.keys() == {"orders"}
        with pytest.raises(UsageError, match="no other broker group has order"):
            await admin.add_group("g1", topics=["order"])
        with pytest.raises(UsageError, match="not another one"):
            await admin.add_group("g1", source="g1")
        with pytest.raises(UsageError, match="Known: g0, g1, g2"):
            await admin.add_group("g7")


async def test_a_group_that_is_drained_gets_topics_and_stays_drained() -> None:
    old, new = old_and_new()
    new.mode = pb.MODE_DRAINING
    async with FakeCluster(old, new) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        assert (await admin.add_group("g1")).draining
        assert (new.mode, new.modes) == (pb.MODE_DRAINING, [])
        assert len(new.topics) == 2


async def test_a_drain_that_the_route_does_not_tell_yet_is_not_undone() -> None:
    old, new = old_and_new()
    async with FakeCluster(old, new) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        new.mode = pb.MODE_DRAINING  # by somebody else, a moment ago
        assert (await admin.add_group("g1")).draining
        assert new.mode == pb.MODE_DRAINING
        assert len(new.topics) == 2


async def test_a_group_is_drained_taken_back_and_removed() -> None:
    groups = FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        with pytest.raises(RefusedError, match="drain it first"):
            await admin.remove_group("g0")
        assert (await admin.drain("g0")).changed
        assert not (await admin.drain("g0")).changed
        assert (await admin.undrain("g0")).changed
        await admin.drain("g0")
        await admin.remove_group("g0")
        assert [each.name for each in await admin.groups()] == ["g1"]
        with pytest.raises(UsageError, match="--node HOST:8082"):
            await admin.undrain("g0")
        assert (await admin.undrain("g0", node=cluster.node("n1", "g0").address)).changed


async def test_the_last_group_that_takes_messages_is_not_drained_unasked() -> None:
    groups = FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1})
    groups[1].mode = pb.MODE_DRAINING
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        with pytest.raises(UsageError, match="no other broker group takes messages"):
            await admin.drain("g0")
        assert (await admin.drain("g0", even_the_last=True)).changed


async def test_a_group_whose_topic_no_other_group_takes_messages_of_is_not_drained_unasked() -> None:
    groups = FakeGroup("g0", {"orders": 1, "news": 1}), FakeGroup("g1", {"orders": 1})
    groups[0].create_topic("RMQ_SYS_TRACE_TOPIC", 1)
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        with pytest.raises(UsageError, match=r"takes messages of: news \(g1 does not have it\)") as refused:
            await admin.drain("g0")
        assert "ledgermq cluster add-group g1" in refused.value.next_step
        assert "--even-the-last" in refused.value.next_step
        assert groups[0].modes == []
        await admin.add_group("g1")
        assert (await admin.drain("g0")).changed
        await admin.undrain("g0")
        groups[1].types["news"] = pb.FIFO
        with pytest.raises(UsageError, match=r"news .g1 takes it as fifo, not as normal"):
            await admin.drain("g0")
        assert (await admin.drain("g0", even_the_last=True)).changed
        assert not (await admin.drain("g0")).changed, "a drained group is drained whoever is there"


@pytest.mark.usefixtures("few_rounds")
async def test_a_group_without_a_leader_takes_no_messages_of_a_drained_one_and_is_named_when_asked_for() -> (
    None
):
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with (
        FakeCluster(*groups) as cluster,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        groups[1].without_leader = True
        with pytest.raises(UsageError, match="g1 has no leader, or does not answer"):
            await admin.drain("g0")
        assert groups[0].modes == []
        with pytest.raises(NoQuorumError, match='broker group "g1": no leader is known'):
            await admin.progress()
        groups[1].without_leader = False
        assert (await admin.drain("g0")).changed


async def test_a_drain_that_the_route_of_the_other_group_does_not_tell_yet_counts() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        groups[1].mode = pb.MODE_DRAINING  # by somebody else, a moment ago
        with pytest.raises(UsageError, match=r"no other broker group takes messages.*g1 is being drained"):
            await admin.drain("g0")
        assert groups[0].modes == []


@pytest.mark.usefixtures("few_rounds")
async def test_a_group_is_not_removed_before_consumers_of_the_other_groups_have_its_messages() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    groups[0].queues[1, 0] = FakeQueue(end=3)
    groups[0].committed["billing", "orders", 0] = 3
    groups[1].committed["audit", "orders", 0] = 0  # it never came to g0
    async with (
        FakeCluster(*groups) as cluster,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        await admin.drain("g0")
        left = await admin.left(await admin.group("g0"))
        assert [(row.group, row.topic, row.behind) for row in left.waiting] == [("audit", "orders", 3)]
        with pytest.raises(RefusedError, match="still holds messages: audit on orders"):
            await admin.remove_group("g0")
        groups[1].without_leader = True
        with pytest.raises(
            RouteError, match=r"is not known: g1 does not answer.*Nothing was changed"
        ) as unknown:
            await admin.remove_group("g0")
        assert unknown.value.retryable
        assert groups[0].mode == pb.MODE_DRAINING
        assert (await admin.remove_group("g0", force=True)).changed


@pytest.mark.usefixtures("few_rounds")
async def test_a_group_of_which_no_node_is_up_may_know_consumers_that_nobody_else_knows() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1", "g2")]
    async with (
        FakeCluster(*groups) as cluster,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        await admin.drain("g0")
        node = cluster.node("n1", "g1")
        await node.stop()
        cluster.nameserver.table.unregister("local", "g1", "n1")
        assert [each.name for each in await admin.groups()] == ["g0", "g2"]
        assert (await admin.left(await admin.group("g0"))).unheard == ["g1"]
        with pytest.raises(RouteError, match="g1 does not answer"):
            await admin.remove_group("g0")
        await node.start()
        cluster.register(groups[1])
        assert (await admin.remove_group("g0")).changed


@pytest.mark.usefixtures("few_rounds")
async def test_a_stranger_at_the_address_of_a_group_that_is_down_does_not_answer_for_it() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1", "g2")]
    async with (
        FakeCluster(*groups) as cluster,
        FakeCluster(FakeGroup("elsewhere")) as other,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        await admin.drain("g0")
        await cluster.expire(groups[1])
        stranger = other.node(group="elsewhere")
        await stranger.stop()
        await stranger.start(int(cluster.node(group="g1").address.rpartition(":")[2]))
        assert (await admin.left(await admin.group("g0"))).unheard == ["g1"]
        with pytest.raises(RouteError, match=r"g1 does not answer.*this is node n1 of elsewhere"):
            await admin.remove_group("g0")
        assert stranger.group.asked_progress.is_set() and groups[0].mode == pb.MODE_DRAINING


@pytest.mark.usefixtures("few_rounds")
async def test_a_group_is_not_filled_while_another_one_does_not_say_who_consumes_there() -> None:
    async with with_a_third() as (_, admin, new, third):
        third.without_leader = True
        with pytest.raises(RouteError, match=r"where consumer groups begin.*g2 does not answer"):
            await admin.add_group("g1")
        assert (new.topics, new.modes) == ({}, []), "it is not left half filled and drained"
        third.without_leader = False
        assert len((await admin.add_group("g1")).topics.missing) == 2


@pytest.mark.usefixtures("few_rounds")
async def test_a_group_of_which_no_node_is_up_may_hold_ordered_messages_that_are_not_consumed() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1", "g2")]
    for group in groups:
        group.types["orders"] = pb.FIFO
    async with (
        FakeCluster(*groups) as cluster,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        await cluster.expire(groups[1])
        with pytest.raises(
            RouteError,
            match=r"messages of ordered topics are consumed in every .* not known: g1 does not",
        ) as unknown:
            await admin.drain("g0")
        assert "--allow-reordering" in unknown.value.next_step
        assert groups[0].modes == []
        assert (await admin.drain("g0", allow_reordering=True)).changed
        with pytest.raises(RouteError, match="not known: g1 does not"):
            await admin.undrain("g0")
        await cluster.revive(groups[1])
        assert (await admin.undrain("g0")).changed


@pytest.mark.usefixtures("few_rounds")
async def test_a_group_is_not_filled_while_one_of_which_no_node_is_up_may_know_more() -> None:
    async with with_a_third() as (cluster, admin, new, third):
        await cluster.expire(third)
        for change in (admin.add_group("g1"), admin.add_group("g1", dry_run=True)):
            with pytest.raises(BrokerGroupsGoneError, match='"g2" does not answer'):
                await change
        with pytest.raises(RouteError, match=r"where consumer groups begin.*g2 does not answer") as unknown:
            await admin.add_group("g1", source="g0")
        assert "ledgermq cluster forget-group g2" in unknown.value.next_step
        assert (new.topics, new.modes) == ({}, [])
        await admin.forget_group("g2")
        assert len((await admin.add_group("g1")).topics.missing) == 2


async def test_a_group_of_which_no_node_is_up_takes_no_messages_of_a_drained_one() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await cluster.expire(groups[1])
        with pytest.raises(UsageError, match=r"no other broker group takes messages .*; g1 is down"):
            await admin.drain("g0")


# --- two drains at once -------------------------------------------------------------------------------------


def draining_meanwhile(cluster: FakeCluster, happens: Callable[[], None]) -> None:
    """Let something happen in the moment in which g0 is drained, behind the back of who drains it."""

    def set_mode(group: FakeGroup, mode: pb.BrokerGroupMode) -> None:
        cluster.set_mode(group, mode)
        if mode == pb.MODE_DRAINING:
            happens()

    cluster.node(group="g0").set_mode = set_mode


async def test_of_two_groups_that_are_drained_at_once_the_later_one_is_taken_back() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        draining_meanwhile(cluster, lambda: cluster.set_mode(groups[1], pb.MODE_DRAINING))
        with pytest.raises(
            UsageError, match=r"g0 was drained and taken back.*g1 is being drained"
        ) as refused:
            await admin.drain("g0")
        assert "g0 takes messages again" in refused.value.why
        assert (groups[0].mode, groups[0].modes) == (pb.MODE_ACTIVE, [pb.MODE_DRAINING, pb.MODE_ACTIVE])
        await admin.undrain("g1")
        draining_meanwhile(cluster, lambda: None)
        assert (await admin.drain("g0")).changed


async def test_a_drain_of_the_last_group_on_purpose_is_not_taken_back() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        draining_meanwhile(cluster, lambda: cluster.set_mode(groups[1], pb.MODE_DRAINING))
        assert (await admin.drain("g0", even_the_last=True)).changed
        assert groups[0].modes == [pb.MODE_DRAINING]


async def test_a_drain_that_somebody_else_began_is_not_taken_back() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        groups[0].mode = pb.MODE_DRAINING  # by somebody else, a moment ago: the route does not tell yet
        draining_meanwhile(cluster, lambda: cluster.set_mode(groups[1], pb.MODE_DRAINING))
        assert not (await admin.drain("g0")).changed
        assert groups[0].modes == [pb.MODE_DRAINING]


@pytest.mark.usefixtures("few_rounds")
async def test_a_drain_after_which_nobody_can_tell_who_takes_the_topics_says_so() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    async with (
        FakeCluster(*groups) as cluster,
        BrokerGroupAdmin(cluster.address) as admin,
    ):
        draining_meanwhile(cluster, lambda: setattr(cluster.nameserver.table, "_nodes", {}))
        with pytest.raises(RouteError, match="g0 is being drained, and whether") as unknown:
            await admin.drain("g0")
        assert "ledgermq cluster undrain g0" in unknown.value.next_step
        assert groups[0].modes == [pb.MODE_DRAINING]


async def test_a_removed_group_is_not_filled_and_its_return_is_a_change_of_queues_like_any_other() -> None:
    groups = [FakeGroup(name, {"orders": 1}) for name in ("g0", "g1")]
    for group in groups:
        group.types["orders"] = pb.FIFO
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        await admin.drain("g0")
        await admin.remove_group("g0")
        cluster.register(groups[0])  # by a node that was away
        with pytest.raises(UsageError, match=r"was removed.*undrain g0 --node"):
            await admin.add_group("g0")
        cluster.set_mode(groups[0], pb.MODE_REMOVED)
        groups[1].queues[1, 0] = FakeQueue(end=2)
        groups[1].committed["billing", "orders", 0] = 1
        node = cluster.node("n1", "g0").address
        with pytest.raises(UsageError, match="To take back a broker group moves message groups"):
            await admin.undrain("g0", node=node)
        groups[1].committed["billing", "orders", 0] = 2
        assert (await admin.undrain("g0", node=node)).changed


async def test_ordered_messages_that_are_not_consumed_anywhere_hold_up_what_would_move_message_groups() -> (
    None
):
    groups = FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {"orders": 1}), FakeGroup("g2")
    for group in groups[:2]:
        group.types["orders"] = pb.FIFO
    async with FakeCluster(groups[1]) as alone:
        await fill(alone, [b"first"])
    groups[1].committed["billing", "orders", 0] = 0
    async with FakeCluster(*groups) as cluster, BrokerGroupAdmin(cluster.address) as admin:
        for change in (admin.drain("g0"), admin.add_group("g2")):
            with pytest.raises(
                UsageError, match="ordered topics have messages that are not consumed: orders"
            ):
                await change
        assert [group.modes for group in groups] == [[], [], []]
        assert (await admin.drain("g0", allow_reordering=True)).changed
        with pytest.raises(UsageError, match="--allow-reordering"):
            await admin.undrain("g0")
        groups[1].committed["billing", "orders", 0] = 1
        assert (await admin.undrain("g0")).changed
        assert not (await admin.add_group("g2")).conflicts

"""Queries over broker groups: one result, the newest first, and what is missing in it is said."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.client import Admin, Message, Producer
from ledgermq.client.admin import message_query
from ledgermq.client.errors import BrokerUnreachableError, InvalidNameError, TopicNotFoundError, UsageError
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from ledgermq.client.sync import Admin as SyncAdmin

from ..fakes import FakeCluster, FakeGroup
from ..served import served


def two_groups() -> FakeCluster:
    return FakeCluster(FakeGroup("g0", {"orders": 2}), FakeGroup("g1", {"orders": 2, "payments": 1}))


async def send(cluster: FakeCluster, count: int, first: int = 0) -> list[str]:
    """Send messages one after the other, each stored a millisecond later, to all queues in turn; return their
    ids.
    """
    ids = []
    async with Producer(cluster.address, selector=StrictRoundRobin()) as producer:
        for i in range(first, first + count):
            for group in cluster.groups:
                group.store_timestamp = 1000 + i
            receipt = await producer.send(Message("orders", b"%d" % i, keys=["all", f"k{i}"], tag="t"))
            ids.append(receipt.message_id)
    return ids


async def test_messages_of_all_groups_come_in_one_order() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        ids = await send(cluster, 12)
        for key in ("all", ""):
            found = await admin.query_messages("orders", key=key)
            assert [each.message_id for each in found.messages] == ids[::-1]
            assert {each.queue.broker_group for each in found.messages} == {"g0", "g1"}
            assert found.is_complete and not found.truncated
        (one,) = (await admin.query_messages("orders", key="k7")).messages
        assert (one.body, one.tag, one.keys, one.store_timestamp) == (b"7", "t", ("all", "k7"), 1007)
        times = await admin.query_messages("orders", begin_ms=1003, end_ms=1006)
        assert [each.body for each in times.messages] == [b"5", b"4", b"3"]
        assert (await admin.query_messages("payments")).messages == []


async def test_a_message_is_found_by_its_id_whatever_its_group_and_topic() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        for number, message_id in enumerate(await send(cluster, 4)):
            (one,) = (await admin.find_message(message_id)).messages
            assert (one.message_id, one.body) == (message_id, b"%d" % number)
            assert len((await admin.find_message(message_id, topic="orders")).messages) == 1
            assert not (await admin.find_message(message_id, topic="payments")).messages
        assert not (await admin.find_message("01" + 32 * "0")).messages
        with pytest.raises(UsageError):
            await admin.find_message("")
        with pytest.raises(TopicNotFoundError):
            await admin.find_message(message_id, topic="order")


async def test_pages_are_asked_for_until_the_limit_is_reached() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        ids = await send(cluster, 24)
        for node in cluster.nodes.values():
            node.page = 3
        for limit in (1, 5, 11, 12, 23):
            found = await admin.query_messages("orders", limit=limit)
            assert [each.message_id for each in found.messages] == ids[: -limit - 1 : -1]
            assert found.truncated
        whole = await admin.query_messages("orders", limit=24)
        assert len(whole.messages) == 24 and not whole.truncated


async def test_a_result_holds_so_many_bytes_and_says_that_there_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_query, "MAX_GROUP_BYTES", 500)
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        ids = await send(cluster, 20)
        for node in cluster.nodes.values():
            node.page = 1
        found = await admin.query_messages("orders")
        assert found.truncated and 2 < len(found.messages) < 10
        assert {each.message_id for each in found.messages} <= set(ids)


async def test_going_on_behind_a_group_that_was_cut_at_its_bytes_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_query, "MAX_GROUP_BYTES", 500)
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        ids = await send(cluster, 40)
        cluster.node(group="g0").page = 1  # g1 answers all in one page
        seen: set[str] = set()
        end_ms, rounds = 0, 0
        while True:
            found = await admin.query_messages("orders", end_ms=end_ms)
            seen |= {each.message_id for each in found.messages}
            rounds += 1
            if not found.truncated:
                break
            assert found.goes_on
            end_ms = found.missing_from_ms + 1
        assert seen == set(ids)
        assert rounds > 2


@pytest.mark.usefixtures("few_rounds")
async def test_a_silent_group_is_named_and_the_others_answer() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        await send(cluster, 8)
        await cluster.node(group="g1").stop()
        found = await admin.query_messages("orders")
        assert len(found.messages) == 4 and {m.queue.broker_group for m in found.messages} == {"g0"}
        assert list(found.silent) == ["g1"] and not found.is_complete
        assert isinstance(found.silent["g1"], BrokerUnreachableError)
        await cluster.node().stop()
        with pytest.raises(BrokerUnreachableError):
            await admin.query_messages("orders")


async def test_what_could_not_be_searched_is_told() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        cluster.node().unsearched, cluster.node(group="g1").unsearched = 100, 50
        cluster.node(group="g1").stale = True
        found = await admin.query_messages("orders")
        assert (found.unsearched_bytes, found.stale, found.is_complete) == (150, ["g1"], False)


async def test_a_topic_of_one_group_is_enough_and_one_that_nobody_has_is_an_error() -> None:
    async with two_groups() as cluster, Admin(cluster.address) as admin:
        assert (await admin.query_messages("payments")).is_complete
        with pytest.raises(TopicNotFoundError, match="payments"):
            await admin.query_messages("payment")
        nonsense: list[dict[str, Any]] = [{"limit": 0}, {"begin_ms": 5, "end_ms": 5}, {"begin_ms": -1}]
        for wrong in nonsense:
            with pytest.raises(UsageError):
                await admin.query_messages("orders", **wrong)
        with pytest.raises(InvalidNameError):
            await admin.query_messages("no topic")


def test_the_synchronous_twin_finds_the_same() -> None:
    with served(two_groups) as running, SyncAdmin(running.address) as admin:
        ids = running.run(send(running.cluster, 3))
        assert [each.message_id for each in admin.query_messages("orders", key="all").messages] == ids[::-1]
        assert [each.body for each in admin.find_message(ids[1]).messages] == [b"1"]
        assert admin.create_topic("more", 1) == 2
        assert [info.name for info in admin.topics()] == ["more", "orders", "payments"]
        with pytest.raises(TopicNotFoundError):
            admin.query_messages("nobody")

"""The push consumer against fake nodes on real sockets: what it consumes, from where, and what it says of
itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.client import PushOptions
from ledgermq.client.errors import UsageError
from ledgermq.client.push import offset_commits
from ledgermq.proto.admin_pb2 import ConsumerGroupInfo
from ledgermq.rpc.made_call import StreamStreamCall

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import Seen, consumer_of, fill, numbers, until, until_committed


async def test_every_message_is_consumed_and_its_offset_committed_under_the_epoch() -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(20))
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders")
            await seen.until(20)
            await until_committed(group, 10, 10)
            owners = group.coordinators["billing"].owners
            assert {epoch for *_, epoch in group.commits} <= {epoch for _, epoch in owners.values()}
            found = consumer.statistics()
            assert (found.consumed, found.failed, found.lag, found.members) == (20, 0, 0, {"g0": 1})
            assert await consumer.lag() == {each.queue: 0 for each in found.queues}
        assert sorted(seen.bodies) == sorted(numbers(20))
        assert group.coordinators["billing"].members == {}, "close() leaves"


async def test_a_consumer_that_is_closed_while_it_joins_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, sent = StreamStreamCall, asyncio.Event()
    write = kind.write

    async def slow(call: Any, request: Any) -> None:
        await write(call, request)
        sent.set()
        await asyncio.sleep(0.2)

    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster, consumer_of(cluster, Seen()) as consumer:
        monkeypatch.setattr(kind, "write", slow)
        await consumer.subscribe("orders")
        await sent.wait()
        coordinator = group.coordinator("billing")
        await until(coordinator.changed, lambda: bool(coordinator.members))
        await consumer.close()
        assert coordinator.members == {}


async def test_the_group_begins_where_its_first_consumer_wants_and_goes_on_from_there() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"old"])
        first = Seen()
        async with consumer_of(cluster, first, start="latest") as consumer:
            await consumer.subscribe("orders")
            await until(group.coordinator("billing").changed, lambda: bool(consumer.statistics().queues))
            await fill(cluster, [b"new"])
            await first.until(1)
        second = Seen()
        await fill(cluster, [b"later"])
        async with consumer_of(cluster, second, start="earliest") as consumer:
            await consumer.subscribe("orders")
            await second.until(1)
        assert (first.bodies, second.bodies) == ([b"new"], [b"later"])


async def test_only_tags_that_the_filter_names_reach_the_listener_and_offsets_pass_over_the_others() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"a"], tag="paid")
        await fill(cluster, [b"b"], tag="lost")
        await fill(cluster, [b"c"], tag="refunded")
        await fill(cluster, [b"d", b"e"])
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders", "paid || refunded")
            await until_committed(group, 5)
            assert (seen.bodies, consumer.statistics().filtered) == ([b"a", b"c"], 3)
            with pytest.raises(UsageError, match="Make another consumer"):
                await consumer.subscribe("orders", "lost")


async def test_broker_groups_that_appear_are_used_and_nothing_of_them_is_missed() -> None:
    old, new = FakeGroup("g0", {"orders": 1}), FakeGroup("g1", {})
    async with FakeCluster(old, new) as cluster:
        seen = Seen()
        async with consumer_of(cluster, seen, start="latest") as consumer:
            await consumer.subscribe("orders")
            await until(old.coordinator("billing").changed, lambda: bool(consumer.statistics().queues))
            new.create_topic("orders", 2)
            cluster.register(new)
            await until(new.coordinator("billing").changed, lambda: len(consumer.statistics().queues) == 3)
            assert new.groups["billing"].start_position.isdecimal(), "since this consumer began"
            await fill(cluster, numbers(6))
            await seen.until(6)
            assert consumer.statistics().members == {"g0": 1, "g1": 1}


async def test_messages_that_retention_deleted_are_passed_over_and_counted() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(5))
        group.committed["billing", "orders", 0] = 1
        group.groups["billing"] = ConsumerGroupInfo(name="billing")
        group.queues[1, 0].begin = 4
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders")
            await until_committed(group, 5)
            assert (seen.bodies, consumer.statistics().deleted) == ([b"4"], 3)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"allocation": "mine"}, "there is no allocation 'mine'"),
        ({"allocation": "same-zone"}, "Give zone="),
        ({"session_timeout_ms": 10}, "500 to 60,000"),
        ({"max_bytes": 1e8}, "max_bytes is 100000000.0"),
        ({"poll_ms": 1.5}, "poll_ms is 1.5"),
        ({"batch_size": "9"}, "batch_size is '9'"),
        ({"longest_retry_ms": -1, "retry_ms": -1}, "longest_retry_ms is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        PushOptions(**wrong)


async def test_more_offsets_than_a_broker_takes_at_once_are_committed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_commits, "MAX_COMMIT_ROWS", 2)
    group = FakeGroup(topics={"orders": 5})
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(10))
        options = PushOptions(commit_interval_ms=60_000)
        seen, rows = Seen(), []
        send = offset_commits.BrokerGroupCommits._send

        async def counted(self: offset_commits.BrokerGroupCommits, part: list[Any]) -> None:
            rows.append(len(part))
            await send(self, part)

        monkeypatch.setattr(offset_commits.BrokerGroupCommits, "_send", counted)
        async with consumer_of(cluster, seen, options=options) as consumer:
            await consumer.subscribe("orders")
            await seen.until(10)
        assert rows == [2, 2, 1]
        assert [group.committed["billing", "orders", each] for each in range(5)] == [2] * 5

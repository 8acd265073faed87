"""Broadcast: every consumer gets every message and keeps its own offsets in a file."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client import MessageQueue, MessageView, PushConsumer
from ledgermq.client.cluster.topic_route import TopicRoute
from ledgermq.client.consume import fetch_stream as group_fetcher
from ledgermq.client.consume.offsets import start_offsets
from ledgermq.client.errors import NoQuorumError, OffsetsFileError, UsageError
from ledgermq.client.push import broadcast_group
from ledgermq.client.push.broadcast_group import BroadcastGroup
from ledgermq.client.push.offsets_file import OffsetsFile

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import QUICK, Seen, fill, numbers
from ..sections import TOPIC_ID, section


def reader(cluster: FakeCluster, path: Path, listener: Any, **options: Any) -> PushConsumer:
    options = {"options": QUICK, **options}
    return PushConsumer(cluster.address, group="caches", listener=listener, broadcast_file=path, **options)


async def test_every_consumer_gets_every_message_and_brokers_keep_nothing(tmp_path: Path) -> None:
    group = FakeGroup(topics={"orders": 3})
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(9))
        one, two = Seen(), Seen()
        async with (
            reader(cluster, tmp_path / "1.json", one) as first,
            reader(cluster, tmp_path / "2.json", two) as second,
        ):
            await first.subscribe("orders")
            await second.subscribe("orders")
            await one.until(9)
            await two.until(9)
            assert sum((await first.lag()).values()) == 0
        assert sorted(one.bodies) == sorted(two.bodies)
        assert (group.committed, group.coordinators, group.groups) == ({}, {}, {})


async def test_a_consumer_goes_on_where_its_file_says(tmp_path: Path) -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, [b"a", b"b"])
        for expected in ([b"a", b"b"], [b"c"]):
            seen = Seen()
            async with reader(cluster, tmp_path / "offsets.json", seen) as consumer:
                await consumer.subscribe("orders")
                await seen.until(len(expected))
            assert seen.bodies == expected
            await fill(cluster, [b"c"])


async def test_what_fails_is_tried_again_and_its_offset_waits_for_that(tmp_path: Path) -> None:
    """A5.3: also by the next consumer with the file, when this one ends first."""
    path, failing, seen = tmp_path / "offsets.json", Seen(), Seen()

    async def fail(messages: list[MessageView]) -> None:
        await failing(messages)
        if any(message.body == b"1" for message in messages):
            raise RuntimeError("not now")

    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, numbers(3))
        options = replace(QUICK, max_attempts=1 << 30)
        async with reader(cluster, path, fail, options=options) as consumer:
            await consumer.subscribe("orders")
            while failing.bodies.count(b"1") < 3 or not {b"0", b"2"} <= set(failing.bodies):
                await failing.until(len(failing.bodies) + 1)
        async with reader(cluster, path, seen) as consumer:
            await consumer.subscribe("orders")
            await seen.until(2)
    assert sorted(seen.bodies) == [b"1", b"2"]


async def test_latest_is_where_the_consumer_began_for_the_first_time(tmp_path: Path) -> None:
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, [b"old"])
        path = tmp_path / "offsets.json"
        first, second = Seen(), Seen()
        async with reader(cluster, path, first, start="latest") as consumer:
            await consumer.subscribe("orders")
            while not first.bodies:
                await fill(cluster, [b"new"])
        await fill(cluster, [b"meanwhile"])
        async with reader(cluster, path, second, start="latest") as consumer:
            await consumer.subscribe("orders")
            while b"meanwhile" not in second.bodies:
                await second.until(len(second.bodies) + 1)
        assert b"old" not in first.bodies + second.bodies


@pytest.mark.parametrize(("timestamp", "first"), [(0, 0), (100, 0), (101, 1), (140, 4), (149, 5), (200, 6)])
async def test_a_time_is_where_the_first_message_was_stored_then_or_later(
    tmp_path: Path, timestamp: int, first: int
) -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        for number in range(6):
            group.store_timestamp = 100 + 10 * number
            await fill(cluster, [b"%d" % number])
        seen = Seen()
        group.store_timestamp = 300  # the place may be looked up before or after the last one is stored
        async with reader(cluster, tmp_path / "f", seen, start=str(timestamp)) as consumer:
            await consumer.subscribe("orders")
            await fill(cluster, [b"end"])
            await seen.until(7 - first)
        assert seen.bodies == [*(b"%d" % number for number in range(first, 6)), b"end"]


async def test_a_topic_that_was_created_again_is_read_from_its_start(tmp_path: Path) -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"a", b"b", b"c"])
        seen = Seen()
        async with reader(cluster, tmp_path / "f", seen) as consumer:
            await consumer.subscribe("orders")
            await seen.until(3)
            group.queues.clear()
            group.create_topic("orders", 1)
            cluster.register(group)
            await fill(cluster, [b"new"])
            await seen.until(4)
            assert [each.queue.queue_id for each in consumer.statistics().queues] == [0]


async def test_a_file_that_cannot_be_used_ends_the_attempt(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(b"{")
    with pytest.raises(OffsetsFileError, match="Put a copy of it back"):
        PushConsumer("127.0.0.1:1", group="caches", listener=Seen(), broadcast_file=path)
    with pytest.raises(UsageError, match="start is"):
        PushConsumer("127.0.0.1:1", group="caches", listener=Seen(), start="yesterday")


async def test_of_a_topic_that_was_created_again_nothing_is_left_out_by_latest(tmp_path: Path) -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        seen = Seen()
        async with reader(cluster, tmp_path / "f", seen, start="latest") as consumer:
            await consumer.subscribe("orders")
            while not seen.bodies:
                await fill(cluster, [b"old"])
            seen.bodies.clear()
            group.queues.clear()
            group._next_topic_id = TOPIC_ID
            group.create_topic("orders", 1)
            group.store(section(0, 0, b"first of the new"))
            cluster.register(group)
            while b"first of the new" not in seen.bodies:
                await seen.until(len(seen.bodies) + 1)


async def test_latest_is_when_the_topic_was_wanted_also_when_nobody_could_tell_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = FakeGroup(topics={"orders": 1})
    asked: list[str] = []

    async def once_without_a_leader(channels: Any, of: Any, topic: str, start: str) -> dict[int, int]:
        asked.append(start)
        if len(asked) == 1:
            group.store_timestamp = time.time_ns() // 1_000_000 + 1000
            await fill(cluster, [b"stored by the next leader"])
            raise NoQuorumError("NO_QUORUM", "no leader")
        return await start_offsets(channels, of, topic, start)

    monkeypatch.setattr(broadcast_group, "start_offsets", once_without_a_leader)
    monkeypatch.setattr(broadcast_group, "RETRY_PAUSE_S", 0.0)
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"old"])
        seen = Seen()
        async with reader(cluster, tmp_path / "f", seen, start="latest") as consumer:
            await consumer.subscribe("orders")
            await seen.until(1)
        assert seen.bodies == [b"stored by the next leader"]
        assert asked[0] == "latest"


async def test_a_file_that_is_ahead_of_the_queue_is_an_error_and_not_a_wait_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    file = OffsetsFile(path, "caches")
    file.open()
    file.put([((MessageQueue("orders", "g0", 0), 1), 10)])
    file.close()
    async with FakeCluster(FakeGroup(topics={"orders": 1})) as cluster:
        await fill(cluster, [b"a", b"b"])
        seen = Seen()
        async with reader(cluster, path, seen) as consumer:
            await consumer.subscribe("orders")
            with pytest.raises(OffsetsFileError, match="read to offset 10, and the queue ends at 2"):
                await consumer.run()
        assert seen.bodies == []


async def test_a_route_that_changes_in_the_very_moment_in_which_its_topic_is_opened_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        seen = Seen()
        async with reader(cluster, tmp_path / "f", seen) as consumer:
            started, changed = BroadcastGroup._start_missing, asyncio.Event()

            async def then_change(self: BroadcastGroup, topic: str, part: Any) -> None:
                await started(self, topic, part)
                monkeypatch.undo()
                group.create_topic("orders", 2)
                cluster.register(group)
                route = await consumer._routes._get_route("orders")
                # Behind the last step of the task that runs, before anybody hears that it is done.
                asyncio.get_running_loop().call_soon(self.read, topic, route.part("g0"))
                changed.set()

            monkeypatch.setattr(BroadcastGroup, "_start_missing", then_change)
            consumer._routes._listeners.clear()  # the watch does not tell it as well
            await consumer.subscribe("orders")
            await changed.wait()
            await fill(cluster, [b"a", b"b"])
            await seen.until(2)


async def test_a_topic_that_is_gone_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_fetcher, "PARKED_S", 1000.0)
    group = FakeGroup(topics={"orders": 1, "gone": 2})
    async with FakeCluster(group) as cluster:
        seen = Seen()
        async with reader(cluster, tmp_path / "f", seen) as consumer:
            await consumer.subscribe("gone")
            await consumer.subscribe("orders")
            await fill(cluster, [b"first"])
            await seen.until(1)
            asked: list[str] = []
            get = consumer._routes.get

            async def counted(topic: str, **options: bool) -> TopicRoute:
                asked.append(topic)
                return await get(topic, **options)

            monkeypatch.setattr(consumer._routes, "get", counted)
            group.queues.pop((2, 0))
            group.queues.pop((2, 1))
            for number in range(2, 7):  # each by a question of its own
                await fill(cluster, [b"next"])
                await seen.until(number)
            assert asked.count("gone") == 1

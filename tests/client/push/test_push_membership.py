"""Push consumers that share a group, against fake nodes: who owns what, hand-overs, fences, leaders that
change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from ledgermq.client import Message, MessageView, Producer, PushConsumer, PushOptions
from ledgermq.client.cluster.topic_route import TopicRoute
from ledgermq.client.errors import RefusedError, TopicNotFoundError
from ledgermq.client.produce.queue_selection import StrictRoundRobin
from ledgermq.proto import route_pb2 as pb

from ..fakes import FakeCluster, FakeGroup
from ..push_listeners import Seen, consumer_of, consuming, fill, numbers, until, until_committed


async def test_a_second_consumer_takes_half_and_what_stays_is_not_interrupted() -> None:
    group = FakeGroup(topics={"orders": 4})
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(40))
        first, second = Seen(), Seen()
        async with consumer_of(cluster, first) as one, consumer_of(cluster, second) as two:
            await one.subscribe("orders")
            await first.until(40)
            coordinator = group.coordinators["billing"]
            epochs = {queue: epoch for queue, (_, epoch) in coordinator.owners.items()}
            await two.subscribe("orders")
            await until(coordinator.changed, lambda: len(coordinator.released) == 2)
            assert sorted(coordinator.released) == [("orders", 2), ("orders", 3)]
            assert all(coordinator.owners["orders", each][1] == epochs["orders", each] for each in (0, 1))
            await fill(cluster, numbers(40))
            await until_committed(group, 20, 20, 20, 20)
            assert {each.queue.queue_id for each in two.statistics().queues} == {2, 3}
        assert Counter(first.bodies + second.bodies) == dict.fromkeys(numbers(40), 2)
        assert len(second.bodies) == 20


@asynccontextmanager
async def held_by_one(
    group: FakeGroup, first: Seen, second: Seen, options: PushOptions
) -> AsyncIterator[tuple[FakeCluster, PushConsumer]]:
    """Let `first` hold eight messages in its listener, in two queues; give a second consumer, which has not
    subscribed.
    """
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(8))
        async with (
            consumer_of(cluster, first, options=options) as one,
            consumer_of(cluster, second) as two,
        ):
            first.gate.clear()
            await one.subscribe("orders")
            await first.until(8)
            yield cluster, two


async def test_a_revoked_queue_is_handed_over_when_its_listener_is_done_with_the_last_offset() -> None:
    group = FakeGroup(topics={"orders": 2})
    first, second = Seen(), Seen()
    options = PushOptions(commit_interval_ms=60_000, release_ms=30_000)
    async with held_by_one(group, first, second, options) as (cluster, two):
        coordinator = group.coordinators["billing"]
        await two.subscribe("orders")
        await until(coordinator.changed, lambda: coordinator.revoked == {("orders", 1)})
        assert group.commits == []
        first.gate.set()
        await until(coordinator.changed, lambda: coordinator.released == [("orders", 1)])
        assert [commit[:3] for commit in group.commits] == [("orders", 1, 4)]
        await fill(cluster, [b"x"] * 2)
        await second.until(1)
    assert second.bodies == [b"x"]


async def test_a_queue_is_handed_over_at_the_deadline_even_when_its_listener_is_not_done() -> None:
    group = FakeGroup(topics={"orders": 2})
    first, second = Seen(), Seen()
    options = PushOptions(commit_interval_ms=5, release_ms=20)
    async with held_by_one(group, first, second, options) as (_, two):
        await two.subscribe("orders")
        await second.until(4)  # the messages that were not finished come again
        first.gate.set()
        await until_committed(group, 4, 4)
        _, epoch = group.coordinators["billing"].owners["orders", 1]
        wrong = [each for each in group.commits if each[1] == 1 and each[3] < epoch]
        assert wrong == [], "what finished after the hand-over counts for nothing"


async def test_a_queue_that_is_to_stay_after_all_goes_on_where_it_was() -> None:
    group = FakeGroup(topics={"orders": 2})
    first = Seen()
    options = PushOptions(commit_interval_ms=5, release_ms=30_000)
    first.gate.clear()
    async with consuming(group, first, numbers(8), options=options) as (cluster, _):
        await first.until(8)
        coordinator = group.coordinators["billing"]
        before = dict(coordinator.owners)
        async with consumer_of(cluster, Seen()) as two:
            await two.subscribe("orders")
            await until(coordinator.changed, lambda: bool(coordinator.revoked))
        await until(coordinator.changed, lambda: not coordinator.revoked)
        first.gate.set()
        await fill(cluster, numbers(2))
        await until_committed(group, 5, 5)
        assert (coordinator.owners, len(first.bodies)) == (before, 10)


async def test_a_hand_over_that_the_leader_did_not_hear_of_is_said_again_on_the_next_stream() -> None:
    group = FakeGroup(topics={"orders": 2})
    async with (
        FakeCluster(group) as cluster,
        consumer_of(cluster, Seen()) as one,
        consumer_of(cluster, Seen()) as two,
    ):
        await one.subscribe("orders")
        coordinator = group.coordinator("billing")
        await until(coordinator.changed, lambda: len(one.statistics().queues) == 2)
        coordinator.lose_releases = 1
        await two.subscribe("orders")
        await until(coordinator.changed, lambda: not coordinator.lose_releases and bool(coordinator.revoked))
        node = cluster.node()
        port = int(node.address.rpartition(":")[2])
        await node.stop()
        await node.start(port)
        await until(coordinator.changed, lambda: coordinator.released == [("orders", 1)])


async def test_who_was_fenced_drops_what_it_has_and_commits_nothing_of_it() -> None:
    group = FakeGroup(topics={"orders": 2})
    seen = Seen()
    seen.gate.clear()
    async with consuming(group, seen, numbers(8)):
        await seen.until(8)
        coordinator = group.coordinators["billing"]
        # Another member was given the queue, and the answer that says so is still on its way.
        (member,) = coordinator.members.values()
        coordinator.owners["orders", 1] = ("another", 999)
        seen.gate.set()
        await until_committed(group, 4)
        await until(group.committed_more, lambda: ("orders", 1) in group.fenced)
        assert group.committed["billing", "orders", 1] == 0
        coordinator.owners["orders", 1] = (member.member_id, 1000)
        coordinator.tell()
        await seen.until(12)
        await until_committed(group, 4, 4)
        assert {commit[3] for commit in group.commits if commit[1] == 1} == {1000}


async def test_a_new_leader_is_joined_as_the_same_member_and_nothing_moves() -> None:
    group = FakeGroup(topics={"orders": 2})
    async with FakeCluster(group, nodes=3) as cluster:
        await fill(cluster, numbers(4))
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await consumer.subscribe("orders")
            await seen.until(4)
            coordinator = group.coordinators["billing"]
            before = dict(coordinator.owners)
            (member,) = coordinator.members.values()
            streams = member.stream
            await cluster.node("n1").stop()
            group.leader, group.term = "n2", 2
            cluster.register(group)
            await until(coordinator.changed, lambda: member.stream > streams)
            await fill(cluster, numbers(4))
            await until_committed(group, 4, 4)
            assert coordinator.owners == before
        assert len(seen.bodies) == 8, "nothing comes twice"


async def test_what_the_brokers_refuse_for_good_ends_run_with_the_reason() -> None:
    group = FakeGroup(topics={"orders": 1})
    async with FakeCluster(group) as cluster:
        cluster.node().membership_refusals.append(
            pb.Refusal(code=pb.INVALID_ARGUMENT, message="the group consumes with leases")
        )
        async with consumer_of(cluster, Seen()) as consumer:
            with pytest.raises(TopicNotFoundError):
                await consumer.subscribe("nothing")
            await consumer.subscribe("orders")
            with pytest.raises(RefusedError, match="consumes with leases"):
                await consumer.run()


async def test_what_the_leader_warns_of_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    group = FakeGroup(topics={"orders": 1})
    warning = "members of this group subscribe differently: a: orders: *; b: orders: paid"
    async with FakeCluster(group) as cluster:
        coordinator = group.coordinator("billing")
        coordinator.warnings = [warning]
        async with consumer_of(cluster, Seen()) as consumer:
            await consumer.subscribe("orders", " paid||new ")
            await until(coordinator.changed, lambda: bool(consumer.statistics().warnings))
            (member,) = coordinator.members.values()
            assert member.filter == "orders: new || paid"
            assert member.orderly is False
            beats = coordinator.beats
            coordinator.tell()
            await until(coordinator.changed, lambda: coordinator.beats > beats)
            assert consumer.statistics().warnings == (warning,)
    assert caplog.text.count(warning) == 1


async def test_bytes_that_a_lost_queue_held_are_room_for_the_others() -> None:
    group = FakeGroup(topics={"orders": 1, "quick": 1})
    seen = Seen()

    async def listener(messages: list[MessageView]) -> None:
        await seen(messages)
        if messages[0].topic == "orders":
            raise RuntimeError("not now")

    options = PushOptions(commit_interval_ms=5, retry_ms=60_000, max_bytes=1)
    async with FakeCluster(group) as cluster:
        await fill(cluster, [b"slow"])
        await fill(cluster, [b"quick"], "quick")
        async with consumer_of(cluster, listener, options=options) as consumer:
            await consumer.subscribe("orders")
            await seen.until(1)
            await consumer.subscribe("quick")
            coordinator = group.coordinators["billing"]
            await until(coordinator.changed, lambda: len(consumer.statistics().queues) == 2)
            coordinator.owners["orders", 0] = ("another", 999)
            coordinator.tell()
            await until_committed(group, 1, topic="quick")
    assert seen.bodies == [b"slow", b"quick"]


async def test_what_could_not_be_stored_before_a_queue_stays_after_all_is_stored_later() -> None:
    group = FakeGroup(topics={"orders": 2})
    options = PushOptions(commit_interval_ms=60_000, release_ms=30_000)
    first = Seen()
    async with FakeCluster(group) as cluster:
        await fill(cluster, numbers(8))
        async with consumer_of(cluster, first, options=options) as one:
            first.gate.clear()
            await one.subscribe("orders")
            await first.until(8)
            coordinator = group.coordinators["billing"]
            async with consumer_of(cluster, Seen()) as two:
                await two.subscribe("orders")
                await until(
                    coordinator.changed,
                    lambda: {each.state for each in one.statistics().queues} == {"active", "releasing"},
                )
            await until(coordinator.changed, lambda: one.statistics().members == {"g0": 1})
            refusals = cluster.node().commit_refusals
            refusals.append(pb.Refusal(code=pb.INVALID_ARGUMENT, message="no"))
            first.gate.set()
            await until(
                coordinator.changed,
                lambda: not refusals and {each.state for each in one.statistics().queues} == {"active"},
            )
        assert [group.committed["billing", "orders", each] for each in (0, 1)] == [4, 4]
    assert len(first.bodies) == 8


async def test_a_topic_with_many_queues_that_is_gone_costs_the_others_one_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = FakeGroup(topics={"orders": 40})
    async with FakeCluster(group) as cluster, consumer_of(cluster, Seen()) as consumer:
        await consumer.subscribe("orders")
        coordinator = group.coordinator("billing")
        await until(coordinator.changed, lambda: len(consumer.statistics().queues) == 40)
        asked: list[str] = []
        get = consumer._routes.get

        async def counted(topic: str, **options: bool) -> TopicRoute:
            asked.append(topic)
            return await get(topic, **options)

        monkeypatch.setattr(consumer._routes, "get", counted)
        queues = consumer._groups["g0"].queues.values()
        gone = pb.Refusal(code=pb.STALE_ROUTE, message="gone", retryable=True)
        await consumer._groups["g0"].on_refused([(owned, gone) for owned in queues])
        assert asked == ["orders"]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_to_members_and_leaders_nothing_is_skipped_or_committed_backwards(
    seed: int,
) -> None:
    random = Random(seed)
    group = FakeGroup(topics={"orders": 6})
    seen = Seen()
    async with FakeCluster(group, nodes=2) as cluster, AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer(cluster.address, selector=StrictRoundRobin()))
        coordinator = group.coordinator("billing")
        consumers: list[PushConsumer] = []
        sent = 0
        for _ in range(30):
            action = random.choice(("send", "send", "join", "leave", "expire", "fence", "lead"))
            if action == "join" and len(consumers) < 5:
                options = PushOptions(batch_size=random.choice((1, 7)), commit_interval_ms=2, release_ms=50)
                consumers.append(consumer_of(cluster, seen, options=options))
                await consumers[-1].subscribe("orders")
            elif action == "leave" and len(consumers) > 1:
                await consumers.pop(random.randrange(len(consumers))).close()
            elif action == "expire" and coordinator.members:
                coordinator.expire(random.choice(sorted(coordinator.members)))
            elif action == "fence" and coordinator.owners:
                coordinator.fence(random.choice(sorted(coordinator.owners)))
            elif action == "lead":
                group.leader, group.term = {"n1": "n2", "n2": "n1"}[group.leader], group.term + 1
                cluster.register(group)
                coordinator.tell()
            else:
                await producer.send_batch(Message("orders", b"%d" % (sent + i)) for i in range(12))
                sent += 12
        if not consumers:
            consumers.append(consumer_of(cluster, seen))
            await consumers[0].subscribe("orders")
        for member_id in coordinator.members.keys() - {consumer.member_id for consumer in consumers}:
            coordinator.expire(member_id)  # no leader heard it leave
        await until_committed(group, *[queue.end for queue in group.queues.values()])
        for consumer in consumers:
            await consumer.close()
    assert set(seen.bodies) == set(numbers(sent))
    for queue_id in range(6):
        mine = [(epoch, offset) for _, queue, offset, epoch in group.commits if queue == queue_id]
        assert mine == sorted(mine), "neither epochs nor offsets go back"

"""SetHold and ReleaseHold: what holders are answered, and what is refused."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.admin.listings import describe_topic
from ledgermq.broker.admin.topic_holds import TopicHolds
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.leader.pipeline import Applied
from ledgermq.broker.refusals import RefusedError
from ledgermq.broker.service.features import Features
from ledgermq.broker.state.commands import HOLDS, Command, DeleteTopic, SetHold, hold_rows
from ledgermq.broker.state.holds import MAX_HOLDS
from ledgermq.proto import admin_pb2, route_pb2

from ..entry_log import Node

HOUR_MS = 3_600_000


class Calls:
    """The calls on a leader that applies at once: a topic of two queues with ten messages each."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.log.now = int(time.time() * 1000)
        self.topic = self.node.topic("orders")
        for queue in range(2):
            self.node.fill(self.topic, queue, 10)
        self.peers: list[Any] = []
        self.barriers = 0
        leadership = Leadership("n1")
        leadership.on_ready(1)
        config = BrokerConfig(node_id="n1", group="g0")
        me: Any = self
        pipeline: Any = self.node
        replica: Any = SimpleNamespace(state=self.node.state)
        features = Features(config, me, replica, pipeline, leadership)
        self.holds = TopicHolds(config, me, replica, me, me, features)

    async def run(self, command: Command) -> Applied:
        return await self.node.run(command)

    async def catch_up(self) -> None:
        self.barriers += 1

    def status(self) -> Any:
        return SimpleNamespace(peers=self.peers)

    def next_timestamp(self) -> int:
        return self.node.log.now

    def hold(self, *queues: tuple[int, int], name: str = "lake", topic: str = "orders") -> Any:
        request = admin_pb2.SetHoldRequest(topic=topic, name=name)
        for queue_id, offset in queues:
            request.queues.add(queue_id=queue_id, offset=offset)
        return list(asyncio.run(self.holds.set(request)).queues)

    def refusal(self, *queues: tuple[int, int], **names: str) -> route_pb2.Refusal:
        before = self.node.state.holds.copy()
        with pytest.raises(RefusedError) as refused:
            self.hold(*queues, **names)
        assert self.node.state.holds.copy() == before
        return refused.value.refusal

    def release(self, name: str = "lake") -> bool:
        request = admin_pb2.ReleaseHoldRequest(topic="orders", name=name)
        return asyncio.run(self.holds.release(request)).released

    def described(self) -> list[tuple[str, int, int, int, bool]]:
        request = admin_pb2.DescribeTopicRequest(topic="orders")
        answer = describe_topic(self.node.state, request, self.holds.since())
        return [(each.name, each.queue_id, each.offset, each.lost, each.expired) for each in answer.holds]


def test_a_holder_is_told_what_it_holds_and_everybody_sees_it() -> None:
    calls = Calls()
    first, second = calls.hold((1, 4), (0, 10))
    assert (first.name, first.queue_id, first.offset, first.lost, first.expired) == ("lake", 0, 10, 0, False)
    assert (second.queue_id, second.offset, second.advanced_ms) == (1, 4, calls.node.log.now)
    calls.hold((0, 2), name="audit")
    (again,) = calls.hold((1, 3))
    assert again.offset == 4, "only what was asked, which does not go back"
    assert calls.described() == [
        ("audit", 0, 2, 0, False), ("lake", 0, 10, 0, False), ("lake", 1, 4, 0, False),
    ]  # fmt: skip
    assert calls.release() and not calls.release()
    assert calls.described() == [("audit", 0, 2, 0, False)]
    assert calls.barriers == 0


def test_a_holder_is_told_with_its_advance_what_was_deleted_in_spite_of_it() -> None:
    calls = Calls()
    calls.hold((0, 3))
    calls.node.trim((calls.topic, 0, 7))
    assert calls.described() == [("lake", 0, 3, 4, False)]
    for _ in range(2):
        (told,) = calls.hold((0, 9))
        assert (told.offset, told.lost) == (9, 4), "a repeat, too: the first answer may have been lost"
    (told,) = calls.hold((0, 10))
    assert told.lost == 0


def test_what_was_deleted_before_may_be_held_and_the_answer_says_so() -> None:
    calls = Calls()
    calls.node.trim((calls.topic, 0, 7))
    (told,) = calls.hold((0, 2))
    assert (told.offset, told.lost) == (7, 5)


def test_a_hold_whose_holder_is_silent_is_shown_as_expired_until_it_comes_again() -> None:
    calls = Calls()
    calls.node.log.now -= 169 * HOUR_MS
    calls.node.state.timestamp = calls.node.log.now
    calls.hold((0, 3))
    calls.node.log.now += 169 * HOUR_MS
    assert calls.described() == [("lake", 0, 3, 0, True)]
    (told,) = calls.hold((0, 3))
    assert not told.expired
    assert calls.described() == [("lake", 0, 3, 0, False)]


@pytest.mark.parametrize(
    ("queues", "names", "code", "text"),
    [
        ([(0, 1)], {"name": ""}, route_pb2.INVALID_ARGUMENT, "the name of a hold cannot be empty"),
        ([(0, 1)], {"name": "a b"}, route_pb2.INVALID_ARGUMENT, 'the name of a hold "a b" has characters'),
        ([(0, 1)], {"name": "x" * 65}, route_pb2.INVALID_ARGUMENT, "longer than 64"),
        ([(0, 1)], {"topic": "order"}, route_pb2.TOPIC_NOT_FOUND, 'Did you mean "orders"'),
        ([], {}, route_pb2.INVALID_ARGUMENT, "no queue is named"),
        ([(0, 1), (0, 2)], {}, route_pb2.INVALID_ARGUMENT, "a queue is named twice"),
        ([(0, 1), (2, 1)], {}, route_pb2.INVALID_ARGUMENT, "has no queue 2 in broker group g0"),
        ([(0, 11)], {}, route_pb2.OFFSET_OUT_OF_RANGE, "has offsets up to 10, which is the next message; 11"),
        ([(0, -1)], {}, route_pb2.OFFSET_OUT_OF_RANGE, "-1 is not one of them"),
    ],
)
def test_what_cannot_be_held_is_refused_with_the_reason(
    queues: list[tuple[int, int]], names: dict[str, str], code: int, text: str
) -> None:
    refusal = Calls().refusal(*queues, **names)
    assert refusal.code == code and text in refusal.message
    assert not refusal.retryable


def test_a_leader_that_knows_less_than_its_caller_catches_up_before_it_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls()

    async def catch_up() -> None:
        calls.node.fill(calls.topic, 0, 5)

    monkeypatch.setattr(calls, "catch_up", catch_up)
    (told,) = calls.hold((0, 15))
    assert told.offset == 15


def test_one_hold_too_many_is_refused_with_the_names_of_the_others() -> None:
    calls = Calls()
    for number in range(MAX_HOLDS):
        calls.hold((0, 1), name=f"job{number}")
    refusal = calls.refusal((0, 1), name="late")
    assert refusal.code == route_pb2.NOT_SUPPORTED and not refusal.retryable
    assert "has 16 holds" in refusal.message and "job0, job1, job10" in refusal.message


def test_a_topic_that_is_deleted_meanwhile_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()

    async def late(command: Command) -> Applied:
        calls.node.command(DeleteTopic(calls.topic))
        return await calls.node.run(command)

    async def early(command: Command) -> Applied:
        applied = await calls.node.run(command)
        calls.node.command(DeleteTopic(calls.topic))
        return applied

    for run in (late, early):
        calls = Calls()
        monkeypatch.setattr(calls, "run", run)
        with pytest.raises(RefusedError, match="deleted meanwhile"):
            calls.hold((0, 1))


def test_holds_need_every_node_to_know_them() -> None:
    calls = Calls()
    calls.peers.append(SimpleNamespace(node_id="n2", feature_level=HOLDS - 1))
    refusal = calls.refusal((0, 1))
    assert refusal.code == route_pb2.NOT_SUPPORTED
    assert "does not know how to let retention wait for a job" in refusal.message and "n2" in refusal.message
    calls.peers[0].feature_level = HOLDS
    assert calls.hold((0, 1))
    assert calls.node.state.feature_level == HOLDS


def test_a_topic_that_was_created_again_has_no_holds() -> None:
    calls = Calls()
    calls.node.command(SetHold(calls.topic, "lake", hold_rows([(0, 1)])))
    calls.node.command(DeleteTopic(calls.topic))
    calls.node.topic("orders")
    assert calls.described() == []

"""The trace topic: made by the leader of a group that keeps traces, once, whoever leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.leadership import Leadership
from ledgermq.broker.messaging_validation import SYSTEM_TOPICS
from ledgermq.broker.topics import TRACE_TOPIC
from ledgermq.broker.trace_topic import TraceTopic
from ledgermq.client import trace_events
from ledgermq.raft.errors import BusyError, ProposalLostError

from .fake_raft import FakeRaft, settle


class Rig:
    """A node that keeps traces, or not."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.raft = FakeRaft()
        self.leadership = Leadership("n1")
        context: Any = SimpleNamespace(
            config=SimpleNamespace(trace_topic=enabled),
            leadership=self.leadership,
            pipeline=self.raft.pipeline,
            replica=SimpleNamespace(state=self.raft.state),
        )
        self.leadership.add_listener(TraceTopic(context).on_leadership)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_client_and_broker_mean_the_same_topic_which_users_cannot_make() -> None:
    assert trace_events.TRACE_TOPIC == TRACE_TOPIC
    assert TRACE_TOPIC in SYSTEM_TOPICS


def test_the_leader_makes_it_once() -> None:
    async def test() -> None:
        rig = Rig()
        rig.leadership.on_changed("n2", 1)
        await settle()
        assert not rig.raft.proposals, "another node leads"
        rig.leadership.on_ready(2)
        await settle()
        await rig.raft.decide(0)
        topic = rig.raft.state.topics.find(TRACE_TOPIC)
        assert topic is not None
        assert topic.queue_count == 1
        rig.leadership.on_ready(3)
        await settle()
        assert len(rig.raft.proposals) == 1

    run(test)


def test_without_the_setting_nothing_is_made() -> None:
    async def test() -> None:
        rig = Rig(enabled=False)
        rig.leadership.on_ready(1)
        await settle()
        assert not rig.raft.proposals

    run(test)


def test_a_leader_that_cannot_make_it_says_so_and_leaves_it_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        rig = Rig()
        rig.raft.error = BusyError()
        rig.leadership.on_ready(1)
        await settle()
        rig.raft.error = None
        rig.leadership.on_ready(2)
        await settle()
        rig.raft.proposals[0].committed.set_exception(ProposalLostError("lost"))
        await settle()
        rig.leadership.on_ready(3)
        await settle()
        assert len(rig.raft.proposals) == 2

    run(test)
    assert caplog.text.count("trace topic not created") == 2

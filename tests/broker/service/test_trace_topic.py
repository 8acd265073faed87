"""The trace topic: created once, by any leader of a broker group that keeps traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.service import trace_topic
from ledgermq.broker.service.shutdown import Shutdown
from ledgermq.broker.service.trace_topic import TraceTopic
from ledgermq.broker.state.topics import TRACE_TOPIC
from ledgermq.broker.wire.validation import SYSTEM_TOPICS
from ledgermq.client.trace import events as trace_events
from ledgermq.raft.errors import BusyError, ProposalLostError

from ..fake_raft import FakeRaft, lead_twice, settle


class Rig:
    """A node that keeps traces, or not."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.raft = FakeRaft()
        self.leadership = Leadership("n1")
        replica: Any = SimpleNamespace(state=self.raft.state)
        shutdown = Shutdown(Polls())
        self.trace_topic = TraceTopic(replica, self.raft.pipeline, self.leadership, shutdown, wanted=enabled)
        self.leadership.add_listener(self.trace_topic.on_leadership)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the timers have done what they do."""
    while not condition():  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.001)


def test_client_and_broker_mean_the_same_topic_which_users_cannot_make() -> None:
    assert trace_events.TRACE_TOPIC == TRACE_TOPIC
    assert TRACE_TOPIC in SYSTEM_TOPICS


async def test_the_leader_makes_it_once() -> None:
    rig = Rig()
    await lead_twice(rig.raft, rig.leadership)
    topic = rig.raft.state.topics.find(TRACE_TOPIC)
    assert topic is not None
    assert topic.queue_count == 1


async def test_without_the_setting_nothing_is_made() -> None:
    rig = Rig(enabled=False)
    rig.leadership.on_ready(1)
    await settle()
    assert not rig.raft.proposals


async def test_a_leader_that_cannot_make_it_tries_again_until_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may lead for months; what kept it from making the topic is over in a moment."""
    monkeypatch.setattr(trace_topic, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(trace_topic, "LONGEST_PAUSE_S", 0.004)
    rig = Rig()
    rig.raft.error = BusyError()
    rig.leadership.on_ready(1)
    await until(lambda: len(rig.raft.urgent) >= 5)  # so often it was refused
    rig.raft.error = None
    await until(lambda: len(rig.raft.proposals) == 1)
    await rig.raft.decide(0)
    assert rig.raft.state.topics.find(TRACE_TOPIC) is not None
    assert rig.trace_topic._timer is None


async def test_an_attempt_that_is_lost_in_the_log_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_topic, "FIRST_PAUSE_S", 0.001)
    rig = Rig()
    rig.leadership.on_ready(1)
    await until(lambda: len(rig.raft.proposals) == 1)
    rig.raft.proposals[0].committed.set_exception(ProposalLostError("lost"))
    await until(lambda: len(rig.raft.proposals) == 2)


async def test_pauses_grow_and_a_node_that_leads_no_longer_stops() -> None:
    rig = Rig()
    rig.raft.error = BusyError()
    pauses = []
    rig.leadership.on_ready(1)
    for _ in range(10):
        pauses.append(rig.trace_topic._pause_s)
        await settle()
        rig.trace_topic._create()  # as the timer does
    await settle()
    assert pauses == sorted(pauses)
    assert pauses[-1] == trace_topic.LONGEST_PAUSE_S
    rig.raft.error = None
    rig.leadership.on_lost()
    await settle()
    rig.trace_topic._create()
    assert rig.trace_topic._timer is None
    assert not rig.raft.proposals


async def test_a_leader_that_cannot_make_it_says_so_and_leaves_it_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
    assert caplog.text.count("trace topic not created") == 2

"""Number of quiet ticks: the core must decide nothing in them, and the next tick must be worth a wake-up."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import HeartbeatReply
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.drive.ticker import Ticker
from ledgermq.raft.types import NodeId

from ..core_cluster import Cluster, make_core

ACTIONS = st.sampled_from(["tick", "quiet", "propose", "read", "cut", "heal", "down", "transfer", "campaign"])


def tick_quietly(core: RaftCore, limit: int) -> int:
    """Give the core its quiet ticks, at most `limit`. Fails if one of them decides something."""
    count = min(core.quiet_ticks(), limit)
    for _ in range(count):
        core.tick()
        assert core.poll() is None
    return count


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 60)), max_size=40))
def test_a_quiet_tick_decides_nothing(script: list[tuple[str, str, int]]) -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    for action, name, number in script:
        core = cluster[name]
        if action == "tick":
            cluster.tick(number)
        elif action == "quiet":
            assert tick_quietly(core, number) >= 0
        elif action == "propose" and core.leading is not None and core.leading.transfer_to is None:
            core.propose([64] * number)
        elif action == "read":
            core.read_index(object())
        elif action == "cut":
            cluster.partition([name], [other for other in cluster.names if other != name])
        elif action == "heal":
            cluster.heal()
        elif action == "down" and core.leader_id is not None:
            core.link_down(core.leader_id, refused=number % 2 == 0)
        elif action == "transfer":
            core.transfer_leadership()
        elif action == "campaign":
            core.campaign()
        cluster.settle()


def test_the_tick_behind_the_quiet_ones_is_a_heartbeat_on_a_leader() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    core = cluster["n1"]
    assert tick_quietly(core, 1000) <= 6
    core.tick()
    output = core.poll()
    assert output is not None
    assert {message.to for message in output.send} == {"n2", "n3"}
    assert core.quiet_ticks() == 6


def test_the_tick_behind_the_quiet_ones_is_a_campaign_on_a_follower() -> None:
    core = make_core()
    assert 39 <= core.quiet_ticks() < 79
    tick_quietly(core, 1000)
    roles = [core.role]
    core.tick()
    assert [*roles, core.role] == [Role.FOLLOWER, Role.PRE_CANDIDATE]


async def test_an_input_that_brings_a_decision_nearer_wakes_the_clock_sooner() -> None:
    quiet = 1000
    ticked = asyncio.Event()
    counts: list[int] = []

    def on_ticks(count: int) -> None:
        counts.append(count)
        ticked.set()

    ticker = Ticker(10, 60_000, on_ticks, lambda _: None, lambda: quiet)
    ticker.start()
    quiet = 0
    ticker.after_input()
    async with asyncio.timeout(20):  # the planned sleep is 10 s
        await ticked.wait()
    ticker.stop()
    assert 1 <= counts[0] < 900


def test_no_tick_of_a_leader_is_quiet_when_a_follower_came_back_as_a_learner_and_nobody_else_is_alive() -> (
    None
):
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.crash("n3")
    cluster.tick(100)
    core = cluster["n1"]
    assert core.leading is not None
    core.step(HeartbeatReply(core.term, NodeId("n2"), NodeId("n1"), is_learner=True))
    core.poll()
    assert core.quiet_ticks() == 0
    core.tick()
    assert cluster["n1"].role is Role.FOLLOWER

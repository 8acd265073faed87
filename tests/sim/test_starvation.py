"""A group whose event loops stall repeatedly keeps its leader; a healthy group fails over as fast as before.

Three cores, each behind the real schedule of ticks. Nothing of a stalled node runs. What arrived meanwhile is
delivered before its next tick, as the event loop does. Time is simulated, in ms.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest

from ledgermq.raft.core.messages import Message
from ledgermq.raft.core.outputs import BecameLeader
from ledgermq.raft.core.tick_schedule import TickSchedule
from tests.raft.core_cluster import make_core

NAMES = ("n1", "n2", "n3")
TICK_MS, STALL_MS = 10, 200
#: Returns (ms that a node runs, ms that it stalls) by name; None: it always runs.
Stalls = Callable[[random.Random, str], tuple[float, float] | None]


class Node:
    """A core, its clock, and the input that waits while it stalls."""

    def __init__(self, name: str) -> None:
        self.core = make_core(name)
        self.schedule = TickSchedule(TICK_MS, STALL_MS, 0.0)
        self.stalled_until = 0.0
        self.inbox: list[Message] = []
        self.is_dead = False


class BrokerGroup:
    """Usage: `run(until_ms)`; then inspect `leads`, the (ms, name) of each election won."""

    def __init__(self, seed: int, stalls: Stalls) -> None:
        self.rng = random.Random(seed)
        self.nodes = {name: Node(name) for name in NAMES}
        self.leads: list[tuple[float, str]] = []
        self.now = 0.0
        self._stalls = stalls
        self._order = count()
        self._events: list[tuple[float, int, str, Message | str]] = []
        for name in NAMES:
            self.later(TICK_MS, name, "tick")
            self.later(1000.0, name, "stall")

    def later(self, delay: float, name: str, what: Message | str) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), name, what))

    def run(self, until_ms: float) -> None:
        while self._events[0][0] <= until_ms:
            self.now, _, name, what = heapq.heappop(self._events)
            node = self.nodes[name]
            if node.is_dead:
                continue
            if what == "stall":
                self._stall(name, node)
            elif self.now < node.stalled_until:
                if what == "tick":
                    self.later(node.stalled_until - self.now, name, "tick")
                else:
                    assert not isinstance(what, str)
                    node.inbox.append(what)
            elif what == "tick":
                self._tick(name, node)
            else:
                assert not isinstance(what, str)
                node.core.step(what)
                self._pump(name, node)

    def _stall(self, name: str, node: Node) -> None:
        drawn = self._stalls(self.rng, name)
        if drawn is not None:
            node.stalled_until = self.now + drawn[1]
            self.later(drawn[0] + drawn[1], name, "stall")

    def _tick(self, name: str, node: Node) -> None:
        """Like `Ticker`: timers run before the input that waits in the sockets."""
        ticks = node.schedule.take(self.now)
        if late := int(node.schedule.lateness_ms) // TICK_MS:
            node.core.late(late)
        for _ in range(ticks):
            node.core.tick()
            self._pump(name, node)
        node.schedule.wake_ms = node.schedule.wake_at(0)
        self.later(max(node.schedule.wake_ms - self.now, 0.01), name, "tick")
        inbox, node.inbox = node.inbox, []
        for message in inbox:
            node.core.step(message)
            self._pump(name, node)

    def _pump(self, name: str, node: Node) -> None:
        while (output := node.core.poll()) is not None:
            self.leads += [(self.now, name) for event in output.events if isinstance(event, BecameLeader)]
            for message in output.send:
                self.later(self.rng.uniform(0.1, 1.0), message.to, message)
            if output.persist is not None:
                node.core.storage_done(output.persist.seq)


def all_of(low: float, high: float, *, runs: float = 20) -> Stalls:
    return lambda rng, name: (rng.uniform(0.5, 1.5) * runs, rng.uniform(low, high))


def some_of(names: tuple[str, ...], low: float, high: float, *, runs: float = 20) -> Stalls:
    draw = all_of(low, high, runs=runs)
    return lambda rng, name: draw(rng, name) if name in names else None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "stalls",
    [
        all_of(100, 500),
        all_of(50, 199),
        all_of(300, 600, runs=40),
        some_of(("n1", "n2"), 100, 500),
        some_of(("n1", "n2"), 300, 600, runs=40),
        some_of(("n3",), 100, 500),
    ],
    ids=["all", "all shortly", "all for long", "two", "two for long", "one"],
)
def test_a_starved_group_changes_its_leader_at_most_once_a_minute(seed: int, stalls: Stalls) -> None:
    broker_group = BrokerGroup(seed, stalls)
    broker_group.run(1_000)
    assert len(broker_group.leads) <= 1
    broker_group.run(15_000)  # it learns how late messages arrive
    learnt = len(broker_group.leads)
    broker_group.run(75_000)
    assert len(broker_group.leads) - learnt <= 1, broker_group.leads
    assert learnt <= 4, broker_group.leads


@pytest.mark.parametrize("seed", range(6))
def test_a_group_that_is_well_waits_no_longer_for_a_silent_leader(seed: int) -> None:
    broker_group = BrokerGroup(seed, lambda rng, name: None)
    broker_group.run(20_000)
    _, leader = broker_group.leads[-1]
    broker_group.nodes[leader].is_dead = True
    broker_group.run(22_000)
    at, successor = broker_group.leads[-1]
    assert successor != leader
    assert at - 20_000 < 850, "the longest election timeout, and a round of votes"
    assert all(node.core.lateness.patience == 0 for node in broker_group.nodes.values())


@pytest.mark.parametrize("seed", range(6))
def test_patience_has_an_end_when_a_starved_leader_dies(seed: int) -> None:
    broker_group = BrokerGroup(seed, all_of(100, 500))
    broker_group.run(30_000)
    _, leader = broker_group.leads[-1]
    before = len(broker_group.leads)
    broker_group.nodes[leader].is_dead = True
    broker_group.run(60_000)
    assert len(broker_group.leads) > before
    assert all(
        node.core.shortest_timeout <= 40 + node.core.config.patience_ticks_max
        for node in broker_group.nodes.values()
    )


def test_patience_is_forgotten_when_there_is_cpu_again() -> None:
    broker_group = BrokerGroup(1, all_of(100, 500))
    broker_group.run(20_000)
    assert any(node.core.lateness.patience for node in broker_group.nodes.values())
    broker_group._stalls = lambda rng, name: None
    broker_group.run(20_000 + 2 * 15_000 + 2_000)
    assert all(node.core.lateness.patience == 0 for node in broker_group.nodes.values())


def test_one_pause_is_no_habit() -> None:
    pauses = {"n1": 1}

    def once(rng: random.Random, name: str) -> tuple[float, float] | None:
        return (1.0, 1500.0) if pauses.pop(name, 0) else None

    broker_group = BrokerGroup(1, once)
    broker_group.run(10_000)
    assert all(node.core.lateness.patience == 0 for node in broker_group.nodes.values())

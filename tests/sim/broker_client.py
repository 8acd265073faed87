"""Client of the simulated brokers: the code that all kinds of clients share.

A call may be lost, late, or answered by a former leader. A client without an answer in time does not know the
outcome and asks again elsewhere. Clients read names and ids of topics from the model, as if from an always
current nameserver.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .broker_life import Answer, Request
from .broker_model import ConsumerGroup, Topic

if TYPE_CHECKING:
    from .broker_world import BrokerWorld
    from .node import SimNode

MS = 1000


class Client:
    """Does one thing at a time: `ask`, receive the answer (or not), think, `step` again."""

    think_ms = (1, 60)
    timeout_ms = (30, 1000)

    def __init__(self, world: BrokerWorld) -> None:
        self.world = world
        self.rng = random.Random(world.rng.getrandbits(64))
        self._call = 0
        self.is_idle = True

    def step(self) -> None:
        """Do the next thing."""
        raise NotImplementedError

    @property
    def may_go_on(self) -> bool:
        """Return whether this client has more to do now."""
        return not self.world.is_quiet and not self.world.is_draining

    def soon(self) -> None:
        """Think, then continue."""
        self.is_idle = False
        self.world.after(self.rng.randint(*self.think_ms) * MS, self._go_on)

    def _go_on(self) -> None:
        if self.may_go_on:
            self.step()
        else:
            self.is_idle = True

    def wake(self) -> None:
        """Continue after a rest."""
        if self.is_idle:
            self.soon()

    def ask(
        self,
        kind: str,
        body: Any,
        then: Callable[[Answer, bool], None],
        late: Callable[[Answer, bool], None] = lambda answer, newest: None,
        node: SimNode | None = None,
    ) -> None:
        """Call a node. `then` receives the answer in time, or status unknown; `late` a later answer."""
        self._call += 1
        number = self._call
        node = node or self._choose_node()
        if not node.up:
            self.soon_hear(number, then, Answer("refused"))
            return

        def hear(answer: Answer, newest: bool) -> None:
            if number == self._call:
                self._call += 1
                then(answer, newest)
            else:
                late(answer, newest)

        self.world.deliver(node, Request(kind, body, self.world.reply_to(node, hear)))
        self.world.after(self.rng.randint(*self.timeout_ms) * MS, lambda: self._give_up(number, then))

    def soon_hear(self, number: int, then: Callable[[Answer, bool], None], answer: Answer) -> None:
        """Answer for a node where nothing listens."""

        def hear() -> None:
            if number == self._call:
                self._call += 1
                then(answer, False)

        self.world.after(self.rng.randint(1, 20) * MS, hear)

    def _give_up(self, number: int, then: Callable[[Answer, bool], None]) -> None:
        if number == self._call:
            self._call += 1
            then(Answer("unknown"), False)

    def _choose_node(self) -> SimNode:
        """Choose a node, mostly the leader."""
        leader = self.world.world.leader()
        if leader is not None and self.rng.random() < 0.85:
            return leader
        return self.any_node()

    def any_node(self) -> SimNode:
        """Return a random node."""
        nodes = self.world.world.nodes
        return nodes[self.rng.choice(self.world.world.names)]

    def a_topic(self) -> Topic | None:
        """Return a random existing topic."""
        topics = list(self.world.model.topics.values())
        return self.rng.choice(topics) if topics else None

    def a_consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return the consumer group of that name."""
        return next(
            (
                consumer_group
                for consumer_group in self.world.model.groups.values()
                if consumer_group.name == name
            ),
            None,
        )

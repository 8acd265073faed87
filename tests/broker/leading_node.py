"""A node that leads, with its coordination of queue-exclusive groups; no Raft, no disk, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.leader.coordination import Coordination, MembershipStream
from ledgermq.broker.leader.pipeline import Applied
from ledgermq.broker.state.commands import Command, JoinConsumerGroup, StartPosition
from ledgermq.broker.state.effects import Effects
from ledgermq.raft.errors import NotLeaderError, ProposalLostError

from .entry_log import Node


class Leader:
    """A node that leads: each command is an entry, applied in the next turn of the loop, refused, or lost."""

    def __init__(self, *, start: str = "earliest", queues: int = 4) -> None:
        self.node = Node()
        self.topic = self.node.topic(queues=queues)
        self.group = self.node.group(start=StartPosition.parse(start))
        self.time = 0.0
        self.asked: list[Command] = []
        self.refuse: Callable[[Command], Exception | None] = lambda command: None
        self.lose: Callable[[Command], bool] = lambda command: False
        self.leadership = Leadership("n1")
        self.looked_up: list[tuple[int, int, int]] = []
        replica: Any = SimpleNamespace(state=self.node.state)
        pipeline: Any = SimpleNamespace(run=self.run)
        self.coordination = Coordination(
            replica, pipeline, self.leadership, "", self._look_up, lambda: self.time
        )
        self.leadership.on_ready(1)
        self.leadership.add_listener(self.coordination.on_leadership)
        self.coordination.on_leadership()

    async def _look_up(self, topic_id: int, queue_id: int, timestamp: int) -> int:
        self.looked_up.append((topic_id, queue_id, timestamp))
        return 2

    def run(self, command: Command) -> asyncio.Future[Applied]:
        """As AppendPipeline.run."""
        if not self.leadership.ready:
            raise NotLeaderError(None)
        if (error := self.refuse(command)) is not None:
            raise error
        self.asked.append(command)
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self._decide, command, future)
        return future

    def _decide(self, command: Command, future: asyncio.Future[Applied]) -> None:
        if self.lose(command):
            future.set_exception(ProposalLostError("lost"))
            future.exception()
            return
        effects = self.apply(command)
        if not future.done():
            future.set_result(Applied(effects.results[0], effects.index))

    def apply(self, command: Command) -> Effects:
        """Apply an entry of any node."""
        effects = self.node.command(command)
        self.coordination.on_effects(effects)
        return effects

    async def join(self, name: str, **options: Any) -> MembershipStream:
        command = JoinConsumerGroup(
            self.group,
            name,
            options.pop("topics", ("orders",)),
            session_timeout_ms=3000,
            release_ms=1000,
            **options,
        )
        stream = await self.coordination.open(command)
        await settle()
        return stream

    async def tick(self, seconds: float = 0.1) -> None:
        """Time passes, and the node looks what is due."""
        for _ in range(round(seconds / 0.1)):
            self.time += 0.1
            self.coordination._tick()
            await settle()

    def owned(self, stream: MembershipStream) -> list[int]:
        view = self.coordination.view(stream)
        assert view is not None
        return [key[1] for key, _ in view.owned]


async def settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())

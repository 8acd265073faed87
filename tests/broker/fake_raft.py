"""A Raft node that takes proposals, for tests of what stands on the append pipeline."""

from __future__ import annotations

import asyncio

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.leader.leader_view import LeaderView
from ledgermq.broker.leader.pipeline import AppendPipeline
from ledgermq.broker.state.commands import CreateTopic, MessageType
from ledgermq.broker.state.effects import Effects
from ledgermq.broker.state.machine import BrokerState
from ledgermq.proto.entry import Buffer, EntryHeader, EntryKind, entry_size
from ledgermq.raft.state_machine import Proposal


class FakeRaft:
    """Takes proposals; the test decides when they are committed and applied."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self.view = LeaderView(self.state, 1, 0)
        self.pipeline = AppendPipeline(self, 16 << 20)
        self.pipeline.on_leader(self.view)
        self.proposals: list[Proposal] = []
        self.payloads: list[bytes] = []
        self.urgent: list[bool] = []
        self.error: Exception | None = None
        self.end = 0

    def next_timestamp(self) -> int:
        return 1000

    def propose(self, parts: list[Buffer], section_count: int, *, urgent: bool = False) -> Proposal:
        self.urgent.append(urgent)
        if self.error is not None:
            raise self.error
        payload = b"".join(bytes(part) for part in parts)
        index, size = len(self.proposals) + 1, entry_size(len(payload))
        header = EntryHeader(
            0, size, EntryKind.RECORDS, section_count, index, 1, self.end, 1000, 0, len(payload)
        )
        self.end += size
        proposal = Proposal(header, asyncio.get_running_loop().create_future())
        self.proposals.append(proposal)
        self.payloads.append(payload)
        return proposal

    async def decide(self, place: int) -> Effects:
        """Commit and apply a proposal."""
        proposal = self.proposals[place]
        proposal.committed.set_result(None)
        await settle()
        effects = self.state.apply(proposal.header, memoryview(self.payloads[place]))
        self.view.on_applied(proposal.index)
        self.pipeline.on_applied(effects)
        await settle()
        return effects

    async def topic(self, name: str = "a", queues: int = 2) -> None:
        future = self.pipeline.run(CreateTopic(name, queues, MessageType.NORMAL))
        await settle()
        await self.decide(len(self.proposals) - 1)
        assert future.result().result.changed


async def lead_twice(raft: FakeRaft, leadership: Leadership) -> None:
    """Let another node lead, then this one, twice: it proposes only when it first leads, which is decided."""
    leadership.on_changed("n2", 1)
    await settle()
    assert not raft.proposals, "another node leads"
    leadership.on_ready(2)
    await settle()
    await raft.decide(0)
    leadership.on_ready(3)
    await settle()
    assert len(raft.proposals) == 1


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)

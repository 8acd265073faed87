"""The append pipeline: what arrives together shares an entry, and bounds hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from ledgermq.broker import produce
from ledgermq.broker.commands import CreateTopic
from ledgermq.broker.produce import AppendPipeline, TooManyRequestsError, Turn
from ledgermq.proto.entry import HEADER_SIZE, Buffer, EntryHeader, EntryKind
from ledgermq.proto.record import SectionKind, encode_section, walk_sections
from ledgermq.raft.errors import NotLeaderError, ProposalLostError
from ledgermq.raft.state_machine import Proposal


class FakeRaft:
    """Takes proposals; the test decides when they are committed."""

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []
        self.payloads: list[bytes] = []
        self.error: Exception | None = None

    def propose(self, parts: list[Buffer], section_count: int) -> Proposal:
        if self.error is not None:
            raise self.error
        payload = b"".join(bytes(part) for part in parts)
        index = len(self.proposals) + 1
        size = HEADER_SIZE + len(payload)
        header = EntryHeader(
            0, size, EntryKind.RECORDS, section_count, index, 1, 0, 1000 + index, 0, len(payload)
        )
        proposal = Proposal(header, asyncio.get_running_loop().create_future())
        self.proposals.append(proposal)
        self.payloads.append(payload)
        return proposal


class SectionWork:
    """A work that adds one section and notes what happens to it."""

    def __init__(self, size: int = 64, log: list[str] | None = None, name: str = "") -> None:
        self.size = size
        self.name = name
        self.log = log if log is not None else []

    def place(self, turn: Turn) -> None:
        section = encode_section(SectionKind.RECORDS, [bytes(self.size)], 1)
        turn.add_section(section[:64], section[64:], 7)

    def on_committed(self, turn: Turn) -> None:
        self.log.append(f"{self.name} committed {turn.index}")

    def on_applied(self, turn: Turn, results: Sequence[object]) -> None:
        self.log.append(f"{self.name} applied {turn.index}")

    def fail(self, error: Exception) -> None:
        self.log.append(f"{self.name} {type(error).__name__}")


def run(test: Callable[[FakeRaft, AppendPipeline], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        raft = FakeRaft()
        await test(raft, AppendPipeline(raft))

    asyncio.run(body())


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_works_and_commands_of_one_moment_share_an_entry_whose_sections_name_their_places() -> None:
    async def body(raft: FakeRaft, pipeline: AppendPipeline) -> None:
        pipeline.submit(SectionWork())
        created = pipeline.run(CreateTopic("a", 1))
        pipeline.submit(SectionWork())
        await settle()
        (payload,) = raft.payloads
        sections = list(walk_sections(payload, 3))
        assert [header.entry_distance for _, header in sections] == [HEADER_SIZE + at for at, _ in sections]
        assert [header.kind for _, header in sections] == [1, 1, 2]
        raft.proposals[0].committed.set_result(None)
        await settle()
        assert not created.done(), "a command's result is known when it is applied"
        pipeline.on_applied(1, ["result"])
        assert created.result() == "result"

    run(body)


def test_small_works_wait_for_the_append_that_is_out_and_large_ones_do_not() -> None:
    async def body(raft: FakeRaft, pipeline: AppendPipeline) -> None:
        for _ in range(2):
            pipeline.submit(SectionWork())
            await settle()
        assert len(raft.proposals) == 1
        for _ in range(12):
            pipeline.submit(SectionWork(produce.LARGE_TURN_BYTES))
            await settle()
        assert len(raft.proposals) == produce.MAX_TURNS_IN_FLIGHT
        raft.proposals[0].committed.set_result(None)
        await settle()
        assert len(raft.proposals) == produce.MAX_TURNS_IN_FLIGHT + 1

    run(body)


def test_over_the_bound_a_work_is_refused_and_the_limit_is_named() -> None:
    async def body(raft: FakeRaft, pipeline: AppendPipeline) -> None:
        with pytest.raises(TooManyRequestsError, match=str(produce.MAX_WAITING_BYTES)):
            pipeline.submit(SectionWork(produce.MAX_WAITING_BYTES + 1))

    run(body)


def test_a_refused_proposal_fails_definitely_and_a_lost_one_as_unknown() -> None:
    async def body(raft: FakeRaft, pipeline: AppendPipeline) -> None:
        log: list[str] = []
        pipeline.submit(SectionWork(log=log, name="a"))
        await settle()
        raft.proposals[0].committed.set_exception(ProposalLostError("gone"))
        await settle()
        raft.error = NotLeaderError("n2")
        pipeline.submit(SectionWork(log=log, name="b"))
        await settle()
        assert log == ["a ProposalLostError", "b NotLeaderError"]
        assert pipeline.is_idle
        assert pipeline.bytes_waiting == 0

    run(body)


def test_at_step_down_what_was_not_proposed_is_refused() -> None:
    async def body(raft: FakeRaft, pipeline: AppendPipeline) -> None:
        log: list[str] = []
        pipeline.submit(SectionWork(log=log, name="a"))
        await settle()
        pipeline.submit(SectionWork(log=log, name="b"))
        pipeline.on_leader_lost()
        assert log == ["b NotLeaderError"]
        assert len(raft.proposals) == 1

    run(body)

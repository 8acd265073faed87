"""What LogService answers when a leader cannot be sure that it still leads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ledgermq.broker.leader_view import Verdict
from ledgermq.broker.log_service import LogService
from ledgermq.broker.produce_works import SectionOutcome
from ledgermq.proto import log_pb2, route_pb2
from ledgermq.raft.errors import NotLeaderError


class Counter:
    def labels(self, *_names: str) -> Counter:
        return self

    def inc(self, count: float = 1) -> None:
        pass


class Stream:
    """The answers that were written."""

    def __init__(self) -> None:
        self.written: list[log_pb2.ProduceResponse] = []

    async def write(self, answer: log_pb2.ProduceResponse) -> None:
        self.written.append(answer)


async def answer(outcomes: list[SectionOutcome], *, timestamp: int, leads: bool) -> log_pb2.ProduceResponse:
    async def read_index() -> int:
        if not leads:
            raise NotLeaderError(None)
        return 1

    context: Any = SimpleNamespace(
        raft=SimpleNamespace(read_index=read_index),
        metrics=SimpleNamespace(
            messages_in=Counter(), duplicates=Counter(), bytes_in=Counter(), refusals=Counter()
        ),
        leader_addresses=lambda listener: None,
        leadership=SimpleNamespace(leader_id="n2"),
    )
    work: Any = SimpleNamespace(
        future=asyncio.get_running_loop().create_future(), timestamp=timestamp, size=100
    )
    work.future.set_result(outcomes)
    under_way: asyncio.Queue[Any] = asyncio.Queue()
    for item in ((7, work), None):
        under_way.put_nowait(item)
    stream = Stream()
    await LogService(context)._answer(under_way, stream, "")
    (written,) = stream.written
    return written


GAP = SectionOutcome(Verdict.SEQUENCE_GAP, -1, 1, 3)


def test_a_leader_that_was_deposed_unawares_speaks_of_no_gap() -> None:
    """What it calls a gap its successor may have stored: the producer must ask that one."""
    written = asyncio.run(answer([GAP], timestamp=0, leads=False))
    assert written.refusal.code == route_pb2.NOT_LEADER
    assert not written.results


def test_a_leader_that_was_confirmed_speaks_of_the_gap() -> None:
    written = asyncio.run(answer([GAP], timestamp=0, leads=True))
    assert [each.refusal.code for each in written.results] == [route_pb2.SEQUENCE_GAP]


def test_a_committed_entry_of_the_same_turn_is_proof_enough() -> None:
    stored = SectionOutcome(Verdict.ACCEPTED, 5, 1)
    written = asyncio.run(answer([stored, GAP], timestamp=9, leads=False))
    assert [each.refusal.code for each in written.results] == [0, route_pb2.SEQUENCE_GAP]

"""Releases are proposed until one is applied."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.leader.pipeline import Applied, TooManyRequestsError
from ledgermq.broker.leader.releases import LeaseReleases
from ledgermq.broker.state.commands import ReleaseLeases, lease_rows
from ledgermq.broker.state.machine import BrokerState
from ledgermq.raft.errors import NotLeaderError, ProposalLostError

from ..fake_raft import settle


def release(offset: int, group: int = 1) -> ReleaseLeases:
    return ReleaseLeases(group, 2, lease_rows([(0, offset, 7)]))


class Pipeline:
    """Takes releases, or refuses all of them."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.asked: list[int] = []
        self.futures: list[asyncio.Future[Applied]] = []
        self.tries = 0
        self.releases = LeaseReleases(self.run, BrokerState, Leadership("n1"))

    def run(self, command: ReleaseLeases) -> asyncio.Future[Applied]:
        self.asked += command.rows["offset"].tolist()
        self.tries += 1
        if self.refusal is not None:
            raise self.refusal
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def asked_again(self) -> list[int]:
        """Return the offsets of what is proposed again."""
        self.asked.clear()
        self.tries = 0
        self.releases.again()
        return list(self.asked)


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


async def test_what_is_applied_is_not_proposed_again(pipeline: Pipeline) -> None:
    pipeline.releases.propose(release(1))
    pipeline.futures[0].set_result(Applied(None, 3))
    await settle()
    assert pipeline.asked_again() == []


async def test_what_was_lost_or_whose_caller_went_is_proposed_again_and_once(pipeline: Pipeline) -> None:
    for offset in (1, 2):
        pipeline.releases.propose(release(offset))
    pipeline.futures[0].set_exception(ProposalLostError("the leader was deposed"))
    pipeline.futures[1].cancel()
    await settle()
    assert pipeline.asked_again() == [1, 2]
    assert pipeline.asked_again() == [], "they are under way"


async def test_while_nothing_is_taken_one_is_tried_and_none_is_lost(pipeline: Pipeline) -> None:
    pipeline.refusal = TooManyRequestsError(100, 100)
    refused = [pipeline.releases.propose(release(offset, group=offset)) for offset in (1, 2, 3)]
    assert [type(each.exception()) for each in refused] == [TooManyRequestsError] * 3
    pipeline.refusal = NotLeaderError(None)
    assert len(pipeline.asked_again()) == 1
    pipeline.refusal = None
    assert sorted(pipeline.asked_again()) == [1, 2, 3]


async def test_however_many_are_owed_none_is_forgotten_and_few_commands_say_them(pipeline: Pipeline) -> None:
    pipeline.refusal = NotLeaderError(None)
    for offset in range(12_000):
        pipeline.releases.propose(release(offset))
    assert pipeline.releases.owed == 1
    pipeline.refusal = None
    assert pipeline.asked_again() == list(range(12_000))
    assert pipeline.tries == 3

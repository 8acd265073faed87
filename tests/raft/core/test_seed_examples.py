"""Elections and commits given as examples in the seed articles (docs/seeds.md, A4.11, A4.14 and A4.15)."""

from __future__ import annotations

import random

import pytest

from ledgermq.raft.core.messages import RequestVote, RequestVoteReply
from ledgermq.raft.core.outputs import Role

from ..core_cluster import Cluster

_TOGETHER = 40  # ticks after which all campaign


class Sleeps(random.Random):
    """Draws `sleeps` for the pauses after refused votes, and election timeouts that none of them reaches."""

    def __init__(self, *sleeps: int) -> None:
        super().__init__(0)
        self._sleeps = iter(sleeps)

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is not None
        return next(self._sleeps, stop - 1) if start == 1 else stop - 1


def test_after_three_votes_for_themselves_the_node_that_sleeps_least_is_elected() -> None:
    """All campaign at the same moment and vote for themselves.

    They then sleep for 3, 5 and 4, so n1 wakes first.
    """
    cluster = Cluster("n1", "n2", "n3")
    for name, sleep in zip(cluster.names, (3, 5, 4), strict=True):
        cluster[name].rng = Sleeps(19, sleep)  # the second refusal makes the round lost
        cluster[name].timeout = _TOGETHER
    for _ in range(_TOGETHER):
        for name in cluster.names:
            cluster[name].tick()
    cluster.settle()
    votes = [
        (message.from_, message.granted)
        for name in cluster.names
        for message in cluster.members[name].sent
        if isinstance(message, RequestVoteReply) and not message.pre_vote
    ]
    assert [cluster[name].voted_for for name in cluster.names] == list(cluster.names)
    assert len(votes) == 6
    assert not any(granted for _, granted in votes)

    cluster.tick(2)
    assert all(cluster[name].role is Role.FOLLOWER for name in cluster.names), "they sleep"
    cluster.tick()
    assert [cluster[name].role for name in cluster.names] == [Role.LEADER, Role.FOLLOWER, Role.FOLLOWER]
    assert [cluster[name].voted_for for name in cluster.names] == ["n1"] * 3
    candidates = {
        message.from_
        for name in cluster.names
        for message in cluster.members[name].sent
        if isinstance(message, RequestVote) and message.term == cluster["n1"].term
    }
    assert candidates == {"n1"}


@pytest.mark.parametrize("holders", [["n2"], ["n2", "n3"]])
def test_an_entry_that_a_majority_holds_uncommitted_is_committed_by_the_next_leader(
    holders: list[str],
) -> None:
    """A majority of nodes is enough: the leader and one follower. "Of followers", as in two seeds, would mean
    both.
    """
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.tick(40)  # until all know what is committed
    committed = cluster["n1"].commit_index
    for name in ("n2", "n3"):
        cluster.cut_one_way(name, "n1")  # no reply arrives
        if name not in holders:
            cluster.cut_one_way("n1", name)
    entry = cluster.propose("n1")
    assert [len(cluster.members[name].disk_terms) for name in holders] == [entry] * len(holders)
    assert {cluster[name].commit_index for name in cluster.names} == {committed}

    cluster.crash("n1")
    cluster.heal()
    cluster.elect("n2")
    cluster.tick(40)
    for name in ("n2", "n3"):
        assert cluster.members[name].terms[entry - 1] == 1
        assert cluster[name].commit_index > entry, "with the first entry of the new term"


def test_the_leader_has_committed_and_answers_before_its_followers_know() -> None:
    """A4.14: they hold the entry, as its two phases demand, and learn with the next message that it is
    committed.
    """
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.tick(40)
    entry = cluster.propose("n1")
    assert cluster.members["n1"].committed[-1] == entry, "the producer is answered"
    for name in ("n2", "n3"):
        assert len(cluster.members[name].disk_terms) == entry
        assert cluster[name].commit_index < entry
    cluster.tick(7, "n1")
    assert {cluster[name].commit_index for name in cluster.names} == {entry}

"""Stamps of four processes become the chain of one message."""

from __future__ import annotations

import pytest

from bench.hops.chain import Chain, Stamps, chain_of
from bench.hops.probe import Event

LOG, RAFT, A, B = 82, 911, 921, 931  # ports: the leader's, and of the followers' Raft ports
CLIENT, TO_A, TO_B, FROM_A, FROM_B = 50_001, 50_002, 50_003, 50_004, 50_005


def follower(raft_port: int, dialled: int, own: int, *, slow: int = 0) -> Stamps:
    return Stamps([
        (130 + slow, "in", raft_port, dialled),
        (140 + slow, "flush", 0, 0),
        (170 + slow, "flushed", 0, 0),
        (175 + slow, "out", own, RAFT),
    ])  # fmt: skip


def whole(*, flushed: int, leader_adds: list[Event] | None = None) -> Chain:
    client = Stamps([(105, "out", CLIENT, LOG), (90, "out", CLIENT, 76), (220, "in", CLIENT, LOG)])
    leader = Stamps(
        sorted([
            (110, "in", LOG, CLIENT), (118, "out", TO_A, A), (119, "out", TO_B, B),
            (121, "flush", 0, 0), (flushed, "flushed", 0, 0),
            (181, "in", RAFT, FROM_A), (191, "in", RAFT, FROM_B), (210, "out", LOG, CLIENT),
            *(leader_adds or []),
        ])
    )  # fmt: skip
    followers = {A: follower(A, TO_A, FROM_A, slow=2), B: follower(B, TO_B, FROM_B, slow=12)}
    return chain_of(100, 230, client, leader, followers, (LOG, RAFT))


def test_the_chain_goes_through_the_quicker_follower() -> None:
    hops, aside = whole(flushed=150).hops, whole(flushed=150).aside
    assert hops == (5, 5, 8, 14, 10, 30, 5, 4, 29, 10, 10)
    assert sum(hops) == 230 - 100, "nothing is counted twice or left out"
    assert aside == (11, 29, 0)


def test_a_leader_whose_own_flush_is_slower_waits_for_it() -> None:
    chain = whole(flushed=200)
    assert chain.aside == (11, 79, 19)
    assert sum(chain.hops) == 130 - 19


def test_a_message_without_an_answer_has_no_chain() -> None:
    with pytest.raises(LookupError, match=r"no flushed after 121"):
        whole(flushed=120)
    with pytest.raises(LookupError, match=r"nothing was sent to 82"):
        chain_of(300, 400, Stamps([(105, "out", CLIENT, LOG)]), Stamps([]), {}, (LOG, RAFT))

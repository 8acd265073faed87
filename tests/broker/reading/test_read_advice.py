"""Who is told to read elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.broker import node as server
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.reading.read_advice import ReadAdvice
from ledgermq.raft.node_status import PeerStatus
from ledgermq.raft.types import LogIndex, NodeId


def peer(node: str, **changes: Any) -> PeerStatus:
    """Return a follower that is up to date, with changes."""
    fields: dict[str, Any] = {
        "address": "", "role": "follower", "connected": True, "durable_index": LogIndex(9),
        "commit_index": LogIndex(9),
        "behind_bytes": 0, "last_contact_ms": 5, "fsync_p99_ms": 1.0, "disk_used_ratio": 0.1,
        "catching_up": False,
    }  # fmt: skip
    return PeerStatus(node_id=NodeId(node), **{**fields, **changes})


LEADER = peer("n1", role="leader")


def suggested(advice: ReadAdvice, backlog: int, *peers: PeerStatus) -> str:
    return advice.follower(backlog, lambda: [LEADER, *peers])


def test_only_a_backlog_above_what_fits_in_memory_goes_to_a_follower() -> None:
    advice = ReadAdvice(1000)
    assert suggested(advice, 1000, peer("n2")) == ""
    assert suggested(advice, 1001, peer("n2")) == "n2"


def test_a_reader_of_a_follower_goes_back_when_half_of_that_is_left() -> None:
    advice = ReadAdvice(1000)
    assert not advice.has_caught_up(501)
    assert advice.has_caught_up(500)


def test_readers_are_spread_over_the_followers() -> None:
    advice = ReadAdvice(1000)
    assert {suggested(advice, 5000, peer("n2"), peer("n3")) for _ in range(2)} == {"n2", "n3"}


@pytest.mark.parametrize(
    "unfit",
    [
        peer("n2", connected=False),
        peer("n2", role="unknown"),
        peer("n2", role="candidate"),
        peer("n2", behind_bytes=501),
        peer("n2", behind_bytes=None),
        peer("n2", repairing="entries 5 to 9"),
    ],
)
def test_a_follower_that_is_away_or_behind_is_never_suggested(unfit: PeerStatus) -> None:
    advice = ReadAdvice(1000)
    assert suggested(advice, 5000, unfit) == ""
    assert {suggested(advice, 5000, unfit, peer("n3")) for _ in range(3)} == {"n3"}


def test_a_learner_that_is_up_to_date_serves_readers() -> None:
    assert suggested(ReadAdvice(1000), 5000, peer("n2", role="learner", catching_up=True)) == "n2"


def test_it_can_be_switched_off() -> None:
    assert suggested(ReadAdvice(1000, enabled=False), 5000, peer("n2")) == ""


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({}, 400),
        ({"access_message_in_memory_max_ratio": 5}, 50),
        ({"access_message_in_memory_max_bytes": "2KiB"}, 2048),
    ],
)
def test_what_fits_is_a_share_of_the_usable_memory_or_what_is_set(
    settings: dict[str, Any], fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "usable_memory", lambda: 1000)
    assert server.read_advice(BrokerConfig(**settings)).in_memory_bytes == fits


def test_a_node_that_is_told_so_sends_no_reader_away() -> None:
    assert suggested(server.read_advice(BrokerConfig(follower_reads=False)), 1 << 60, peer("n2")) == ""

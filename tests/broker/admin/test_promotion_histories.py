"""Random histories of promotions, with crashes and partitions in between (D24). These must hold:

* No node takes part in two generations of which neither follows the other: a node that began one or was
  told of it, and answers, keeps another one from beginning beside it.
* Two masters never both lead and have accepted each other.
* When all nodes are there, a person who does what the refusals say gets one group, with one master.
* What any master has confirmed is in that group, or in a quarantine.
"""

from __future__ import annotations

from collections import Counter

import pytest

from ledgermq.broker.admin import promotion
from ledgermq.broker.admin.promotion_claims import GenerationClaims
from ledgermq.proto import admin_pb2 as pb

from ..promotion_world import run_history

SEEDS = range(40)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "BELIEF_S", 0.0)


def test_whatever_happens_around_promotions_one_group_comes_out_and_nothing_confirmed_is_nowhere() -> None:
    happened = Counter[str]()
    for seed in SEEDS:
        world = run_history(seed)
        happened.update(world.happened)
        happened.update({"begun": len(world.begun), "confirmed": len(world.acked)})
    for what in ("left behind", "named", "held", "healed by a person", "begun", "confirmed"):
        assert happened[what] >= 5, f"{what}: {happened}"


def test_without_claims_two_generations_begin_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """So these histories can tell the two apart."""

    async def note(*_: object) -> pb.NoteClaimResponse:
        return pb.NoteClaimResponse()

    monkeypatch.setattr(GenerationClaims, "note", note)
    with pytest.raises(AssertionError, match="beside"):
        for seed in SEEDS:
            run_history(seed)

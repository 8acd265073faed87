"""Claims: nodes learn of a generation before it begins, so that no two begin beside each other (D24)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.admin import promotion, promotion_claims
from ledgermq.broker.admin.promotion_claims import from_proto, to_proto
from ledgermq.broker.cluster.lane import ForwardError
from ledgermq.broker.refusals import RefusedError
from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2
from ledgermq.raft.core.reign import Claim, Reign
from ledgermq.raft.folder.group_recovery import claim_of
from ledgermq.raft.types import LogIndex, NodeId

from .test_promotion import SECOND, Slave, ask, refused, says

OF_N1 = Claim(
    group_id=0xD, reign=SECOND.next(NodeId("n1"), 0xB, LogIndex(90))
)  # n1 goes on from n3's generation
OF_N2 = Claim(group_id=0xE, reign=SECOND.next(NodeId("n2"), 0xB, LogIndex(95)))
BESIDE = Claim(group_id=0xC, reign=Reign(master=NodeId("n1")).next(NodeId("n1"), 0xA, LogIndex(5)))


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "BELIEF_S", 0.0)


def note(slave: Slave, claim: Claim) -> route_pb2.Refusal:
    """Tell n3 what is to begin; return its refusal, if any."""
    try:
        asyncio.run(slave.parts()[1].note(pb.NoteClaimRequest(claim=to_proto(claim))))
    except RefusedError as error:
        assert "nothing was changed" in error.refusal.message
        return error.refusal
    return route_pb2.Refusal()


def test_everybody_who_answers_stores_what_begins_before_the_node_steps_aside() -> None:
    slave = Slave(others={"n1": says("n1"), "n2": says("n2")})
    assert ask(slave) == 2
    plan, last = slave.progress.plan, LogIndex(slave.end[1])
    assert plan is not None
    assert {node: from_proto(claim) for node, claim in slave.told.items()} == dict.fromkeys(
        ("n1", "n2"), claim_of(slave.storage.identity, plan, last)
    )
    assert slave.log.index("tells n2") < slave.log.index("steps aside")


def test_who_answers_only_at_the_last_look_is_told_too() -> None:
    slave = Slave(others={"n1": says("n1")})
    asked = slave.unary

    async def unary(node: str, *call: Any) -> bytes:
        answer = await asked(node, *call)
        if slave.told:
            slave.others["n2"] = says("n2")
        return answer

    ask(slave, forwarder=SimpleNamespace(unary=unary))
    assert set(slave.told) == {"n1", "n2"} and slave.log.count("tells n1") == 1


def test_who_cannot_store_it_stops_the_promotion_and_an_older_version_does_not() -> None:
    others = {"n1": says("n1"), "n2": says("n2")}
    assert ask(Slave(others=others, older=("n1",))) == 2
    busy = route_pb2.Refusal(code=route_pb2.INTERNAL, message="n1: no; nothing was changed", retryable=True)
    slave = Slave(others=others, refuses={"n1": busy})
    refusal = refused(slave)
    assert refusal == busy and "steps aside" not in slave.log
    slave = Slave(others={"n1": says("n1")})
    asked = slave.unary

    async def lost(node: str, method: str, *call: Any) -> bytes:
        if method == promotion_claims.NOTE:
            raise ForwardError(False, "no answer")
        return await asked(node, method, *call)

    refusal = refused(slave, forwarder=SimpleNamespace(unary=lost))
    assert refusal.retryable and "n1 answers, but could not be told" in refusal.message


def test_a_claim_that_was_told_stands_in_the_way_for_as_long_as_its_node_does_not_answer() -> None:
    """However long that one takes to start: no time is measured."""
    slave = Slave(claims=(OF_N1,), heard_ms={"n1": 3_600_000})
    refusal = refused(slave)
    assert refusal.retryable and "--instead-of n1" in refusal.message
    assert "n1 is to become the master (generation 2) and does not answer" in refusal.message
    assert not [done for done in slave.log if "verifies" in done]


def test_a_claim_that_another_node_was_told_counts_as_well() -> None:
    slave = Slave(others={"n2": says("n2", claims=[to_proto(OF_N1)])})
    assert "n1 is to become the master" in refused(slave).message


def test_a_generation_that_begins_after_a_claim_is_a_later_one_and_leaves_it_behind() -> None:
    slave = Slave(claims=(OF_N1,), heard_ms={"n1": 40})
    assert ask(slave, instead_of=["n1"]) == 3
    identity = slave.storage.identity
    assert slave.progress.plan is not None
    begun = claim_of(identity, slave.progress.plan, LogIndex(100))
    assert set(begun.reign.former_group_ids) == {0xA, 0xB, 0xD}


def test_a_node_that_claimed_and_is_a_slave_again_is_no_obstacle_but_is_left_behind_all_the_same() -> None:
    """What is asked of two nodes is not asked in one instant."""
    slave = Slave(claims=(OF_N1,), others={"n1": says("n1")})
    assert ask(slave) == 3
    assert 0xD in from_proto(slave.told["n1"]).reign.former_group_ids


def test_a_claim_that_this_generation_follows_or_that_is_its_own_is_none() -> None:
    of_itself = Claim(group_id=0xF, reign=SECOND.next(NodeId("n3"), 0xB, LogIndex(90)))
    began = Claim(group_id=0xB, reign=SECOND)
    old = Claim(group_id=0xA, reign=Reign(master=NodeId("n2")))
    told = [to_proto(claim) for claim in (of_itself, began, old)]
    assert ask(Slave(others={"n1": says("n1", claims=told)})) == 2


def test_a_generation_beside_this_one_must_be_named_to_be_given_up() -> None:
    slave = Slave(beside=(BESIDE,))
    message = refused(slave).message
    assert "promoted beside n2: n1 (generation 1, from entry 6 on)." in message
    assert "cluster promote n3 --instead-of n1" in message
    another = Claim(group_id=0xF, reign=replace(BESIDE.reign, master=NodeId("n4")))
    message = refused(Slave(beside=(BESIDE, another)), instead_of=["n4"]).message
    assert "cluster promote n3 --instead-of n1 --instead-of n4" in message
    slave.others = {"n1": says("n1", master_id="n1", leader_id="n1")}
    assert ask(slave, instead_of=["n1"]) == 2
    assert set(from_proto(slave.told["n1"]).reign.former_group_ids) == {0xA, 0xB, 0xC}


def test_a_master_that_leads_goes_on_in_the_place_of_one_beside_it() -> None:
    slave = Slave(leader="n3", beside=(BESIDE,), others={"n1": says("n1", master_id="n1", leader_id="n1")})
    assert "--instead-of n1" in refused(slave).message
    slave.log.clear()
    slave.durable = 97
    slave.on_read = [lambda: setattr(slave, "end", (4, 170))]  # it goes on storing messages
    assert ask(slave, instead_of=["n1"]) == 2
    assert slave.log[-1] == "steps aside"
    assert len([done for done in slave.log if "verifies" in done]) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says("n2", leader_id="n2"), "n2 is alive"),
        (says("n1", master_id="n1", promoting="tells the other nodes"), "being promoted just now"),
        (says("n2", generation=2, master_id="n2"), "has not heard of that promotion"),
        (
            says("n2", master_id="n4", leader_id="n4"),
            "with another master than n2, and n3 has not heard that",
        ),
    ],
)
def test_who_is_not_given_up_still_forbids_it(answer: pb.GetStatusResponse, words: str) -> None:
    slave = Slave(beside=(BESIDE,), others={answer.node_id: answer})
    assert words in refused(slave, instead_of=["n1"]).message


def test_nobody_is_given_up_of_whose_promotion_nothing_is_known() -> None:
    assert "knows of no promotion of n2" in refused(Slave(), instead_of=["n2"]).message


def test_a_claim_is_stored_by_a_node_that_it_leaves_behind() -> None:
    slave = Slave()
    assert not note(slave, OF_N1).code
    assert slave.claims == (OF_N1,)
    assert not note(slave, OF_N1).code, "the same node may claim again"
    for other in (Slave(group_id=0), Slave(group_id=0x1), Slave(reign=None)):
        assert not note(other, OF_N1).code
        assert not other.claims, "nothing that begins there would be taken for the same generation"


def test_who_is_promoted_itself_or_was_told_of_another_one_refuses_a_claim() -> None:
    slave = Slave()
    slave.progress.doing = "tells the other nodes"
    assert "n3 is being promoted just now" in note(slave, OF_N1).message
    slave = Slave(claims=(OF_N1,))
    refusal = note(slave, OF_N2)
    assert refusal.retryable and "n1 is to become the master" in refusal.message
    assert slave.claims == (OF_N1,)
    knowing = Claim(group_id=0xE, reign=SECOND.next(NodeId("n2"), 0xB, LogIndex(95), [OF_N1]))
    assert not note(slave, knowing).code


def test_what_cannot_be_stored_is_refused() -> None:
    slave = Slave(disk_error=OSError(5, "no"))
    assert "cannot store" in note(slave, OF_N1).message
    stranger = Claim(group_id=0xD, reign=SECOND.next(NodeId("n9"), 0xB, LogIndex(90)))
    assert 'no other node "n9"' in note(Slave(), stranger).message

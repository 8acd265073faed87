"""Refusals of ledgermq.v1: the code, whether to repeat, and where to go."""

from __future__ import annotations

import pytest

from ledgermq.broker.cluster.leader_calls import LeaderUnavailableError
from ledgermq.broker.errors import TopicNotFoundError
from ledgermq.broker.leader.pipeline import TooManyRequestsError
from ledgermq.broker.refusals import RefusedError, refusal_of
from ledgermq.proto import route_pb2
from ledgermq.proto.route_pb2 import ListenerAddresses
from ledgermq.raft.errors import NotLeaderError, ProposalLostError


def test_a_node_that_does_not_lead_names_the_leader_in_the_callers_network() -> None:
    refusal = refusal_of(NotLeaderError("n2"), "n2", ListenerAddresses(log_address="10.0.0.2:8082"))
    assert (refusal.code, refusal.leader_id, refusal.leader_address) == (
        route_pb2.NOT_LEADER,
        "n2",
        "10.0.0.2:8082",
    )
    assert refusal.retryable


def test_without_a_leader_it_is_no_quorum() -> None:
    assert refusal_of(NotLeaderError(None)).code == route_pb2.NO_QUORUM
    assert refusal_of(LeaderUnavailableError(unknown=False)).code == route_pb2.NO_QUORUM


def test_a_lost_proposal_is_unknown_and_may_be_repeated() -> None:
    for error in (ProposalLostError("x"), LeaderUnavailableError(unknown=True)):
        refusal = refusal_of(error)
        assert refusal.code == route_pb2.OUTCOME_UNKNOWN
        assert refusal.retryable


def test_limits_say_when_to_come_again() -> None:
    refusal = refusal_of(TooManyRequestsError(70, 64))
    assert refusal.code == route_pb2.TOO_MANY_REQUESTS
    assert refusal.retry_after_ms > 0
    assert "64" in refusal.message


def test_what_does_not_exist_is_definite() -> None:
    refusal = refusal_of(TopicNotFoundError("orders"))
    assert (refusal.code, refusal.retryable) == (route_pb2.TOPIC_NOT_FOUND, False)
    assert refusal_of(RefusedError(route_pb2.ALREADY_EXISTS, "x")).code == route_pb2.ALREADY_EXISTS


def test_a_defect_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        refusal_of(ZeroDivisionError())

"""Core at the edges of its interface: late reports, forged messages, calls on the wrong role."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.raft.core.config import CoreConfig
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import (
    AppendEntries,
    AppendEntriesReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    ReadIndexReply,
    ReadIndexRequest,
    RequestVote,
    RequestVoteReply,
    Resign,
    TimeoutNow,
)
from ledgermq.raft.core.outputs import (
    Accepted,
    CaughtUp,
    FollowerBehind,
    LeaderChanged,
    NotLeader,
    Output,
    Role,
    Transferring,
)
from ledgermq.raft.core.progress import ProgressState
from ledgermq.raft.types import LAST_TERM, MAX_TERM_JUMP, HardState, LogIndex, NodeId, Term

from ..core_cluster import Cluster, make_core

N1, N2, N3, N4 = (NodeId(f"n{i}") for i in range(1, 5))


def outputs_of(core: RaftCore) -> list[Output]:
    """Poll until None. Every storage operation completes at once."""
    outputs = []
    while (output := core.poll()) is not None:
        outputs.append(output)
        if output.persist is not None:
            core.storage_done(output.persist.seq)
    return outputs


def sent_by(core: RaftCore) -> list[Message]:
    return [message for output in outputs_of(core) for message in output.send]


def open_appends(core: RaftCore) -> list[AppendEntries]:
    return [m for m in sent_by(core) if isinstance(m, AppendEntries) and not m.is_empty]


def make_leader(max_inflight_messages: int = 256) -> RaftCore:
    """n1 leads term 1 of three. Its no-op is only on its own disk, and its shell has reported nothing."""
    core = make_core(max_inflight_messages=max_inflight_messages)
    core.campaign()
    core.step(RequestVoteReply(Term(1), N2, N1, True, pre_vote=True))
    outputs_of(core)
    core.step(RequestVoteReply(Term(1), N2, N1, True))
    assert core.role is Role.LEADER
    return core


def acknowledge(core: RaftCore, peer: NodeId, index: int) -> None:
    core.step(AppendEntriesReply(core.term, peer, N1, True, match_index=LogIndex(index)))


# --- reports of the shell -----------------------------------------------------------------------------------
@pytest.mark.parametrize("report", ["sent", "dropped"])
def test_a_report_about_an_append_of_before_a_broken_link_changes_nothing(report: str) -> None:
    core = make_leader()
    old = next(m for m in open_appends(core) if m.to == N2)
    core.link_down(N2, refused=False)
    before = deepcopy(core.progress())
    if report == "sent":
        core.append_sent(old, old.hi, 100)
    else:
        core.append_dropped(old)
    assert core.progress() == before


@pytest.mark.parametrize("report", ["sent", "dropped"])
def test_a_report_that_comes_after_the_lead_was_lost_is_ignored(report: str) -> None:
    core = make_leader()
    old = next(m for m in open_appends(core) if m.to == N2)
    core.step(Heartbeat(Term(2), N3, N1, LogIndex(0)))
    outputs_of(core)
    if report == "sent":
        core.append_sent(old, old.hi, 100)
    else:
        core.append_dropped(old)
    assert core.poll() is None
    assert (core.role, core.leader_id) == (Role.FOLLOWER, N3)


def test_a_follower_that_answers_many_heartbeats_at_once_gets_one_copy_of_the_probe() -> None:
    """A follower that was stopped for seconds and resumes: copies of all entries since kept the leader from
    writing.
    """
    core = make_leader()
    for message in open_appends(core):
        core.append_sent(message, message.hi, 100)
    missed = 0
    for _ in range(20 * core.config.heartbeat_ticks):
        core.tick()
        core.step(HeartbeatReply(Term(1), N2, N1, 0))
        missed += sum(isinstance(m, Heartbeat) and m.to == N3 for m in sent_by(core))
    assert missed == 20
    copies = []
    for _ in range(missed):
        core.step(HeartbeatReply(Term(1), N3, N1, 0))
        for message in open_appends(core):
            copies.append(message.to)
            core.append_sent(message, message.hi, 100)
    assert copies.count(N3) == 1


def test_a_probe_that_was_lost_goes_again_with_the_answer_to_a_later_heartbeat() -> None:
    core = make_leader()
    for message in open_appends(core):
        core.append_sent(message, message.hi, 100)
    for copies in (1, 0, 0):
        if copies:  # the first heartbeat left with the election, before the probe; this one comes after it
            for _ in range(core.config.heartbeat_ticks):
                core.tick()
        core.step(HeartbeatReply(Term(1), N3, N1, 0))
        again = [message for message in open_appends(core) if message.to == N3]
        assert len(again) == copies
        for message in again:
            core.append_sent(message, message.hi, 100)


def test_a_cut_in_the_turn_of_a_proposal_is_an_operation_of_its_own() -> None:
    """The new leader's append arrives before the shell has asked what to do with the proposal."""
    core = make_leader()
    outputs_of(core)
    assert isinstance(core.propose([10, 10]), Accepted)
    runs = ((LogIndex(1), Term(2)),)
    core.step(
        AppendEntries(Term(2), N2, N1, LogIndex(0), Term(0), LogIndex(1), LogIndex(1), LogIndex(0), runs)
    )
    first, second = core.poll(), core.poll()
    assert (
        first is not None and first.persist is not None and second is not None and second.persist is not None
    )
    assert (first.persist.append, first.persist.truncate_from, first.send) == ((2, 3), None, [])
    assert (second.persist.truncate_from, second.persist.append) == (1, (1, 1))
    core.storage_done(second.persist.seq)
    assert core.stable_index == 1


def test_proposals_of_one_turn_share_an_operation() -> None:
    core = make_leader()
    outputs_of(core)
    core.propose([10])
    core.propose([10, 10])
    output = core.poll()
    assert output is not None and output.persist is not None
    assert output.persist.append == (2, 4)


def test_a_report_of_the_storage_that_comes_twice_or_late_changes_nothing() -> None:
    core = make_leader()
    outputs_of(core)
    core.propose([10])
    outputs_of(core)
    done = core.disk.done_seq
    for seq in (done, done - 1):
        core.storage_done(seq)
        assert (core.disk.done_seq, core.stable_index) == (done, 2)


def test_a_vote_of_an_incarnation_that_was_replaced_does_not_count() -> None:
    core = make_core()
    core.campaign()
    core.step(RequestVoteReply(Term(0), N2, N1, False, pre_vote=True))
    core.peer_replaced(N2)
    core.step(RequestVoteReply(Term(0), N3, N1, False, pre_vote=True))
    assert core.role is Role.PRE_CANDIDATE, "one refusal of two loses nothing"


# --- calls on the wrong role --------------------------------------------------------------------------------
def test_who_does_not_lead_knows_no_followers_and_hands_nothing_over() -> None:
    core = make_core()
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    assert (core.progress(), core.uncommitted_bytes) == ([], 0)
    assert core.transfer_leadership(N3) == NotLeader(N2)


def test_a_leader_tells_what_waits_and_to_whom_it_hands_over() -> None:
    core = make_leader()
    outputs_of(core)
    assert core.propose([10, 20]) == Accepted(LogIndex(2), Term(1))
    assert core.uncommitted_bytes == 30
    assert core.transfer_leadership(N2) == N2
    assert core.transfer_leadership(N2) == N2, "asked again: it goes on"
    assert core.propose([10]) == Transferring(N2)


def test_nobody_takes_the_lead_who_is_silent_or_unknown() -> None:
    core = make_leader()
    for _ in range(core.config.election_ticks_min - 1):
        core.tick()
    assert core.leading is not None
    for progress in core.leading.followers.values():
        progress.contact_ticks = core.config.election_ticks_min
    assert core.transfer_leadership() is None
    assert core.transfer_leadership(NodeId("n9")) is None


def test_a_proposal_of_nothing_takes_no_index() -> None:
    core = make_leader()
    outputs_of(core)
    assert core.propose([]) == Accepted(LogIndex(2), Term(1))
    assert core.last_index == 1


@pytest.mark.parametrize("term", [7 + MAX_TERM_JUMP + 1, LAST_TERM, LAST_TERM + 1, (1 << 64) - 1])
def test_a_term_that_no_elections_lead_to_is_not_believed(term: int) -> None:
    core = make_core(terms=[7])
    far = Term(term)
    core.step(Heartbeat(far, N2, N1, LogIndex(0)))
    core.step(RequestVote(far, N2, N1, LogIndex(9), far, transfer=True))
    core.step(AppendEntriesReply(far, N2, N1, False))
    assert core.term == 7
    assert outputs_of(core) == []


def test_a_node_that_was_away_for_many_elections_follows() -> None:
    core = make_core(terms=[7])
    core.step(Heartbeat(Term(7 + MAX_TERM_JUMP), N2, N1, LogIndex(0)))
    assert core.term == 7 + MAX_TERM_JUMP


def test_a_node_that_knows_nothing_of_its_group_believes_its_term_up_to_the_last_one() -> None:
    core = make_core(hard=HardState(is_voter=False))
    core.step(Heartbeat(Term(LAST_TERM + 1), N2, N1, LogIndex(0)))
    assert core.term == 0
    core.step(Heartbeat(Term(1 << 40), N2, N1, LogIndex(0)))
    assert core.term == 1 << 40


def test_a_leader_that_asks_for_votes_itself_is_not_protected_from_itself() -> None:
    core = make_core(terms=[7])
    core.step(Heartbeat(Term(7), N2, N1, LogIndex(0)))
    sent_by(core)
    core.step(RequestVote(Term(8), N3, N1, LogIndex(1), Term(7), pre_vote=True))
    assert sent_by(core) == [], "its leader lives, as far as it knows"
    core.step(RequestVote(Term(8), N2, N1, LogIndex(1), Term(7), pre_vote=True))
    assert sent_by(core) == [RequestVoteReply(Term(8), N1, N2, True, pre_vote=True)]


def test_a_late_timer_of_a_leader_makes_its_heartbeat_due() -> None:
    core = make_leader()
    outputs_of(core)
    core.late(core.config.heartbeat_ticks)
    core.tick()
    assert {type(message) for message in sent_by(core)} == {Heartbeat}


def test_a_follower_that_took_a_late_leader_for_dead_is_more_patient_when_that_happens_again() -> None:
    core = make_core(terms=[7])
    for _ in range(2):
        core.step(Heartbeat(Term(7), N2, N1, LogIndex(0)))
        while core.role is Role.FOLLOWER:
            core.tick()
        assert core.role is Role.PRE_CANDIDATE
    core.step(Heartbeat(Term(7), N2, N1, LogIndex(0)))
    assert core.lateness.peers.ticks >= 40 - core.config.heartbeat_ticks
    assert core.shortest_timeout > 40


def test_a_leader_that_is_known_to_be_gone_is_not_waited_for_with_patience() -> None:
    core = make_core(terms=[7])
    core.step(Heartbeat(Term(7), N2, N1, LogIndex(0)))
    core.late(50)
    core.late(50)
    assert core.lateness.patience == 150
    core.link_down(N2, refused=True)
    for _ in range(core.config.forget_ticks_max):
        core.tick()
    assert core.role is Role.PRE_CANDIDATE


def test_a_slave_believes_the_first_terms_of_its_generation() -> None:
    core = make_core(terms=[7], first_term=1 << 40)
    core.step(Heartbeat(Term((1 << 40) + 3), N2, N1, LogIndex(0)))
    assert core.term == (1 << 40) + 3


def test_behind_the_last_term_nobody_campaigns() -> None:
    core = make_core(hard=HardState(LAST_TERM))
    core.campaign()
    assert (core.role, core.term) == (Role.FOLLOWER, LAST_TERM)


def test_to_forget_the_leader_means_nothing_to_who_campaigns() -> None:
    core = make_core()
    core.campaign()
    timeout = core.timeout
    core.forget_leader()
    assert (core.role, core.timeout) == (Role.PRE_CANDIDATE, timeout)


def test_a_voter_is_not_promoted_again() -> None:
    core = make_core()
    core.promote_to_voter()
    assert core.poll() is None


def test_a_promoted_learner_keeps_the_vote_that_it_remembers() -> None:
    core = make_core(hard=HardState(Term(3), N2, is_voter=False))
    core.promote_to_voter()
    assert (core.voted_for, core.is_voter) == (N2, True)


# --- messages that make no sense ----------------------------------------------------------------------------
WELL_FORMED = AppendEntries(
    Term(3), N2, N1, LogIndex(1), Term(1), LogIndex(2), LogIndex(4), LogIndex(0),
    ((LogIndex(2), Term(2)), (LogIndex(4), Term(3))),
)  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        replace(WELL_FORMED, lo=LogIndex(3)),
        replace(WELL_FORMED, hi=LogIndex(0)),
        replace(WELL_FORMED, term_runs=()),
        replace(WELL_FORMED, hi=LogIndex(1)),
        replace(WELL_FORMED, term_runs=((LogIndex(3), Term(2)),)),
        replace(WELL_FORMED, prev_term=Term(3)),
        replace(WELL_FORMED, hi=LogIndex(3)),
        replace(WELL_FORMED, term_runs=((LogIndex(2), Term(2)), (LogIndex(4), Term(4)))),
        replace(WELL_FORMED, term_runs=((LogIndex(2), Term(2)), (LogIndex(4), Term(2)))),
    ],
    ids=["a gap", "ends before it begins", "no terms", "empty with terms", "terms begin later",
         "terms fall at the seam", "terms beyond the end", "a term to come", "terms stand still"],
)  # fmt: skip
def test_an_append_that_contradicts_itself_changes_nothing(message: AppendEntries) -> None:
    core = make_core(terms=[1])
    core.step(message)
    assert (core.last_index, core.commit_index) == (1, 0)
    assert not [m for m in sent_by(core) if isinstance(m, AppendEntriesReply)]
    core.step(WELL_FORMED)
    assert core.last_index == 4


def test_a_term_has_one_leader_whoever_else_claims_it() -> None:
    core = make_core(terms=[1])
    core.step(Heartbeat(Term(3), N2, N1, LogIndex(0)))
    outputs_of(core)
    core.step(Heartbeat(Term(3), N3, N1, LogIndex(0)))
    core.step(replace(WELL_FORMED, from_=N3))
    core.step(Resign(Term(3), N3, N1))
    core.step(TimeoutNow(Term(3), N3, N1))
    assert (core.leader_id, core.role, core.last_index) == (N2, Role.FOLLOWER, 1)
    assert core.poll() is None


def test_a_leader_hears_no_other_leader_of_its_term() -> None:
    core = make_leader()
    outputs_of(core)
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    core.step(AppendEntries(Term(1), N2, N1, LogIndex(0), Term(0), LogIndex(1), LogIndex(0), LogIndex(0)))
    assert core.role is Role.LEADER
    assert core.poll() is None


@pytest.mark.parametrize(
    "forged",
    [
        AppendEntriesReply(Term(1), N2, N1, True, match_index=LogIndex(9)),
        AppendEntriesReply(Term(1), N2, N1, False, hint_index=LogIndex(9)),
    ],
)
def test_an_answer_about_entries_that_the_leader_never_had_counts_nothing(forged: AppendEntriesReply) -> None:
    core = make_leader()
    outputs_of(core)
    before = core.progress()[0].match_index
    core.step(forged)
    assert (core.progress()[0].match_index, core.commit_index) == (before, 0)


def test_the_answer_to_a_read_that_was_given_up_is_ignored() -> None:
    core = make_core()
    core.step(ReadIndexReply(Term(0), N2, N1, 77, LogIndex(5)))
    assert core.poll() is None


@pytest.mark.parametrize(
    "settings",
    [
        {"node_id": N4},
        {"voters": (N1, N2, N2)},
        {"heartbeat_ticks": 0},
        {"heartbeat_ticks": 21},
        {"election_ticks_max": 40},
        {"voters": (N1,), "non_voters": (N1, N2)},
        {"voters": (N1,), "non_voters": (N2, N2)},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(settings: dict[str, Any]) -> None:
    fits = CoreConfig(node_id=N1, voters=(N1, N2, N3))
    with pytest.raises(ValueError, match=r"member|heartbeat_ticks"):
        replace(fits, **settings)


# --- learners -----------------------------------------------------------------------------------------------
def make_learner() -> tuple[RaftCore, int]:
    """A learner that has asked its leader what to catch up to. Returns it and the number of that request."""
    core = make_core(hard=HardState(Term(1), is_voter=False))
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    questions = [m for m in sent_by(core) if isinstance(m, ReadIndexRequest)]
    assert len(questions) == 1
    return core, questions[0].context


def test_a_learner_that_gets_no_answer_asks_anew() -> None:
    core, first = make_learner()
    core.step(ReadIndexReply(Term(1), N2, N1, first, LogIndex(0)))
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    again = [m.context for m in sent_by(core) if isinstance(m, ReadIndexRequest)]
    assert len(again) == 1 and again[0] != first


def test_a_learner_gives_a_question_up_after_an_election_timeout() -> None:
    core, first = make_learner()
    for _ in range(core.config.election_ticks_min):
        core.tick()
    outputs = outputs_of(core)
    assert not any(output.reads_aborted for output in outputs), "no client asked it"
    core.step(Heartbeat(Term(1), N2, N1, LogIndex(0)))
    again = [m.context for m in sent_by(core) if isinstance(m, ReadIndexRequest)]
    assert len(again) == 1 and again[0] != first


def test_a_learner_whose_leader_is_gone_tells_only_its_clients() -> None:
    core, _ = make_learner()
    assert core.read_index("a client") is None
    core.step(Resign(Term(1), N2, N1))
    outputs = outputs_of(core)
    assert [context for output in outputs for context in output.reads_aborted] == ["a client"]
    assert LeaderChanged(None, Term(1)) in [event for output in outputs for event in output.events]


def test_a_learner_has_caught_up_once() -> None:
    core, number = make_learner()
    core.step(ReadIndexReply(Term(1), N2, N1, number, LogIndex(1)))
    runs = ((LogIndex(1), Term(1)),)
    message = AppendEntries(
        Term(1), N2, N1, LogIndex(0), Term(0), LogIndex(1), LogIndex(1), LogIndex(1), runs
    )
    events = []
    for _ in range(2):
        core.step(message)
        events += [event for output in outputs_of(core) for event in output.events]
    assert events == [CaughtUp(LogIndex(1))]


# --- retention ----------------------------------------------------------------------------------------------
def lagging_follower(change: Callable[[RaftCore], None]) -> RaftCore:
    """A leader with twenty committed entries and n3 stopped at the first one with a full window; then
    `change`.
    """
    core = make_leader(max_inflight_messages=1)
    for append in open_appends(core):
        core.append_sent(append, append.hi, 10)
    for peer in (N2, N3):
        acknowledge(core, peer, 1)
    for _ in range(20):
        core.propose([10])
        for append in open_appends(core):
            core.append_sent(append, append.hi, 10)
        acknowledge(core, N2, int(core.last_index))
    outputs_of(core)
    assert core.commit_index == core.applied_index == 21
    change(core)
    return core


def test_a_window_that_was_lost_and_then_deleted_by_retention_ends_in_a_reset() -> None:
    """Everything sent to n3 was lost, and retention has deleted it here since. The leader must find out."""
    core = lagging_follower(lambda core: core.compacted(LogIndex(15)))
    events = []
    for _ in range(4):
        core.step(HeartbeatReply(Term(1), N3, N1, 0, stable_index=LogIndex(1), commit_index=LogIndex(1)))
        events += [event for output in outputs_of(core) for event in output.events]
    assert events == [FollowerBehind(N3, LogIndex(2))]
    assert next(p.state for p in core.progress() if p.node_id == N3) is ProgressState.RESET


def test_a_follower_to_be_reset_is_not_believed_to_hold_more_than_it_says() -> None:
    core = lagging_follower(lambda core: core.compacted(LogIndex(15)))
    for _ in range(2):
        core.step(HeartbeatReply(Term(1), N3, N1, 0))
        outputs_of(core)
    acknowledge(core, N3, 1)
    assert next(p.state for p in core.progress() if p.node_id == N3) is ProgressState.RESET
    acknowledge(core, N3, 14)
    assert next((p.state, p.match_index) for p in core.progress() if p.node_id == N3) == (
        ProgressState.REPLICATE,
        14,
    )


def test_retention_of_the_whole_log_keeps_its_base() -> None:
    core = make_leader()
    outputs_of(core)
    acknowledge(core, N2, 1)
    outputs_of(core)
    core.compacted(LogIndex(1))
    assert core.first_index == 1
    core.compacted(LogIndex(2))
    assert (core.first_index, core.last_index, core.last_term) == (2, 1, 1)
    assert core.propose([10]) == Accepted(LogIndex(2), Term(1))


# --- faults -------------------------------------------------------------------------------------------------


def asked_for_votes(core: RaftCore, ticks: int) -> int:
    """Count the pre-votes that a core requests from n3 within that many ticks."""
    asked = 0
    for _ in range(ticks):
        core.tick()
        asked += sum(isinstance(m, RequestVote) and m.to == N3 for out in outputs_of(core) for m in out.send)
    return asked


def test_who_asked_in_vain_for_a_majority_asks_a_voter_that_comes_back_within_a_few_ticks() -> None:
    """A second leader was killed before the first one was back.

    The survivor waited for its next election timeout.
    """
    core = make_core("n2", [1, 1])
    while core.role is not Role.PRE_CANDIDATE:
        core.tick()
    outputs_of(core)
    soon = core.config.forget_ticks_max
    assert soon < core.config.election_ticks_min // 4
    core.link_up(N3)
    assert asked_for_votes(core, soon) == 1
    assert core.term == 1, "a pre-vote promises nothing"


def test_a_voter_that_did_not_answer_a_pre_vote_is_asked_again_at_each_heartbeat_interval() -> None:
    """It had not missed the leader yet, and has a shorter log itself.

    Both waited for a whole election timeout.
    """
    core = make_core("n2", [1, 1])
    while core.role is not Role.PRE_CANDIDATE:
        core.tick()
    outputs_of(core)
    interval = core.config.heartbeat_ticks
    assert core.quiet_ticks() == interval - 1
    assert asked_for_votes(core, interval - 1) == 0
    assert asked_for_votes(core, 1) == 1
    core.step(RequestVoteReply(Term(1), N3, N2, False, pre_vote=True))
    assert asked_for_votes(core, interval) == 0, "who refused is not asked before the next campaign"
    assert core.term == 1


def test_two_that_missed_the_leader_one_after_the_other_elect_one_within_a_heartbeat_interval() -> None:
    cluster = Cluster("n1", "n2", "n3")
    cluster.elect("n1")
    cluster.cut_one_way("n1", "n3")
    cluster.propose("n1")
    cluster.crash("n1")
    cluster["n2"].forget_leader()
    cluster["n2"].campaign()
    cluster.settle()
    assert cluster["n2"].role is Role.PRE_CANDIDATE, "the other one still believes in the leader"
    cluster["n3"].forget_leader()
    cluster["n3"].campaign()
    cluster.settle()
    assert cluster["n3"].role is Role.PRE_CANDIDATE, "its log is shorter"
    cluster.tick(cluster["n2"].config.heartbeat_ticks, "n2")
    assert cluster.members["n2"].core.term == 2
    assert cluster["n3"].leader_id == N2


def test_a_connection_that_comes_up_hurries_nobody_who_has_a_leader_or_asks_soon_anyway() -> None:
    core = make_core("n2", [1, 1])
    core.step(Heartbeat(Term(1), N1, N2, LogIndex(0), 1))
    core.link_up(N3)
    assert asked_for_votes(core, core.config.election_ticks_min - 1) == 0
    alone = make_core("n2", [1, 1], voters=("n1", "n2"), non_voters=("n3",))
    while alone.role is not Role.PRE_CANDIDATE:
        alone.tick()
    outputs_of(alone)
    left = alone.ticks_to_campaign
    alone.link_up(N3)
    assert alone.ticks_to_campaign == left, "a learner is no part of a majority"

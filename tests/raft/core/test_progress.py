"""Leader's view of one follower."""

from __future__ import annotations

from ledgermq.raft.core.messages import AppendEntriesReply
from ledgermq.raft.core.progress import Progress, ProgressState
from ledgermq.raft.types import LogIndex, NodeId, Term


def follower(next_index: int = 10, match: int = 0) -> Progress:
    return Progress(NodeId("n2"), LogIndex(next_index), LogIndex(match))


def refusal(reject: int, hint: int = 0) -> AppendEntriesReply:
    return AppendEntriesReply(
        Term(1), NodeId("n2"), NodeId("n1"), False, reject_index=LogIndex(reject), hint_index=LogIndex(hint)
    )


def test_a_probe_waits_for_its_answer() -> None:
    progress = follower()
    assert progress.may_send(8, 100)
    progress.on_sent(LogIndex(12), 30)
    assert not progress.may_send(8, 100)
    assert progress.next_index == 10


def test_an_acknowledged_probe_starts_replication() -> None:
    progress = follower()
    assert progress.on_success(LogIndex(9))
    assert progress.state is ProgressState.REPLICATE
    assert progress.next_index == 10


def test_replication_sends_ahead_within_the_window() -> None:
    progress = follower()
    progress.on_success(LogIndex(9))
    progress.on_sent(LogIndex(11), 60)
    assert progress.next_index == 12
    assert progress.may_send(8, 100)
    progress.on_sent(LogIndex(13), 60)
    assert not progress.may_send(8, 100), "bytes"
    assert not progress.may_send(2, 1000), "messages"
    progress.on_success(LogIndex(11))
    assert (progress.inflight_bytes, len(progress.inflight)) == (60, 1)
    assert progress.may_send(8, 100)


def test_what_is_acknowledged_before_it_is_reported_sent_takes_no_place_in_the_window() -> None:
    progress = follower()
    assert progress.on_success(LogIndex(9))
    assert progress.on_success(LogIndex(14))
    progress.on_sent(LogIndex(12), 30)
    assert (progress.next_index, len(progress.inflight), progress.inflight_bytes) == (15, 0, 0)
    assert progress.may_send(1, 100)


def test_a_refusal_in_replication_goes_back_to_what_matches() -> None:
    progress = follower()
    progress.on_success(LogIndex(9))
    progress.on_sent(LogIndex(20), 10)
    assert progress.on_refusal(refusal(20), LogIndex(12))
    assert (progress.state, progress.next_index, progress.inflight_bytes) == (ProgressState.PROBE, 10, 0)


def test_a_refusal_older_than_an_acknowledgement_is_ignored() -> None:
    progress = follower()
    progress.on_success(LogIndex(9))
    assert not progress.on_refusal(refusal(7), LogIndex(5))
    assert progress.state is ProgressState.REPLICATE


def test_a_probe_goes_to_the_hint_but_never_below_the_match() -> None:
    progress = follower(next_index=10, match=6)
    assert progress.on_refusal(refusal(9), LogIndex(3))
    assert progress.next_index == 7
    assert not progress.on_refusal(refusal(9), LogIndex(3)), "answers an older probe"


def test_only_a_refusal_of_the_match_itself_tells_that_it_was_lost() -> None:
    progress = follower(next_index=10, match=6)
    assert not progress.denies_match(refusal(9)), "only where the logs part is not known"
    progress.on_refusal(refusal(9), LogIndex(3))
    assert progress.denies_match(refusal(6))
    progress.forget(LogIndex(3))
    assert (progress.match_index, progress.next_index) == (0, 4)
    assert not progress.denies_match(refusal(3)), "nothing was acknowledged"


def test_an_old_acknowledgement_does_not_lower_the_match() -> None:
    progress = follower()
    progress.on_success(LogIndex(9))
    assert not progress.on_success(LogIndex(4))
    assert progress.match_index == 9


def test_a_follower_without_its_log_is_believed_no_more() -> None:
    progress = follower()
    progress.on_success(LogIndex(9))
    progress.forget()
    assert (progress.match_index, progress.next_index, progress.state) == (0, 1, ProgressState.PROBE)

"""Frames between nodes: every message survives, entries travel beside protobuf, damage is reported."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.proto import raft_pb2 as pb
from ledgermq.proto.errors import CorruptError
from ledgermq.raft.core import messages as m
from ledgermq.raft.transport.wire import decode, encode_append, encode_control
from ledgermq.raft.types import LogIndex, NodeId, Term

N1, N2 = NodeId("n1"), NodeId("n2")
ENDS: dict[str, Any] = {"term": Term(7), "from_": N1, "to": N2}

CONTROL: list[m.Message] = [
    m.RequestVote(**ENDS, last_index=LogIndex(9), last_term=Term(6), pre_vote=True, transfer=True),
    m.RequestVoteReply(**ENDS, granted=True, pre_vote=True),
    m.AppendEntriesReply(
        **ENDS, success=False, match_index=LogIndex(1), reject_index=LogIndex(2), hint_index=LogIndex(3),
        hint_term=Term(4), is_learner=True, wants_commit=True,
    ),
    m.Heartbeat(**ENDS, commit_index=LogIndex(5), context=8, log_time_ms=1_700_000_000_000),
    m.HeartbeatReply(
        **ENDS, context=8, stable_index=LogIndex(4), commit_index=LogIndex(3), is_learner=True,
        wants_commit=True
    ),
    m.TimeoutNow(**ENDS),
    m.Resign(**ENDS),
    m.ReadIndexRequest(**ENDS, context=3),
    m.ReadIndexReply(**ENDS, context=3, index=LogIndex(12)),
    m.AppendEntries(
        **ENDS, prev_index=LogIndex(4), prev_term=Term(2), lo=LogIndex(5), hi=LogIndex(4),
        commit_index=LogIndex(3),
        offers_reset=True,
    ),
]  # fmt: skip

APPEND = m.AppendEntries(
    **ENDS, prev_index=LogIndex(4), prev_term=Term(2), lo=LogIndex(5), hi=LogIndex(9),
    commit_index=LogIndex(4),
    term_runs=((LogIndex(5), Term(3)), (LogIndex(8), Term(7))),
)  # fmt: skip


def test_every_control_message_survives_the_wire_many_in_one_frame() -> None:
    messages, hello, entries = decode(encode_control(CONTROL), N1, N2)
    assert messages == CONTROL
    assert hello is None
    assert len(entries) == 0


@pytest.mark.parametrize("size", [1, 127, 128, 70_000, 3 << 20])
def test_an_append_carries_its_entry_bytes_behind_it(size: int) -> None:
    messages, _, entries = decode(b"".join(encode_append(APPEND, b"e" * size)), N1, N2)
    assert messages == [APPEND]
    assert bytes(entries) == b"e" * size


def test_an_append_frame_is_valid_protobuf_for_anybody_else() -> None:
    frame = pb.RaftFrame.FromString(b"".join(encode_append(APPEND, b"entry bytes")))
    assert frame.entries == b"entry bytes"
    assert frame.messages[0].append_entries.last_index == 9


@pytest.mark.parametrize("cut", [1, 2, 10, -1])
def test_a_frame_that_was_cut_short_is_told(cut: int) -> None:
    with pytest.raises(CorruptError):
        decode(b"".join(encode_append(APPEND, b"e" * 300))[:cut], N1, N2)


def test_a_message_of_an_unknown_kind_is_told() -> None:
    with pytest.raises(CorruptError, match="unknown kind"):
        decode(pb.RaftFrame(messages=[pb.RaftMessage(term=1)]).SerializeToString(), N1, N2)

"""Append frames: encoded once for followers with equal content, never shared otherwise."""

from __future__ import annotations

from ledgermq.raft.core.messages import AppendEntries
from ledgermq.raft.transport.seal import unsealed
from ledgermq.raft.transport.wire import AppendFrames, decode
from ledgermq.raft.types import LogIndex, NodeId, Term

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


def append(to: NodeId, commit_index: int = 4, hi: int = 5) -> AppendEntries:
    return AppendEntries(
        Term(2), N1, to, LogIndex(4), Term(1), LogIndex(5), LogIndex(hi), LogIndex(commit_index),
        ((LogIndex(5), Term(2)),),
    )  # fmt: skip


def test_followers_that_are_told_the_same_get_one_frame() -> None:
    frames, entries = AppendFrames(), b"entries!"
    assert frames.encode(append(N2), entries) is frames.encode(append(N3), entries)


def test_each_follower_hears_what_its_message_says() -> None:
    frames, entries = AppendFrames(), b"entries!"
    said = [append(N2), append(N3, commit_index=3), append(N2, hi=6), append(N3)]
    for message in said:
        (heard,), _, got = decode(unsealed(b"".join(frames.encode(message, entries))), N1, message.to)
        assert heard == message and bytes(got) == entries


def test_other_entries_are_never_sent_in_the_frame_of_the_ones_before() -> None:
    frames = AppendFrames()
    frames.encode(append(N2), b"entries!")
    assert frames.encode(append(N3), b"repaired")[1] == b"repaired"
    frames.forget()
    assert frames.encode(append(N3), b"entries!")[1] == b"entries!"

"""Messages that a member must ignore (row E13)."""

from __future__ import annotations

from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import AppendEntriesReply, Heartbeat, Message, RequestVoteReply
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.types import NodeId, Term

STRANGER = NodeId("n9")


def forged_answer(core: RaftCore) -> Message:
    """Return a message that would help this node if a member sent it; for a follower, one for another."""
    if core.role is Role.LEADER:
        return AppendEntriesReply(core.term, STRANGER, core.node_id, True, match_index=core.last_index)
    if core.role is Role.PRE_CANDIDATE:
        return RequestVoteReply(Term(core.term + 1), STRANGER, core.node_id, True, pre_vote=True)
    if core.role is Role.CANDIDATE:
        return RequestVoteReply(core.term, STRANGER, core.node_id, True)
    return Heartbeat(core.term, core.peers[0] if core.peers else STRANGER, STRANGER, core.last_index)

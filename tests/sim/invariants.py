"""What must be true after every event, whatever failed.

I1 one leader per term, ever           I5 a leader holds everything committed
I2 a leader never cuts its log         I6 what is committed is on the disks of a majority
I3 (index, term) names one history     I7 one vote per term, across restarts; no term is forgotten
I4 a committed entry never changes     I8 indexes stay in order, commit never falls back
Besides: what a core calls durable is on its disk; a read sees all that was committed before it was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgermq.raft.messages import Message, RequestVote, RequestVoteReply
from ledgermq.raft.outputs import BecameLeader

if TYPE_CHECKING:
    from .disk import Entry
    from .node import SimNode


class InvariantError(AssertionError):
    """A run broke one of the rules."""


class Invariants:
    """The global memory of one run."""

    def __init__(self, nodes: dict[str, SimNode]) -> None:
        self.nodes = nodes
        self.leader_of: dict[int, str] = {}
        self.history: dict[tuple[int, int], int] = {}
        self.committed: dict[int, int] = {0: 0}
        self.committed_in: dict[int, int] = {}  # term -> highest index first committed in it
        self.max_committed = 0
        self.grants: dict[tuple[str, int], str] = {}
        self.sent_term: dict[str, int] = {}
        self.checks = 0

    def on_entry(self, index: int, entry: Entry) -> None:
        """An entry was appended to some node's log."""
        known = self.history.setdefault((index, entry.term), entry.chain)
        _demand(known == entry.chain, f"I3 log matching: two histories at ({index}, term {entry.term})")

    def on_leader(self, node: SimNode, event: BecameLeader) -> None:
        """A node won an election."""
        known = self.leader_of.setdefault(event.term, node.name)
        _demand(known == node.name, f"I1 election safety: {known} and {node.name} lead term {event.term}")
        # A candidate may win late, when a later term has long committed more: that is no fault.
        must_have = max((index for term, index in self.committed_in.items() if term < event.term), default=0)
        if must_have >= node.log.base:
            _demand(
                node.log.chain(must_have) == self.committed[must_have],
                f"I5 leader completeness: {node.name} leads term {event.term} without {must_have}",
            )

    def on_truncate(self, node: SimNode, index: int) -> None:
        """A node cuts its log."""
        _demand(node.core.leading is None, f"I2 append only: leader {node.name} cuts {index}")
        _demand(index > node.seen_commit, f"I8: {node.name} cuts {index}, committed {node.seen_commit}")

    def on_send(self, node: SimNode, message: Message) -> None:
        """A message left a node."""
        _demand(node.core.fault is None, f"P15: {node.name} speaks after its disk failed")
        if isinstance(message, RequestVote | RequestVoteReply):
            if message.pre_vote:
                return
            if isinstance(message, RequestVoteReply) and not message.granted:
                return
            candidate = message.to if isinstance(message, RequestVoteReply) else message.from_
            known = self.grants.setdefault((node.name, message.term), candidate)
            _demand(
                known == candidate, f"I7: {node.name} votes for {known} and {candidate} in {message.term}"
            )
        self.sent_term[node.name] = max(self.sent_term.get(node.name, 0), message.term)

    def on_restart(self, node: SimNode) -> None:
        """A node read its disk."""
        restored = node.disk.hard_state.term
        _demand(
            restored >= self.sent_term.get(node.name, 0),
            f"I7: {node.name} restarts in term {restored}, but has spoken in {self.sent_term.get(node.name)}",
        )

    def on_wipe(self, node: SimNode) -> None:
        self.sent_term[node.name] = 0

    def on_read(self, asked_at: int, index: int) -> None:
        """A read was confirmed; `asked_at` was the highest commit index when it was asked."""
        _demand(index >= asked_at, f"stale read: index {index}, but {asked_at} was committed before")

    def after(self, node: SimNode) -> None:
        """Something happened on a node."""
        self.checks += 1
        core = node.core
        commit = core.commit_index
        stable = core.stable_index
        in_order = (
            core.first_index - 1 <= core.applied_index <= min(stable, commit)
            and stable <= core.last_index
            and commit <= core.last_index
        )
        _demand(in_order, f"I8: {node.name} applied {core.applied_index} stable {stable} commit {commit}")
        _demand(commit >= node.seen_commit, f"I8: commit of {node.name} fell to {commit}")
        _demand(core.last_index == node.log.last, f"{node.name}: log and core differ")
        on_disk = node.disk.log.chain(stable)
        _demand(
            on_disk is not None and on_disk == node.log.chain(stable),
            f"P7: {node.name} calls {stable} durable, and it is not on its disk",
        )
        for index in range(node.seen_commit + 1, commit + 1):
            self._commit(node, index)
        node.seen_commit = commit

    def _commit(self, node: SimNode, index: int) -> None:
        chain = node.log.chain(index)
        if chain is None:
            return
        known = self.committed.get(index)
        if known is not None:
            _demand(known == chain, f"I4 state machine safety: {node.name} commits another entry at {index}")
            return
        self.committed[index] = chain
        self.max_committed = max(self.max_committed, index)
        self.committed_in[node.core.term] = max(self.committed_in.get(node.core.term, 0), index)
        holders = [n.name for n in self.nodes.values() if n.has_durable(index, chain)]
        _demand(
            2 * len(holders) > len(self.nodes),
            f"I6 durable quorum: {node.name} commits {index}, durable only on {', '.join(holders) or 'nobody'}",
        )


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)

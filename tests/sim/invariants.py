"""Invariants that hold after every event, whatever failed.

I1 one leader per term, ever          I5 a leader holds everything committed
I2 a leader never cuts its log        I6 committed entries are on the disks of a majority (read by other code)
I3 (index, term) names one history    I7 one vote per term, across restarts; no term is forgotten
I4 a committed entry never changes    I8 indexes stay in order, commit never falls back
I11 applied entries are byte-identical on all disks, at equal places

Also: what a core calls durable is on its disk (P7). Recovery finds everything that was durable (P18). A
faulted core sends nothing (P15). Log time never decreases (D21). A read sees everything that was committed
before it was asked.
The world checks I9 and I10: they belong to the phase in which a majority is healthy.
An entry identifies the log up to it, because its checksum covers the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ledgermq.proto.entry import EntryHeader
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.messages import Message, RequestVote, RequestVoteReply
from ledgermq.raft.core.outputs import BecameLeader
from ledgermq.raft.types import LogIndex

if TYPE_CHECKING:
    from .atlas import Atlas
    from .node import SimNode


class InvariantError(AssertionError):
    """A run violated an invariant."""


class Invariants:
    """Global memory of one run."""

    def __init__(self, nodes: dict[str, SimNode], atlas: Atlas, voters: Sequence[str]) -> None:
        self.nodes = nodes
        self.atlas = atlas
        self.voters = frozenset(voters)
        self.leader_of: dict[int, str] = {}
        self.history: dict[tuple[int, int], int] = {(0, 0): 0}  # (index, term) -> checksum
        self.stamps: dict[tuple[int, int], int] = {}  # -> timestamp
        self.committed: dict[int, int] = {0: 0}
        self.committed_bytes: dict[int, bytes] = {}
        self.committed_in: dict[int, int] = {}  # term -> highest index first committed in it
        self.max_committed = 0
        self.last_stamp = 0  # of the newest entry when it was first committed
        self.grants: dict[tuple[str, int], str] = {}
        self.sent_term: dict[str, int] = {}
        self.checks = 0

    def is_quorum(self, names: Collection[str]) -> bool:
        """Return whether these nodes are a quorum."""
        return 2 * len(self.voters.intersection(names)) > len(self.voters)

    def chain_of(self, core: RaftCore, index: int) -> int | None:
        """Return the checksum that identifies a node's log up to `index`; None outside of it."""
        term = core.log.term(LogIndex(index))
        return None if term is None else self.history.get((index, term))

    def on_entry(self, node: SimNode, header: EntryHeader) -> None:
        """Handle an entry appended to any node's log."""
        key = (header.index, header.term)
        known = self.history.setdefault(key, header.crc)
        if known != header.crc:
            raise InvariantError(f"I3 log matching: two histories at {key}, the second on {node.name}")
        self.stamps[key] = header.timestamp

    def on_leader(self, node: SimNode, event: BecameLeader) -> None:
        """Handle an election won by a node."""
        known = self.leader_of.setdefault(event.term, node.name)
        demand(known == node.name, f"I1 election safety: {known} and {node.name} lead term {event.term}")
        # A candidate may win late, when a later term has long committed more. That is legitimate.
        must_have = max((index for term, index in self.committed_in.items() if term < event.term), default=0)
        if must_have >= node.core.first_index - 1:
            demand(
                self.chain_of(node.core, must_have) == self.committed[must_have],
                f"I5 leader completeness: {node.name} leads term {event.term} without {must_have}",
            )

    def on_truncate(self, node: SimNode, index: int) -> None:
        """Handle a truncation of a node's log."""
        assert node.life is not None
        demand(node.core.leading is None, f"I2 append only: leader {node.name} cuts {index}")
        demand(
            index > node.life.seen_commit, f"I8: {node.name} cuts {index}, committed {node.life.seen_commit}"
        )

    def on_send(self, node: SimNode, message: Message) -> None:
        """Handle a message sent by a node."""
        if node.core.fault is not None:
            raise InvariantError(f"P15: {node.name} speaks after its disk failed")
        if node.name in node.world.horizon.decided:
            raise InvariantError(f"I14: {node.name} speaks in the middle of a reset")
        if isinstance(message, RequestVote | RequestVoteReply):
            if message.pre_vote:
                return
            if isinstance(message, RequestVoteReply) and not message.granted:
                return
            candidate = message.to if isinstance(message, RequestVoteReply) else message.from_
            known = self.grants.setdefault((node.name, message.term), candidate)
            demand(known == candidate, f"I7: {node.name} votes for {known} and {candidate} in {message.term}")
        if message.term > self.sent_term.get(node.name, 0):
            self.sent_term[node.name] = message.term

    def on_restart(self, node: SimNode) -> None:
        """Check what a node recovered from its disk."""
        if node.name in self.atlas.hurt:
            return
        core = node.core
        demand(
            core.term >= self.sent_term.get(node.name, 0),
            f"I7: {node.name} restarts in term {core.term}, but has spoken in "
            f"{self.sent_term.get(node.name)}",
        )
        index, chain = node.promised
        if index >= core.first_index:
            demand(
                self.chain_of(core, index) == chain,
                f"P18: {node.name} recovered up to {core.last_index} and lost {index}, which was durable",
            )
        self._check_disk(node, int(core.stable_index))

    def on_lost_disk(self, node: SimNode) -> None:
        """Record that a node's disk is gone: it may now know a lower term, as a learner.

        A candidate's vote for itself is lost with it. Votes for others still count, because the candidate may
        have received them.
        """
        self.sent_term[node.name] = 0
        for key in [key for key, candidate in self.grants.items() if key[0] == candidate == node.name]:
            del self.grants[key]

    def on_read(self, asked_at: int, index: int) -> None:
        """Check a confirmed read. `asked_at`: highest commit index when it was asked."""
        demand(index >= asked_at, f"stale read: index {index}, but {asked_at} was committed before")

    def on_apply(self, node: SimNode, header: EntryHeader, payload: memoryview) -> None:
        """Check an entry that a node applies after reading it from its log."""
        index = header.index
        if self.committed.get(index) != header.crc:
            raise InvariantError(f"I4: {node.name} applies another entry at {index} than was committed")
        if node.name in self.atlas.hurt:
            return
        mine = node.image.entry(index)
        if mine is None:
            demand(index <= node.image.base, f"P14: {node.name} applies {index}, which is not on its disk")
            return
        known = self.committed_bytes.setdefault(index, mine)
        if known != mine or payload != memoryview(mine)[64 : 64 + header.payload_size]:
            raise InvariantError(f"I11: the bytes of entry {index} on {node.name} differ")

    def after(self, node: SimNode) -> None:
        """Check a running node after an event."""
        life = node.life
        if life is None:
            return
        self.checks += 1
        core = life.core
        commit = core.commit_index
        stable = core.stable_index
        if not (
            core.first_index - 1 <= core.applied_index <= min(stable, commit)
            and life.applied <= core.applied_index
            and stable <= core.last_index
            and commit <= core.last_index
        ):
            raise InvariantError(
                f"I8: {node.name} applied {core.applied_index} stable {stable} commit {commit} last "
                f"{core.last_index}"
            )
        self.note_commits(node)
        if core.fault is None:
            demand(core.last_index == life.log.last_index, f"{node.name}: log and core differ")
        if stable != life.seen_stable:
            life.seen_stable = stable
            self._check_disk(node, stable)

    def note_commits(self, node: SimNode) -> None:
        """Record a node's commit index, also before it applies any of it."""
        life = node.life
        assert life is not None
        commit = life.core.commit_index
        if commit != life.seen_commit:
            demand(commit >= life.seen_commit, f"I8: commit of {node.name} fell to {commit}")
            for index in range(life.seen_commit + 1, commit + 1):
                self._commit(node, index)
            life.seen_commit = commit

    def _check_disk(self, node: SimNode, stable: int) -> None:
        """Check that the platter holds what the core calls durable."""
        if node.name in self.atlas.hurt or stable <= node.image.base:
            return
        demand(
            node.image.crc(stable) == self.chain_of(node.core, stable),
            f"P7: {node.name} calls {stable} durable, and it is not on its disk ({node.image.last} is the "
            "last there)",
        )

    def _commit(self, node: SimNode, index: int) -> None:
        core = node.core
        chain = self.chain_of(core, index)
        if chain is None:
            return
        known = self.committed.get(index)
        if known is not None:
            demand(known == chain, f"I4 state machine safety: {node.name} commits another entry at {index}")
            return
        self.committed[index] = chain
        if index > self.max_committed:
            self.max_committed = index
        self.committed_in[core.term] = max(self.committed_in.get(core.term, 0), index)
        term = core.log.term(LogIndex(index))
        assert term is not None, "its chain is known, so it is in the log"
        stamp = self.stamps.get((index, term), 0)
        demand(stamp >= self.last_stamp, f"D21: log time goes back at entry {index}")
        self.last_stamp = stamp
        holders = [n.name for n in self.nodes.values() if n.has_durable(index, chain)]
        demand(
            self.is_quorum(holders),
            f"I6 durable quorum: {node.name} commits {index}, durable only on "
            f"{', '.join(holders) or 'no node'}",
        )

    def compare_disks(self) -> None:
        """I11 at the end: compare the disks below the lowest commit index."""
        running = [
            n for n in self.nodes.values() if n.up and n.name not in self.atlas.hurt and n.core.is_voter
        ]
        if len(running) < 2:
            return
        upto = min(int(min(n.core.commit_index, n.core.stable_index)) for n in running)
        if any(upto <= n.image.base or n.image.crc(upto) is None for n in running):
            return
        begin = max(n.image.begin() for n in running)
        ends = {n.image.end_of(upto) for n in running}
        demand(len(ends) == 1, f"I11: entry {upto} ends at different places")
        end = ends.pop()
        pieces = [n.image.log_bytes(begin, end) for n in running]
        for node, piece in zip(running, pieces, strict=True):
            demand(piece == pieces[0], f"I11: the log of {node.name} differs from that of {running[0].name}")


def demand(holds: bool, what: str) -> None:
    """Raise InvariantError(what) unless it holds."""
    if not holds:
        raise InvariantError(what)

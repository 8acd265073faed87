"""Rules for a single node, checked when it acts; `invariants` compares nodes with one another.

P2, P4, P5  what a vote, a request for votes or an acknowledgement promises is on the disk when it is sent
P3          a pre-vote changes nothing on the node that answers it
I7          a restarted node remembers the vote that it sent
E14         a leader that heard no quorum for an election timeout, stretched by measured lateness, steps
            down
E11         a node that sees a higher term in a reply adopts it
C11         what a leader believes a follower to hold is on that follower's disk
C16         a diverged log costs a bounded number of probes: one per term, not one per entry
I1          a leader has the votes of a majority, each given once
P19         a node that lost its disk votes again only with everything committed, and not in the term of its
            return
P12, P15    a core gives up only because its disk failed
V1          a node without a configured vote asks for none, grants none, and never leads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgermq.raft.core.messages import (
    AppendEntriesReply,
    HeartbeatReply,
    Message,
    RequestVote,
    RequestVoteReply,
)
from ledgermq.raft.core.outputs import Role
from ledgermq.raft.transport.hello import Standing

from .atlas import POWER_LOST
from .disk_faults import durable_vote
from .invariants import demand

if TYPE_CHECKING:
    from .invariants import Invariants
    from .node import SimNode


class Promises:
    """Memory of one run about each node's own conduct."""

    def __init__(self, invariants: Invariants) -> None:
        self._invariants = invariants
        self._atlas = invariants.atlas
        # (node, term) -> candidate, since its disk was wiped
        self._votes_told: dict[tuple[str, int], str] = {}
        self._must_hold: dict[str, int] = {}  # learner -> highest index committed when it came back
        self._ticks: dict[str, int] = {}
        # (node, peer) -> tick of the node when it last heard the peer
        self._heard: dict[tuple[str, str], int] = {}
        self._probes: dict[tuple[str, int, str], set[int]] = {}  # (leader, term, follower) -> refused indexes
        # highest number of terms in this follower's log meanwhile
        self._runs: dict[tuple[str, int, str], int] = {}

    # --- messages that leave --------------------------------------------------------------------------------
    def on_send(self, node: SimNode, message: Message) -> None:
        """Check that everything a sent message promises is on the disk."""
        asks = isinstance(message, RequestVote)
        grants = isinstance(message, RequestVoteReply) and message.granted
        has_vote = node.name in self._invariants.voters
        demand(has_vote or not (asks or grants), f"V1: {node.name} has no vote and says {message}")
        if node.name in self._atlas.hurt:
            return
        if isinstance(message, AppendEntriesReply) and message.success:
            self._on_acknowledgement(node, message)
        elif isinstance(message, RequestVote) and not message.pre_vote:
            self._on_request(node, message)
        elif isinstance(message, RequestVoteReply) and message.granted and not message.pre_vote:
            demand(
                durable_vote(node.files) == (message.term, message.to),
                f"P2: {node.name} tells of a vote that is not on its disk",
            )
            self._votes_told[node.name, message.term] = message.to

    def _on_acknowledgement(self, node: SimNode, message: AppendEntriesReply) -> None:
        index = message.match_index
        if index < node.core.first_index:
            return  # applied, and deleted since
        chain = self._invariants.chain_of(node.core, index)
        demand(
            index <= node.image.base or (chain is not None and node.image.crc(index) == chain),
            f"P5: {node.name} acknowledges {index}, and it is not on its disk",
        )

    def _on_request(self, node: SimNode, message: RequestVote) -> None:
        demand(
            durable_vote(node.files) == (message.term, node.name),
            f"P4: {node.name} asks for votes, and its own is not on its disk",
        )
        self._votes_told[node.name, message.term] = node.name
        core = node.core
        if core.role is Role.CANDIDATE and core.term == message.term:
            index = message.last_index
            demand(
                index == core.log.last_index and message.last_term == core.log.last_term,
                f"E6: {node.name} shows the tail {index} of term {message.last_term}, and has "
                f"{core.last_index}",
            )
            demand(
                index <= node.image.base or node.image.crc(index) == self._invariants.chain_of(core, index),
                f"P4: {node.name} shows a tail that is not on its disk",
            )

    # --- life -----------------------------------------------------------------------------------------------
    def on_restart(self, node: SimNode) -> None:
        """Check that a restarted node still has the vote that it sent."""
        core = node.core
        assert node.life is not None
        # A new node has nothing to lose.
        if node.life.membership.standing is Standing.LEARNER:
            self._must_hold[node.name] = self._invariants.max_committed
        if node.name in self._atlas.hurt:
            return
        told = self._votes_told.get((node.name, core.term))
        demand(
            told is None or told == core.voted_for,
            f"I7: {node.name} voted for {told} in {core.term} and remembers {core.voted_for}",
        )

    def promote(self, node: SimNode) -> None:
        """Check a learner that votes again: it holds what it must, and has voted in this term (P19)."""
        index, core = self._must_hold.get(node.name, 0), node.core
        wanted = self._invariants.committed[index]
        # A log that was not fetched again may have an unnoticed bad byte. The node then counts as hurt
        # (atlas.py).
        is_damaged = self._atlas.hurt.get(node.name, POWER_LOST) != POWER_LOST and not node.is_refetched
        believed = core.stable_index >= index and self._invariants.chain_of(core, index) == wanted
        demand(
            index <= node.image.base or node.image.crc(index) == wanted or (is_damaged and believed),
            f"P19: {node.name} is to vote again, and has {node.image.last} of {index} on its disk",
        )
        node.core.promote_to_voter()
        free = node.core.is_voter and node.core.voted_for is None
        demand(not free, f"P19: {node.name} may vote in term {node.core.term} again")

    def on_lost_disk(self, node: SimNode) -> None:
        """Forget a lost disk's promises: the node will not vote in terms in which it may have voted."""
        for key in [key for key in self._votes_told if key[0] == node.name]:
            del self._votes_told[key]

    def on_fault(self, node: SimNode, reason: str) -> None:
        """Check a core that stopped by itself."""
        demand(node.name in self._atlas.hurt, f"P12: {node.name} gave up: {reason}")

    # --- messages that come ---------------------------------------------------------------------------------
    def step(self, node: SimNode, message: Message) -> None:
        """Pass a message to the core, comparing its state before and after."""
        core = node.core
        self._heard[node.name, message.from_] = self._ticks.get(node.name, 0)
        if isinstance(message, RequestVote) and message.pre_vote:
            before = (core.term, core.voted_for, core.role, core.leader_id, core.elapsed, core.timeout)
            core.step(message)
            after = (core.term, core.voted_for, core.role, core.leader_id, core.elapsed, core.timeout)
            demand(before == after, f"P3: a pre-vote changed {node.name} from {before} to {after}")
            return
        if isinstance(message, AppendEntriesReply) and message.term < core.term:
            self._step_of_the_past(node, message)
            return
        known = core.leading is not None and message.from_ in core.leading.followers
        if isinstance(message, AppendEntriesReply) and known and message.term == core.term:
            self._on_append_reply(node, message)
        core.step(message)
        if isinstance(message, AppendEntriesReply | HeartbeatReply) and message.from_ in core.peers:
            follows = core.term >= message.term or core.fault is not None
            demand(follows, f"E11: {node.name} stays in term {core.term} and was shown {message.term}")
        if isinstance(message, AppendEntriesReply) and core.leading is not None and known:
            self._after_append_reply(node, message.from_)

    def _step_of_the_past(self, node: SimNode, message: AppendEntriesReply) -> None:
        """C11: a follower's reply from an earlier term may be obsolete, so it must move nothing."""
        before = [(p.node_id, p.match_index) for p in node.core.progress()]
        node.core.step(message)
        after = [(p.node_id, p.match_index) for p in node.core.progress()]
        demand(
            before == after or not after, f"C11: {node.name} counts an answer of term {message.term}: {after}"
        )

    def _after_append_reply(self, node: SimNode, peer: str) -> None:
        """C11: what a leader believes a follower to hold is on its disk, unless a later term changed it."""
        leading, other = node.core.leading, node.world.nodes[peer]
        if other.life is None or leading is None or {peer, node.name} & self._atlas.hurt.keys():
            return
        index = leading.followers[other.core.node_id].match_index
        chain = self._invariants.chain_of(node.core, index)
        if chain is not None and other.core.term <= node.core.term:
            demand(other.has_durable(index, chain), f"C11: {node.name} believes that {peer} holds {index}")

    def _on_append_reply(self, node: SimNode, message: AppendEntriesReply) -> None:
        key = (node.name, int(node.core.term), message.from_)
        leading = node.core.leading
        assert leading is not None
        progress = leading.followers[message.from_]
        if message.success:
            self._probes.pop(key, None)
            self._runs.pop(key, None)
        elif progress.state.value == "probe" and message.reject_index == progress.next_index - 1:
            refused = self._probes.setdefault(key, set())
            refused.add(message.reject_index)
            theirs = _runs(node.world.nodes[message.from_])
            most = self._runs[key] = max(theirs, self._runs.get(key, 0))
            bound = most + _runs(node) + 3
            demand(
                len(refused) <= bound,
                f"C16: {node.name} probed {message.from_} {len(refused)} times in term {node.core.term}",
            )

    # --- ticks ----------------------------------------------------------------------------------------------
    def on_leader(self, node: SimNode) -> None:
        """Check that a winner has the votes of a majority. Its check-quorum starts now."""
        term, grants = node.core.term, self._invariants.grants
        voters = [name for name in node.world.names if grants.get((name, term)) == node.name]
        voters += [node.name] if node.name not in voters else []
        demand(node.name in self._invariants.voters, f"V1: {node.name} has no vote and leads term {term}")
        demand(
            self._invariants.is_quorum(voters),
            f"I1 election: {node.name} leads term {term} with the votes of {', '.join(voters)} only",
        )
        now = self._ticks.get(node.name, 0)
        for peer in node.world.names:
            self._heard[node.name, peer] = now

    def on_tick(self, node: SimNode) -> None:
        """Check at a tick that a node does not lead without a quorum."""
        now = self._ticks[node.name] = self._ticks.get(node.name, 0) + 1
        if node.core.leading is None:
            return
        config = node.core.config
        limit = min(node.core.shortest_timeout, config.election_ticks_min + config.patience_ticks_max)
        others = [name for name in node.world.names if name != node.name]
        alive = [name for name in others if now - self._heard[node.name, name] < limit]
        demand(
            self._invariants.is_quorum([node.name, *alive]),
            f"E14: {node.name} leads term {node.core.term} and heard only {len(alive)} others",
        )


def _runs(node: SimNode) -> int:
    """Return the number of terms in a node's log."""
    return 0 if node.life is None else len(node.core.log._firsts)

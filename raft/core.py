"""The Raft state machine of one group: inputs go in, decisions come out; no I/O, no clock (D9).

(interface first; the bodies follow)

How a shell drives it, on one thread:

1. Call one input (`tick`, `step`, `propose`, `storage_done`, ...).
2. Call `poll()` until it returns None, and carry out each Output, before the next input. `propose` may be called
   several times before a poll: the proposals share one persist operation and one AppendEntries per follower.
3. For each AppendEntries in `send` that is not empty: read its bytes from the log, as many whole entries as fit
   `max_bytes` (at least one), send `message.shortened(hi, size)` and call `append_sent(message, hi, size)`; or call
   `append_dropped(message)` when the log has changed or the stream is gone. There is at most one such message open
   per follower: the next one comes only after that call.
4. When an AppendEntries arrives: verify its bytes first, then `step`; then `persist.append` of the next Output names
   the part of them to store (lo may be above the message's lo: the prefix is here already; no append: all of it is).

Invariants: first_index - 1 <= applied <= min(commit_index, stable_index); stable_index <= last_index;
commit_index <= last_index; the log is never cut at or below commit_index; one vote per term, ever.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from .core_config import CoreConfig
from .log_view import LogView
from .messages import AppendEntries, Message
from .outputs import Accepted, Busy, NotLeader, Output, PeerProgress, Role, Transferring
from .types import HardState, LogIndex, NodeId, Term


class RaftCore:
    """One node's view of its group. Starts as a follower, also when it led before the restart (rule P16)."""

    def __init__(
        self, config: CoreConfig, hard_state: HardState, log_view: LogView, rng: random.Random
    ) -> None:
        raise NotImplementedError

    # --- inputs --------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """One tick of a monotonic clock passed. After a stall, deliver queued messages first, then tick once."""

    def step(self, message: Message) -> None:
        """Take a message of a peer. Never raises: what makes no sense is ignored."""

    def propose(self, sizes: Sequence[int]) -> Accepted | NotLeader | Busy | Transferring:
        """Append one entry per size (bytes in the log). Then build those entries, at exactly these indexes."""
        raise NotImplementedError

    def append_sent(self, message: AppendEntries, hi: LogIndex, size: int) -> None:
        """The shell sent the entries lo..hi (`size` bytes) of an AppendEntries that `poll` gave it."""

    def append_dropped(self, message: AppendEntries) -> None:
        """The shell could not send an AppendEntries that `poll` gave it. It is tried again later."""

    def storage_done(self, seq: int) -> None:
        """All persist operations with a number <= `seq` are on stable storage."""

    def storage_failed(self, reason: str) -> None:
        """A write or flush failed. Terminal: role FAULTED, no message ever again (rule P15)."""

    def link_down(self, peer: NodeId, refused: bool) -> None:
        """The connection to `peer` broke. `refused`: and it cannot be made again (refused, unreachable, 100 ms gone).

        A hint, never a fact: it may start an election sooner, and a pre-vote of a quorum decides.
        """

    def forget_leader(self) -> None:
        """Believe no longer that the leader lives; campaign within `forget_ticks_max`."""

    def compacted(self, first_index: LogIndex) -> None:
        """The log now starts at `first_index`; everything before it is applied."""

    def read_index(self, context: object) -> NotLeader | None:
        """Ask for an index that includes all that is committed now. Answer: `Output.reads` or `reads_aborted`."""

    def transfer_leadership(self, to: NodeId | None = None) -> NodeId | NotLeader | None:
        """Hand the lead to `to` (None: the best follower). Returns the target; None: nobody can take it.

        Success shows as SteppedDown; TransferAborted comes after one election timeout.
        """

    def resign(self) -> None:
        """Lead no longer; the others elect at once. For a stop whose transfer failed."""

    def campaign(self) -> None:
        """Start an election now (by pre-vote), if this node may."""

    def promote_to_voter(self) -> None:
        """A learner votes again. Only after CaughtUp. Votes for nobody else in the present term."""

    def want_commits(self, wanted: bool) -> None:
        """Somebody waits here for the commit index: ask the leader to tell at once when it moves."""

    # --- output --------------------------------------------------------------------------------------------
    def poll(self) -> Output | None:
        """Return what is to be done next, or None. Call again until None."""
        raise NotImplementedError

    # --- what it knows -------------------------------------------------------------------------------------
    role: Role
    term: Term
    voted_for: NodeId | None
    leader_id: NodeId | None
    is_voter: bool
    first_index: LogIndex
    last_index: LogIndex
    last_term: Term
    stable_index: LogIndex  # durable here
    commit_index: LogIndex
    applied_index: LogIndex  # given out in Output.committed
    uncommitted_bytes: int
    hard_state: HardState  # with the present commit index as the hint

    def progress(self) -> list[PeerProgress]:
        """What this leader knows of each follower; empty on other roles."""
        raise NotImplementedError

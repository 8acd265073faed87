"""Leader's view of one follower: what it has, and what to send next.

Owns: match and next index, the replication state, the window of messages under way. Must not: send, read a
clock.
Invariants: 0 <= match_index < next_index; at most one AppendEntries is open (given to the shell, not reported
sent). It lives as long as one lead: a leader that leads again starts without knowledge of its followers.
Raft paper: figure 2, 5.3; thesis 10.2.1 (pipelining).

    PROBE      -> REPLICATE  an acknowledgement: the logs agree up to match_index
    REPLICATE  -> PROBE      a refusal, a broken connection, or a message that was not sent: something is lost
    PROBE, REPLICATE -> RESET  the follower needs an entry below the first one that is retained here
    RESET      -> REPLICATE  it acknowledges the base of the leader's log, or anything behind it
    any        -> PROBE      `forget`: it came back without its log, or contradicts what it acknowledged
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from ..types import NO_INDEX, LogIndex, NodeId
from .messages import AppendEntries, AppendEntriesReply


class ProgressState(Enum):
    """How to send to a follower."""

    # Where its log agrees is not known. One message at next_index, then wait for the answer to it or, as
    # either may be lost, for the answer to a later heartbeat
    PROBE = "probe"
    # It agrees up to match_index. Send ahead of the replies, within the window
    REPLICATE = "replicate"
    # It needs entries that were deleted here. Show it the base, empty, after each answer to a later heartbeat
    RESET = "reset"


@dataclass(slots=True)
class Progress:
    """State of one follower. The window is what was sent and not acknowledged: messages and their bytes."""

    node_id: NodeId
    # First entry of the next message. PROBE: the entry before it is the one that is asked for. REPLICATE: the
    # entries match_index + 1 .. next_index - 1 were sent and are not acknowledged. RESET: each offer sets it
    # behind our base
    next_index: LogIndex
    # Highest entry known to be durable there and equal to ours. The commit index is counted from it, so it
    # moves with acknowledgements only, and back only in `forget`
    match_index: LogIndex = NO_INDEX
    state: ProgressState = ProgressState.PROBE
    contact_ticks: int = 0  # since anything was heard from it; check-quorum looks at this
    is_learner: bool = False  # by its last answer: its copies and answers do not count
    wants_commit: bool = False  # by its last answer: a caller waits there, so send the commit index at once
    # Message with entries that the shell has not reported as sent or dropped. No other one goes meanwhile
    open_append: AppendEntries | None = None
    open_ticks: int = 0  # age of open_append; after the shortest election timeout it counts as dropped
    # PROBE and RESET: a message went, the next one waits for its answer or for `on_alive`
    probe_sent: bool = False
    # No heartbeat went behind the probe yet, so the answer to one does not tell that the probe was lost
    probe_is_newest: bool = False
    acked: bool = False  # something was acknowledged since the last heartbeat reply: nothing seems to be lost
    sent_commit: LogIndex = NO_INDEX  # highest commit index that it can take from the appends that were sent
    stable_index: LogIndex = NO_INDEX  # as reported with heartbeats, for status only
    commit_index: LogIndex = NO_INDEX  # as reported with heartbeats, for status and to notice lost news
    inflight_bytes: int = 0  # sum of the bytes in `inflight`
    # (hi, bytes) of each message under way, oldest first. Invariant: hi increases, and is above match_index
    inflight: deque[tuple[LogIndex, int]] = field(default_factory=deque)

    @property
    def durable_index(self) -> LogIndex:
        """Highest entry known to be durable there, for status: as it reported, or acknowledged since."""
        return max(self.stable_index, self.match_index)

    def may_send(self, max_messages: int, max_bytes: int) -> bool:
        """Tell whether another message with entries may go."""
        if self.open_append is not None:
            return False
        if self.state is ProgressState.REPLICATE:
            return len(self.inflight) < max_messages and self.inflight_bytes < max_bytes
        return not self.probe_sent

    def on_sent(self, hi: LogIndex, size: int) -> None:
        """Note that the open message went out with entries up to `hi`.

        Its acknowledgement may be here already: of an earlier copy, or faster than this report. Then no other
        one follows, so it takes no place in the window.
        """
        self.open_append = None
        if self.state is ProgressState.REPLICATE:
            self.next_index = max(self.next_index, LogIndex(hi + 1))
            if hi > self.match_index:
                self.inflight.append((hi, size))
                self.inflight_bytes += size
        else:
            self.on_probed()

    def on_probed(self) -> None:
        """Note that a probe went out: nothing more is sent before an answer."""
        self.probe_sent = self.probe_is_newest = True

    def on_alive(self) -> None:
        """Repeat the probe, which may be lost, after the answer to a heartbeat that went behind it.

        Not after the answer to an earlier heartbeat. A follower that was stopped answers all that it missed
        at once: a copy of the probe for each, with all entries since, would keep the leader busy beyond an
        election timeout.
        """
        if not self.probe_is_newest:
            self.probe_sent = False

    def on_dropped(self) -> None:
        """Note that the open message was lost before it left: try again with the next heartbeat reply."""
        self.open_append = None
        self.become_probe()
        self.probe_sent = True

    def on_success(self, match_index: LogIndex) -> bool:
        """Take an acknowledgement; return whether `match_index` moved."""
        moved = match_index > self.match_index
        self.acked = True
        if moved:
            self.match_index = match_index
        if self.state is ProgressState.REPLICATE:
            self.next_index = max(self.next_index, LogIndex(self.match_index + 1))
            self._free_up_to(match_index)
        elif moved or match_index == self.match_index:
            self._become_replicate()
        return moved

    def on_refusal(self, reply: AppendEntriesReply, hint: LogIndex) -> bool:
        """Take a refusal; `hint` is the newest entry that may agree. Return whether a new probe is due."""
        if self.state is ProgressState.RESET:
            return False  # still without our base, which goes again after the next heartbeat reply
        if self.state is ProgressState.REPLICATE:
            if reply.reject_index <= self.match_index:
                return False  # older than a later acknowledgement
            self.become_probe()
            return True
        if reply.reject_index != self.next_index - 1:
            return False  # answers an older probe
        lower = min(reply.reject_index, LogIndex(hint + 1))
        self.next_index = max(lower, LogIndex(self.match_index + 1))
        self.probe_sent = False
        return True

    def denies_match(self, reply: AppendEntriesReply) -> bool:
        """Tell whether a refusal is about the newest acknowledged entry: then the follower lost it."""
        return (
            self.state is ProgressState.PROBE
            and self.match_index > NO_INDEX
            and reply.reject_index == self.match_index == self.next_index - 1
        )

    def become_probe(self) -> None:
        """Find out again where the log agrees: messages under way may be lost."""
        self.state = ProgressState.PROBE
        self.next_index = LogIndex(self.match_index + 1)
        self._clear_window()

    def become_reset(self) -> None:
        """Offer a reset: the follower is behind the first retained entry."""
        self.state = ProgressState.RESET
        self._clear_window()

    def forget(self, last_index: LogIndex = NO_INDEX) -> None:
        """Take back its acknowledgements: it came back without all of its log. It may have `last_index`."""
        self.match_index = LogIndex(0)
        self.become_probe()
        self.next_index = LogIndex(last_index + 1)

    def _become_replicate(self) -> None:
        self.state = ProgressState.REPLICATE
        self.next_index = LogIndex(self.match_index + 1)
        self._clear_window()

    def _clear_window(self) -> None:
        self.probe_sent = False
        self.open_append = None
        self.inflight.clear()
        self.inflight_bytes = 0

    def _free_up_to(self, index: LogIndex) -> None:
        inflight = self.inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]

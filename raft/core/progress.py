"""Leader's view of one follower: what it has, and what to send next.

Owns: match and next index, the replication state, the window of what is under way. Must not: send, read a clock.
Invariants: 0 <= match_index < next_index; at most one AppendEntries is open (given to the shell, not reported sent).
Raft paper: figure 2, 5.3; thesis 10.2.1 (pipelining).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from ..types import NO_INDEX, LogIndex, NodeId
from .messages import AppendEntries, AppendEntriesReply


class ProgressState(Enum):
    """How to send to a follower."""

    PROBE = "probe"  # where its log agrees is not known: one message, then wait
    REPLICATE = "replicate"  # it agrees: send ahead of the replies, within the window
    RESET = "reset"  # it needs entries that are gone here: only show it the base


@dataclass(slots=True)
class Progress:
    """State of one follower. Windows are entry bytes and messages sent and not acknowledged."""

    node_id: NodeId
    next_index: LogIndex  # first entry not yet sent
    match_index: LogIndex = NO_INDEX  # highest entry known to be durable there and equal to ours
    state: ProgressState = ProgressState.PROBE
    contact_ticks: int = 0  # since anything was heard
    is_learner: bool = False  # its word does not count
    wants_commit: bool = False
    open_append: AppendEntries | None = None
    open_ticks: int = 0
    probe_sent: bool = False  # PROBE and RESET: wait for the reply, or for a reply to a later heartbeat
    probe_is_newest: bool = False  # no heartbeat was sent since
    acked: bool = False  # something was acknowledged since the last heartbeat reply
    sent_commit: LogIndex = NO_INDEX  # highest commit index that a sent append carried
    stable_index: LogIndex = NO_INDEX  # as reported, for status
    commit_index: LogIndex = NO_INDEX  # as reported
    inflight_bytes: int = 0
    inflight: deque[tuple[LogIndex, int]] = field(default_factory=deque)  # (hi, bytes), oldest first

    def may_send(self, max_messages: int, max_bytes: int) -> bool:
        """Tell whether another message with entries may go."""
        if self.open_append is not None:
            return False
        if self.state is ProgressState.REPLICATE:
            return len(self.inflight) < max_messages and self.inflight_bytes < max_bytes
        return not self.probe_sent

    def on_sent(self, hi: LogIndex, size: int) -> None:
        """Note that the open message went out with entries up to `hi`.

        Its acknowledgement may be here already (of a copy that left before, or quicker than this report). None follows,
        so it takes no place in the window.
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
        """Note that a probe went out: nothing more is sent before something is heard."""
        self.probe_sent = self.probe_is_newest = True

    def on_alive(self) -> None:
        """A heartbeat was answered: the probe may have been lost, and goes again.

        Not for an answer to a heartbeat from before the probe. A follower that was stopped answers all that it missed at once:
        a copy of the probe for each, with all entries since, would keep the leader busy for longer than an election timeout.
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
            return False  # still without our base; shown again after the next heartbeat reply
        if self.state is ProgressState.REPLICATE:
            if reply.reject_index <= self.match_index:
                return False  # older than what it acknowledged since
            self.become_probe()
            return True
        if reply.reject_index != self.next_index - 1:
            return False  # answers an older probe
        lower = min(reply.reject_index, LogIndex(hint + 1))
        self.next_index = max(lower, LogIndex(self.match_index + 1))
        self.probe_sent = False
        return True

    def denies_match(self, reply: AppendEntriesReply) -> bool:
        """Tell whether a refusal is of the very entry that was acknowledged before: it is lost there."""
        return (
            self.state is ProgressState.PROBE
            and self.match_index > NO_INDEX
            and reply.reject_index == self.match_index == self.next_index - 1
        )

    def become_probe(self) -> None:
        """What is under way may be lost: find out again where the log agrees."""
        self.state = ProgressState.PROBE
        self.next_index = LogIndex(self.match_index + 1)
        self._clear_window()

    def become_reset(self) -> None:
        """It is behind the first retained entry."""
        self.state = ProgressState.RESET
        self._clear_window()

    def forget(self, last_index: LogIndex = NO_INDEX) -> None:
        """What it acknowledged before no longer holds: it came back without all of its log. It may have `last_index`."""
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

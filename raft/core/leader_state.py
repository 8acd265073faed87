"""What only a leader has: its followers, its reads, its undecided bytes, a hand-over in progress."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..types import LogIndex, NodeId
from .progress import Progress
from .read_rounds import ReadRounds


@dataclass(slots=True)
class LeaderState:
    """Lives from election to step-down; nothing of it is durable."""

    followers: dict[NodeId, Progress]
    noop_index: LogIndex  # reads and proposals' visibility wait for its commit
    noop_given: bool = False  # the shell has been told to build it
    heartbeat_elapsed: int = 0
    uncommitted: deque[tuple[LogIndex, int]] = field(default_factory=deque)  # (index, bytes) of own proposals
    uncommitted_bytes: int = 0
    reads: ReadRounds = field(default_factory=ReadRounds)
    transfer_to: NodeId | None = None
    transfer_elapsed: int = 0
    transfer_sent: bool = False  # TimeoutNow is on its way

    def free_up_to(self, commit_index: LogIndex) -> None:
        """Proposals up to the commit index are decided."""
        queue = self.uncommitted
        while queue and queue[0][0] <= commit_index:
            self.uncommitted_bytes -= queue.popleft()[1]

"""Undecided proposals of this leader, oldest first.

Owns: their futures. Invariant: indexes increase, and all are of the term that this node leads or has just
lost.
"""

from __future__ import annotations

from collections import deque

from ..errors import ProposalLostError
from ..state_machine import Proposal
from ..types import LogIndex


class PendingProposals:
    """`propose` adds to it. Commit, or loss of leadership, removes."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Proposal] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, proposal: Proposal) -> None:
        """Add the newest proposal."""
        self._queue.append(proposal)

    def committed(self, index: LogIndex) -> None:
        """Resolve all proposals up to `index` as committed."""
        queue = self._queue
        while queue and queue[0].header.index <= index:
            future = queue.popleft().committed
            if not future.done():  # the caller may have given up
                future.set_result(None)

    def lost(self, reason: str) -> int:
        """Fail all remaining proposals: their outcome is unknown. Returns how many there were."""
        count = len(self._queue)
        while self._queue:
            proposal = self._queue.popleft()
            if not proposal.committed.done():
                proposal.committed.set_exception(
                    ProposalLostError(f"the outcome of entry {proposal.index} is unknown: {reason}")
                )
                proposal.committed.exception()  # marks it retrieved: the caller may ignore it
        return count

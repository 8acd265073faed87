"""Proposals of this leader that are not decided yet, oldest first.

Owns: their futures. Invariant: indexes increase; all are of the term that this node leads or has just lost.
"""

from __future__ import annotations

from collections import deque

from ..errors import ProposalLostError
from ..state_machine import Proposal
from ..types import LogIndex


class PendingProposals:
    """Filled by `propose`, emptied by commit or by the loss of the lead."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[Proposal] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def append(self, proposal: Proposal) -> None:
        """Add the newest."""
        self._queue.append(proposal)

    def committed(self, index: LogIndex) -> None:
        """Everything up to `index` is committed: wake those who wait."""
        queue = self._queue
        while queue and queue[0].header.index <= index:
            future = queue.popleft().committed
            if not future.done():  # the caller may have given up
                future.set_result(None)

    def lost(self, reason: str) -> int:
        """Fail all that are left: their outcome is unknown. Return how many there were."""
        count = len(self._queue)
        while self._queue:
            proposal = self._queue.popleft()
            if not proposal.committed.done():
                proposal.committed.set_exception(
                    ProposalLostError(f"the outcome of entry {proposal.index} is unknown: {reason}")
                )
                proposal.committed.exception()  # nobody has to look at it
        return count

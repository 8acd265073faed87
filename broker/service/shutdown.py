"""The start of a node's shutdown, for tasks that wait long or retry."""

from __future__ import annotations

from ..reading.polls import Polls


class Shutdown:
    """Tells whether this node is stopping: long polls end then, and the node is not ready any more."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self.begun = False

    def begin(self) -> None:
        """Begin to stop, and wake every long poll."""
        self.begun = True
        self._polls.wake_all()

"""The beginning of a node's stop, for those who wait long or try again."""

from __future__ import annotations

from ..reading.polls import Polls


class Shutdown:
    """Whether this node stops: long polls end then, and it is not ready any more."""

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self.begun = False

    def begin(self) -> None:
        """Have whoever waits look up."""
        self.begun = True
        self._polls.wake_all()

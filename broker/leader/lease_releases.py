"""Releases of leases whose messages never left: told again until one is applied.

A lease of a session has no end of its own, so a release that is refused or lost would keep its message from everybody while
that client lives. Proposing one twice does no harm: it names the lease that it ends.
Owns: the releases that are owed, also by a node that leads no longer (`give_backs` tells them to who does).
Must not: know why a lease is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ledgermq.raft.errors import NotLeaderError

from ..state.commands import ReleaseLeases
from ..state.machine import BrokerState
from .owed_leases import OwedLeases
from .pipeline import Applied, TooManyRequestsError, settle_error

logger = logging.getLogger(__name__)


class LeaseReleases:
    """Call `again` about once a second while this node leads."""

    def __init__(
        self, run: Callable[[ReleaseLeases], asyncio.Future[Applied]], state: Callable[[], BrokerState]
    ) -> None:
        """`run`: that of the append pipeline; `state`: the replicated one, which says what is over."""
        self._run = run
        self._state = state
        self._owed = OwedLeases()
        #: Told when something is owed.
        self.on_owed: Callable[[], None] = lambda: None

    def propose(self, command: ReleaseLeases) -> asyncio.Future[Applied]:
        """Propose a release, and again when that fails. The future is of this attempt; nobody needs to await it."""
        try:
            future = self._run(command)
        except (NotLeaderError, TooManyRequestsError) as error:
            future = asyncio.get_running_loop().create_future()
            settle_error(future, error)
            self._owe(command, error)
            return future
        future.add_done_callback(partial(self._on_done, command))
        return future

    def again(self) -> None:
        """Propose what is owed."""
        self.forget_ended()
        while (command := self._owed.take()) is not None:
            if self.propose(command).done():
                return  # refused at once: so would the others be

    # --- what is owed ---------------------------------------------------------------------------------------
    @property
    def owed(self) -> int:
        """How many ranges of leases are owed."""
        return len(self._owed)

    def owe(self, command: ReleaseLeases) -> None:
        """Keep a release that nobody has taken yet."""
        self._owed.add(command)
        self.on_owed()

    def take(self) -> ReleaseLeases | None:
        """Take out some of what is owed, to tell it to the leader; `owe` it again when that fails."""
        return self._owed.take()

    def forget_ended(self) -> None:
        """Forget what is over by what this node has applied."""
        self._owed.forget_ended(self._state())

    def _on_done(self, command: ReleaseLeases, future: asyncio.Future[Applied]) -> None:
        if future.cancelled():  # by its caller: what became of it is not known
            self._owe(command, None)
        elif (error := future.exception()) is not None:
            self._owe(command, error)

    def _owe(self, command: ReleaseLeases, error: BaseException | None) -> None:
        logger.debug("leases not released, they are again in a moment reason=%s", error)
        self.owe(command)

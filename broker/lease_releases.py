"""Releases of leases whose messages never left: proposed again until one is applied.

A lease of a session has no end of its own, so a release that is refused or lost would keep its message from everybody while
that client lives. Proposing one twice does no harm: it names the lease that it ends.
Owns: the releases that are owed. Must not: know why a lease is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from ledgermq.raft.errors import NotLeaderError

from .commands import ReleaseLeases
from .produce import Applied, TooManyRequestsError, settle_error

logger = logging.getLogger(__name__)

#: Releases that may be owed; the oldest are forgotten then.
MAX_OWED: Final = 10_000


class LeaseReleases:
    """Call `again` about once a second while this node leads."""

    def __init__(self, run: Callable[[ReleaseLeases], asyncio.Future[Applied]]) -> None:
        """`run`: that of the append pipeline."""
        self._run = run
        self._owed: deque[ReleaseLeases] = deque(maxlen=MAX_OWED)

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
        for _ in range(len(self._owed)):
            if self.propose(self._owed.popleft()).done():
                return  # refused at once: so would the others be

    def _on_done(self, command: ReleaseLeases, future: asyncio.Future[Applied]) -> None:
        if future.cancelled():  # by its caller: what became of it is not known
            self._owe(command, None)
        elif (error := future.exception()) is not None:
            self._owe(command, error)

    def _owe(self, command: ReleaseLeases, error: BaseException | None) -> None:
        logger.debug("leases not released, they are again in a moment reason=%s", error)
        self._owed.append(command)

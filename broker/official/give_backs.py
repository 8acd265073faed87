"""What this node owes to the leader: leases of messages that did not reach their consumers, told until a leader took them.

Where a lease came from does not matter to whom it is told: a grant that the next leader finds in its state is as good there as
where it was made. This node's own state says when one is over by itself, under whatever leader.
Owns: the task that tells it. Must not: keep what is owed (`LeaseReleases` does), or drop any of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from ledgermq.proto import peer_pb2

from ..cluster.calls import Call, LeaderCalls
from ..cluster.forwarding import ForwardError, answer_of
from ..cluster.known_leader import Leadership
from ..leader.releases import LeaseReleases
from ..refusals import REFUSABLE
from ..state.commands import ReleaseLeases
from .hand_out import peer_of_release, release_of_peer

logger = logging.getLogger(__name__)

METHOD: Final = "/ledgermq.v1.PeerService/GiveBack"
#: For one try: through an election, too.
TRY_SECONDS: Final = 5.0
#: Between two tries when one failed and nothing new is heard about a leader.
PAUSE_SECONDS: Final = 1.0
#: Commands under way at the same time; each names up to `deliveries.ROWS_MAX` leases.
MAX_UNDER_WAY: Final = 8


class GiveBacks:
    """Use: `give_back(command)`; `await stop(seconds)`."""

    def __init__(self, releases: LeaseReleases, leadership: Leadership, calls: LeaderCalls) -> None:
        self._releases = releases
        self._leadership = leadership
        self._calls = calls
        self._releases.on_owed = self._wake
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def give_back(self, command: ReleaseLeases) -> None:
        """These messages become visible again, as soon as there is a leader, without counting an attempt."""
        if len(command.rows):
            self._releases.owe(command)

    async def stop(self, seconds: float) -> None:
        """Tell what is owed, for so long at most."""
        self._stopped = True
        if (task := self._task) is not None:
            await asyncio.wait({task}, timeout=seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._releases.owed:
            logger.warning(
                "leases not given back, they last as long as their clients live ranges=%d",
                self._releases.owed,
            )

    def _wake(self) -> None:
        if self._task is None and not self._stopped:
            self._task = asyncio.create_task(self._run(), name="give-backs")
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._releases.owed:  # since it looked
            self._wake()

    async def _run(self) -> None:
        failing = False
        while self._releases.owed:
            changes = self._leadership.changes
            commands = [self._releases.take() for _ in range(MAX_UNDER_WAY)]
            told = await asyncio.gather(*(self._tell(each) for each in commands if each is not None))
            refused = list(filter(None, told))
            if not refused:
                failing = False
                continue
            if not failing:
                logger.info("leases not given back, they are again in a moment reason=%s", refused[0])
            failing = True
            if self._leadership.changes == changes:
                await self._leadership.wait_change(PAUSE_SECONDS)
            self._releases.forget_ended()

    async def _tell(self, command: ReleaseLeases) -> str:
        """Return why no leader took it; "" when one did."""
        reason = "unfinished"
        try:
            reason = await self._told(command)
        finally:
            if reason:
                self._releases.owe(command)
        return reason

    async def _told(self, command: ReleaseLeases) -> str:
        async def local() -> bytes:
            return (await give_back(self._releases, granted)).SerializeToString()

        granted = peer_of_release(command)
        call = Call("", "", "", "", time.monotonic() + TRY_SECONDS, ())
        try:
            raw = await self._calls.unary(METHOD, granted.SerializeToString(), call, local)
            answer = answer_of("the leader", peer_pb2.GiveBackAnswer, raw)
        except REFUSABLE as error:
            return str(error) or type(error).__name__
        except ForwardError as error:
            return str(error)
        except Exception as error:  # a defect: it must not cost the leases, nor make this spin
            logger.exception("giving leases back failed")
            return type(error).__name__
        return answer.refusal.message or "refused" if answer.HasField("refusal") else ""


async def give_back(releases: LeaseReleases, granted: peer_pb2.GrantedMessages) -> peer_pb2.GiveBackAnswer:
    """At the leader: end the leases of messages that did not leave, without counting an attempt."""
    await releases.propose(release_of_peer(granted))
    return peer_pb2.GiveBackAnswer()

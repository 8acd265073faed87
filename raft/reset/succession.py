"""Succession in a broker group with a master: listens for a successor, and makes way for it (D24).

A master that restarts leads only after it has heard the other members or found them unreachable: one of them
may have been promoted meanwhile. If one was promoted beside it, it does not lead; a person must give up one
of the two. A node that hears of a later generation falls silent in the same loop turn and acknowledges
nothing more. Then it stores that its folder is to be moved aside, and must be restarted.

Owns: the wait at start, the single step from "superseded" to "restart". Must not: judge greetings (reign.py
does).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..config import RaftConfig
from ..core.machine import RaftCore
from ..core.reign import Reign
from ..drive.driver import Driver, RaftTransport
from ..drive.voting_rights import VotingRights
from ..types import NodeId

logger = logging.getLogger(__name__)

#: Seconds that a starting master listens for silent members, and for members whose port is closed: those may
#: be starting too.
PATIENCE_S: Final = 3.0
CLOSED_PATIENCE_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.05


@dataclass(slots=True)
class Succession:
    """Usage: `start()` before the clock runs, `left_behind(reign)`, `await close()`, all on the loop."""

    config: RaftConfig
    core: RaftCore
    driver: Driver
    transport: RaftTransport
    rights: VotingRights
    on_decided: Callable[[], None]
    fail: Callable[[str], None]
    is_left_behind: bool = False  # also set if it was heard too late to be stored; it will be heard again
    _listening: asyncio.Task[None] | None = None
    _making_way: asyncio.Task[None] | None = None
    _stepped_aside: bool = False

    def start(self) -> None:
        """Hold a master back until it has listened."""
        config = self.config
        if config.reign is not None and not config.is_slave and config.peers:
            self.core.hold(True)
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    def left_behind(self, reign: Reign) -> None:
        """Handle that the broker group goes on in a later generation, without this node's folder."""
        if self.is_left_behind or (self.core.is_silent and not self._stepped_aside):
            return
        self.is_left_behind = True
        if self._stepped_aside:
            logger.error(
                "the promotion of this node is given up: %s was promoted before node=%s generation=%d",
                reign.master, self.config.node_id, reign.generation,
            )  # fmt: skip
        if self.driver.closed:
            return
        logger.warning(
            "left behind: %s was promoted, so this node stops, and starts over from what that one has "
            "node=%s generation=%d took_over=%d last_index=%d",
            reign.master, self.config.node_id, reign.generation, reign.began_after, self.core.last_index,
        )  # fmt: skip
        if self._listening is not None:
            self._listening.cancel()
        self.driver.feed(self.core.leave)
        self._making_way = asyncio.get_running_loop().create_task(self._make_way(reign))

    def step_aside(self, *, though_leading: bool = False) -> str:
        """Fall silent for good so that this folder can begin its own generation. Returns why not, or "".

        Check and step are one turn: a master heard later gets no acknowledgement from here and adds no
        entries to this log. Next: stop the node and promote its folder, unless it `is_left_behind` by then. A
        node that is merely restarted is the same slave as before. `though_leading`: also allows the master
        itself, which is to begin a generation in place of another one.
        """
        if self.core.is_silent or self.driver.closed:
            return "another node was promoted, or this one is to start again from its folder"
        self.driver.settle()
        leader = self.core.leader_id
        if leader is not None and not (though_leading and leader == self.config.node_id):
            return f"{leader} leads"
        self._stepped_aside = True
        if self._listening is not None:
            self._listening.cancel()
        self.core.leave()
        self.driver.pump()
        return ""

    async def close(self) -> None:
        """Stop deciding. Earlier decisions are stored."""
        if self._listening is not None:
            self._listening.cancel()
        if tasks := [task for task in (self._listening, self._making_way) if task is not None]:
            await asyncio.wait(tasks)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        unheard = {peer.node_id for peer in self.config.peers}
        while unheard and (waited := loop.time() - began) < PATIENCE_S:
            await asyncio.sleep(_LOOK_AGAIN_S)
            unheard = {peer for peer in unheard if not self._has_word_of(peer, waited)}
        await self._wait_for_a_person()
        silent = sorted(p.node_id for p in self.config.peers if p.node_id not in self.rights.hellos)
        logger.info("may lead node=%s not_heard=%s", self.config.node_id, ",".join(silent) or "-")
        with self.driver.defects_fault("the first campaign of a master"):
            self.driver.settle()
            self.core.hold(False)
            self.core.campaign()
            self.driver.pump()

    async def _wait_for_a_person(self) -> None:
        """Return once no rival promotion is reported any more."""
        said = ""
        while why := self.rights.explain_rivals():
            if why != said:
                logger.error("%s", why)
                said = why
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _has_word_of(self, peer: NodeId, waited: float) -> bool:
        if peer in self.rights.hellos:
            return True
        return waited >= CLOSED_PATIENCE_S and self.transport.links[peer].control.is_closed_there

    async def _make_way(self, reign: Reign) -> None:
        try:
            await self.rights.store_successor(reign)
        except OSError as error:
            self.fail(
                f"the broker group goes on without this node's folder ({reign.master} was promoted), and "
                f"that cannot be stored in {self.config.data_dir}: {error}. Nothing was changed. Check that "
                "disk, then start the node again"
            )
        else:
            self.on_decided()

"""One round of a repair: asks the peers what they have committed, and takes what is missing here.

Owns: the choice of a peer.   Must not: decide what to do with a log that no peer can repair
(repair/at_start.py, repair/while_running.py). The repair itself rejects entries that do not fit; then the
next peer is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from ledgermq.proto import raft_pb2 as pb

from ..config import RaftConfig
from ..disk.threads import in_thread
from ..errors import InvalidWireError, OtherHistoryError
from ..log.rewrite import LogRepair, RewriteProgress
from ..types import LogIndex
from .refetch import CHUNK_BYTES, Offer, RefetchClient, RefetchError

logger = logging.getLogger(__name__)


class RoundOutcome(Enum):
    """Result of a round."""

    CONNECTED = "connected"  # the log continues with valid entries of its own
    REACHED = "reached"  # everything that must be there is there
    STUCK = "stuck"  # no peer has more that fits


@dataclass(slots=True)
class RoundResult:
    """Result of one round, with the peers' answers."""

    outcome: RoundOutcome = RoundOutcome.STUCK
    offers: list[Offer] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def is_deleted_everywhere(self, config: RaftConfig, index: LogIndex) -> bool:
        """Return whether every peer answered and none of them still has entry `index`."""
        return len(self.offers) == len(config.peers) and all(
            offer.first_index > index for offer in self.offers
        )

    def waiting_for(self, index: LogIndex) -> str:
        """Return what must happen before the repair goes on."""
        parts = list(self.complaints)
        for offer in self.offers:
            if offer.first_index > index:
                parts.append(f"{offer.peer}: its log begins at entry {offer.first_index}")
            elif offer.commit_index < index:
                leader = f"follows {offer.leader_id}" if offer.leader_id else "knows of no leader"
                parts.append(f"{offer.peer}: has committed up to entry {offer.commit_index}, {leader}")
        return f"a member that has entry {index} committed ({'; '.join(parts) or 'none answers'})"


async def run_round(
    config: RaftConfig,
    client: RefetchClient,
    repair: LogRepair,
    told: pb.RepairProgress,
    is_reached: Callable[[LogRepair], bool],
) -> RoundResult:
    """Ask every peer, then take entries from those that have them. Raises: OSError (terminal, P15)."""
    result = RoundResult()
    peers = {peer.node_id: peer for peer in config.peers}
    answers = await asyncio.gather(
        *(client.ask(peer, repair.next_index, 0, told) for peer in config.peers), return_exceptions=True
    )
    for answer in answers:
        if isinstance(answer, RefetchError):
            result.complaints.append(str(answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            result.offers.append(answer)
    for offer in sorted(result.offers, key=lambda offer: -offer.commit_index):
        try:
            while offer.first_index <= repair.next_index <= offer.commit_index:
                wanted = await client.ask(peers[offer.peer], repair.next_index, CHUNK_BYTES, told)
                if not wanted.entries:
                    break  # retention deleted them in between
                try:
                    progress = await in_thread(partial(repair.take, wanted.entries))
                except OtherHistoryError:
                    if not repair.go_back():
                        raise
                    logger.warning(
                        "what stands before the damage was never committed entry=%d", repair.next_index
                    )
                    continue
                told.repaired_bytes = repair.written_bytes
                if progress is RewriteProgress.CONNECTED or is_reached(repair):
                    connected = progress is RewriteProgress.CONNECTED
                    result.outcome = RoundOutcome.CONNECTED if connected else RoundOutcome.REACHED
                    return result
        except (RefetchError, InvalidWireError) as error:
            result.complaints.append(f"{offer.peer}: {error}")
            logger.warning("entries for a repair not used peer=%s reason=%r", offer.peer, str(error))
    return result

"""Call between nodes that gives leases back, so that undelivered messages become visible again.

Owns: both ends of the call. Must not: store leases to give back, or retry (`leader/releases.py` does).
"""

from __future__ import annotations

import logging
import time
from typing import Final

from ledgermq.proto import peer_pb2

from ..cluster.forwarding import ForwardError, answer_of
from ..cluster.leader_calls import Call, LeaderCalls
from ..leader.releases import LeaseReleases
from ..refusals import REFUSABLE
from ..state.commands import ReleaseLeases
from .hand_out import peer_of_release, release_of_peer

logger = logging.getLogger(__name__)

METHOD: Final = "/ledgermq.v1.PeerService/GiveBack"
#: Seconds for one attempt, which may last through an election.
TRY_SECONDS: Final = 5.0


async def tell_leader(calls: LeaderCalls, releases: LeaseReleases, command: ReleaseLeases) -> str:
    """Have the leader end these leases; return why that failed, "" when it is done."""

    async def local() -> bytes:
        await releases.propose(command)
        return peer_pb2.GiveBackAnswer().SerializeToString()

    call = Call("", "", "", "", time.monotonic() + TRY_SECONDS, ())
    try:
        raw = await calls.unary(METHOD, peer_of_release(command).SerializeToString(), call, local)
        answer = answer_of("the leader", peer_pb2.GiveBackAnswer, raw)
    except REFUSABLE as error:
        return str(error) or type(error).__name__
    except ForwardError as error:
        return str(error)
    except Exception as error:  # a defect: the leases must not be lost, nor may it cause a busy loop
        logger.exception("giving leases back failed")
        return type(error).__name__
    return answer.refusal.message or "refused" if answer.HasField("refusal") else ""


async def give_back(releases: LeaseReleases, granted: peer_pb2.GrantedMessages) -> peer_pb2.GiveBackAnswer:
    """Serve the call at the leader: end leases of undelivered messages without counting an attempt."""
    await releases.propose(release_of_peer(granted))
    return peer_pb2.GiveBackAnswer()

"""Granted messages between nodes: their encoding, and the call that gives leases back (D17).

A lease that is given back makes its undelivered message visible again.
Owns: both ends of the call. Must not: store leases to give back, or retry (`leader/releases.py` does).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from ledgermq.proto import peer_pb2

from ..cluster.forwarding import answer_of
from ..cluster.lane import ForwardError
from ..cluster.leader_calls import Call, LeaderCalls
from ..leader.releases import LeaseReleases
from ..leader.selection import Delivery
from ..refusals import REFUSABLE
from ..state.commands import ReleaseLeases, lease_rows

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


def to_peer(group_id: int, topic_id: int, deliveries: Iterable[Delivery]) -> peer_pb2.GrantedMessages:
    """Encode deliveries for another node."""
    granted = peer_pb2.GrantedMessages(group_id=group_id, topic_id=topic_id)
    for each in deliveries:
        granted.messages.add(
            queue_id=each.queue_id,
            queue_offset=each.queue_offset,
            physical_offset=each.physical_offset,
            size=each.size,
            attempt=each.attempt,
            lease_id=each.lease_id,
        )
    return granted


def deliveries_of_peer(granted: peer_pb2.GrantedMessages) -> list[Delivery]:
    """Decode the deliveries that `to_peer` encoded."""
    return [
        Delivery(
            each.queue_id, each.queue_offset, each.physical_offset, each.size, 0, each.attempt, each.lease_id
        )
        for each in granted.messages
    ]


def peer_of_release(command: ReleaseLeases) -> peer_pb2.GrantedMessages:
    """Encode leases to give back; `release_of_peer` decodes them."""
    granted = peer_pb2.GrantedMessages(group_id=command.group_id, topic_id=command.topic_id)
    for queue_id, offset, lease_id in command.rows.tolist():
        granted.messages.add(queue_id=queue_id, queue_offset=offset, lease_id=lease_id)
    return granted


def release_of_peer(granted: peer_pb2.GrantedMessages) -> ReleaseLeases:
    """Decode the command that ends the leases of undelivered messages."""
    rows = [(each.queue_id, each.queue_offset, each.lease_id) for each in granted.messages]
    return ReleaseLeases(granted.group_id, granted.topic_id, lease_rows(rows))

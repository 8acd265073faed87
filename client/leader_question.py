"""Asks nodes of a group who leads it, as they know it: for a leader that says nothing while no nameserver tells of another.

Owns: the question and how long it takes. Must not: decide what follows from the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import grpc

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import admin_pb2_grpc

from .channels import Channels

#: Nodes that are there answer from memory; a question to one that is lost must not hold up the others' answers.
PATIENCE_S: Final = 0.1


async def who_leads(channels: Channels, addresses: Iterable[str]) -> tuple[int, str]:
    """Return (term, node id of its leader) of the newest term that any of the nodes knows; (0, "") when none answers."""
    answers = await asyncio.gather(*(_ask(channels.get(address)) for address in addresses))
    return max(answers, default=(0, ""))


async def _ask(channel: Any) -> tuple[int, str]:
    try:
        status = await admin_pb2_grpc.AdminServiceStub(channel).GetStatus(
            pb.GetStatusRequest(), timeout=PATIENCE_S
        )
    except grpc.RpcError:
        return 0, ""
    return status.term, status.leader_id

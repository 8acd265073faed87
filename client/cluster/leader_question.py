"""Leader query: asks the nodes of a broker group who leads it.

For a leader that is silent while no nameserver names another. Owns: the query and its duration. Must not:
decide what follows from the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import grpc

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import admin_pb2_grpc

from ..pauses import LEADER_PATIENCE_S, LEADER_TIMEOUT_S
from .channels import Channels

_UNKNOWN: Final = (0, "")


async def who_leads(channels: Channels, addresses: Iterable[str]) -> tuple[int, str]:
    """Return (term, leader's node id) of the newest term known to these nodes; (0, ""): no answer."""
    asked = {asyncio.create_task(_ask(channels.get(address))) for address in addresses}
    if not asked:
        return _UNKNOWN
    try:
        done, waiting = await asyncio.wait(asked, timeout=LEADER_PATIENCE_S)
        while waiting and all(task.result() == _UNKNOWN for task in done):
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        return max((task.result() for task in done), default=_UNKNOWN)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _ask(channel: Any) -> tuple[int, str]:
    try:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        status = await stub.GetStatus(pb.GetStatusRequest(), timeout=LEADER_TIMEOUT_S)
    except grpc.RpcError:
        return _UNKNOWN
    return status.term, status.leader_id

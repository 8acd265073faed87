"""Calls that end without an answer: those that another node passed on to this one, which does not lead, or leads no more.

The node that passed a call on looks for the leader again, or tells its client. Must not: end calls of clients so that came
to this node themselves and can be told in-band.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc

from ledgermq.raft.errors import NodeStoppedError, NotLeaderError, ProposalLostError, TransferringError

from ..cluster.forwarding import refuse_not_leader
from .context import NodeContext

#: What ends a call so. The first two are definite: nothing was done.
ENDING: Final = (NotLeaderError, TransferringError, ProposalLostError, NodeStoppedError)


async def end_call(context: NodeContext, grpc_context: Any, error: Exception) -> NoReturn:
    """End the call with the status that says whether it was certainly not carried out. Raises: what gRPC's abort does."""
    if isinstance(error, NotLeaderError | TransferringError):
        await refuse_not_leader(grpc_context, context.leadership.node_id, context.leadership.leader_id)
    await grpc_context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    raise AssertionError("abort raises")

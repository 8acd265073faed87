"""A slave becomes the master because a person says so (D24).

While the node runs only whether it may is judged; then it stops, its folder begins a new generation with its own log
(raft/group_recovery.py, as `ledgermq cluster recover`), and it starts again as the master. Whoever was master before
finds out by the first greeting, from this node or from one that follows it.
Must not: promote by itself, or ask whether the former master is dead: that is for the person to know.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ledgermq.proto import admin_pb2, route_pb2
from ledgermq.raft.errors import RaftError
from ledgermq.raft.files import FileSystem
from ledgermq.raft.group_recovery import inspect, promote_folder, stopped_folder

from .context import NodeContext
from .refusals import RefusedError

logger = logging.getLogger(__name__)


def accept(context: NodeContext, request: admin_pb2.PromoteRequest) -> admin_pb2.PromoteResponse:
    """Judge the request, and have the node stopped for it. Raises: RefusedError: nothing was changed."""
    node, status = context.config.node_id, context.raft.status()
    reign = context.raft.config.reign
    if reign is None:
        raise RefusedError(
            route_pb2.NOT_SUPPORTED,
            f"group {context.config.group} has replication quorum: its nodes elect their leader by themselves. To move the"
            f" lead: ledgermq cluster transfer {node}; nothing was changed",
        )
    if request.node_id != node:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f"this is {node}, not {request.node_id}: check the addresses of the nodes; nothing was changed",
        )
    if request.generation != reign.generation:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f"group {context.config.group} is in generation {reign.generation} with the master {reign.master}, not in"
            f" generation {request.generation}: somebody promoted a node meanwhile. Look again: ledgermq cluster status;"
            " nothing was changed",
        )
    if status.leader_id == node:
        raise RefusedError(
            route_pb2.ALREADY_EXISTS, f"{node} is the master already, and leads; nothing was changed"
        )
    if status.leader_id is not None:
        raise RefusedError(
            route_pb2.INVALID_ARGUMENT,
            f"the master {reign.master} is alive: {node} hears it. To change the master without a loss, stop"
            f" {reign.master} first (SIGTERM), and then promote {node}; nothing was changed",
        )
    if _is_rebuilding(context):
        raise RefusedError(
            route_pb2.CATCHING_UP,
            f"{node} was still being rebuilt from the master's state, whose entries it does not have all: it could never lead"
            " with that folder. Promote another slave; nothing was changed",
        )
    if problem := _incomplete(context) if not request.incomplete else "":
        raise RefusedError(
            route_pb2.CATCHING_UP,
            f"{node} {problem}, so it lacks more than its last entries. Promote another slave, or accept that:"
            " --incomplete; nothing was changed",
        )
    if not context.raft.storage.identity.group_id:
        raise RefusedError(
            route_pb2.CATCHING_UP,
            f"{node} was never, since its folder was made, in contact with a master for more than a moment: it has nothing to"
            " go on with. Promote another slave; nothing was changed",
        )
    logger.warning("to be promoted: this node stops, and starts again as the master node=%s", node)
    context.promotion.set()
    return admin_pb2.PromoteResponse(generation=reign.generation + 1)


def _incomplete(context: NodeContext) -> str:
    if context.raft.role == "learner":
        return "was still catching up after it had lost its log, or a part of it"
    return ""


def _is_rebuilding(context: NodeContext) -> bool:
    return context.replica.rebuild is not None or any(
        peer.catching_up for peer in context.raft.status().peers if peer.node_id == context.config.node_id
    )


def promote(data: Path, files: FileSystem) -> bool:
    """Begin a new generation with the folder of this node, which is stopped (blocking: reads the whole log).

    Returns whether it was done; why not stands in the log. The folder is as it was then.
    """
    try:
        with stopped_folder(data, files) as folder:
            identity = promote_folder(folder, inspect(folder))
    except (RaftError, OSError) as error:
        logger.error("not promoted: %s", error)
        return False
    assert identity.reign is not None
    logger.warning(
        "promoted: master node=%s generation=%d group_id=%016x last_index=%d",
        identity.node_id, identity.reign.generation, identity.group_id, identity.reign.began_after,
    )  # fmt: skip
    return True

"""Refuses calls that mean another broker group of this name: topic ids, offsets and epochs of it mean nothing here.

Two groups were given one name, or this one was made anew (its folders were deleted) while clients still have the old
routes. Their group ids differ.
"""

from __future__ import annotations

from typing import Any

from ledgermq.proto import route_pb2
from ledgermq.proto.call_metadata import meant_group
from ledgermq.proto.group_ids import are_related

from ..refusals import RETRY_AFTER_MS, RefusedError
from .context import NodeContext


def check_names(context: NodeContext, cluster: str, group: str) -> None:
    """Refuse a call to a node that was at this address before, of another group or cluster. "": whoever is here is meant."""
    config = context.config
    if cluster in ("", config.cluster) and group in ("", config.group):
        return
    meant = " of ".join([f'broker group "{group}"'] * bool(group) + [f'cluster "{cluster}"'] * bool(cluster))
    raise RefusedError(
        route_pb2.STALE_ROUTE,
        f'this is node {config.node_id} of broker group "{config.group}" of cluster "{config.cluster}", not of {meant}, '
        "which had this address before. Nothing was changed. Repeat it when the nameservers know the new address: "
        "ledgermq cluster status",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
    )


def check_id(context: NodeContext, group_id: int) -> None:
    """Compare the id of the group that is meant, 0: whoever is here. Raises: RefusedError."""
    if not group_id:
        return
    own, config = context.raft.group_id, context.config
    # Of each request: the former ids are made only for one that means another id.
    if own == group_id or are_related(own, context.raft.former_group_ids, group_id, ()):
        return  # who has the route from before a recovery, or a promotion, perhaps finds no nameserver now
    raise RefusedError(
        route_pb2.OTHER_GROUP,
        f'node {config.node_id} at this address belongs to another broker group "{config.group}" (id {own:016x}) than the '
        f"one that is meant (id {group_id:016x}): it was made anew, or two groups were made under one name. Nothing was "
        "done. Refresh the route and repeat it. See: ledgermq cluster status",
        retryable=True,
        retry_after_ms=RETRY_AFTER_MS,
    )


class MeantGroup:
    """The group that a call or stream means, by its metadata.

    `check` each request, and again after waiting: a node without data learns which group it is of while callers wait.
    """

    def __init__(self, context: NodeContext, grpc_context: Any) -> None:
        self._context = context
        self._group_id, self._problem = 0, ""
        try:
            self._group_id = meant_group(grpc_context.invocation_metadata())
        except ValueError as error:
            self._problem = str(error)

    def check(self) -> None:
        """Raises: RefusedError, it is for another group."""
        if self._problem:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, self._problem)
        check_id(self._context, self._group_id)

"""Refuses calls that are meant for another broker group of the same name or at the same address.

Two broker groups may have been given one name, or this one was created anew (its folders were deleted) while
clients still hold the old routes. The ids of the two differ, and the ids, offsets and epochs of one mean
nothing in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledgermq.proto import route_pb2
from ledgermq.proto.call_metadata import meant_group
from ledgermq.proto.group_ids import are_related
from ledgermq.raft.node.raft_node import RaftNode

from ..config import BrokerConfig
from ..refusals import RETRY_AFTER_MS, RefusedError


@dataclass(eq=False, repr=False)
class BrokerGroupIdentity:
    """The names and the id of the broker group that this node belongs to."""

    _config: BrokerConfig
    _raft: RaftNode

    def check_names(self, cluster: str, broker_group: str) -> None:
        """Refuse a call to another broker group or cluster that had this address before; "" matches any.

        Raises: RefusedError.
        """
        config = self._config
        if cluster in ("", config.cluster) and broker_group in ("", config.group):
            return
        meant = " of ".join(
            [f'broker group "{broker_group}"'] * bool(broker_group) + [f'cluster "{cluster}"'] * bool(cluster)
        )
        raise RefusedError(
            route_pb2.STALE_ROUTE,
            f'this is node {config.node_id} of broker group "{config.group}" of cluster "{config.cluster}", '
            f"not of {meant}, which had this address before. Nothing was changed. Repeat it when the "
            "nameservers know the new address: ledgermq cluster status",
            retryable=True,
            retry_after_ms=RETRY_AFTER_MS,
        )

    def check_id(self, broker_group_id: int) -> None:
        """Check the id of the broker group that a call is meant for; 0: any. Raises: RefusedError."""
        if not broker_group_id:
            return
        own, config = self._raft.group_id, self._config
        # Checked for each request: the former ids are computed only when the ids differ.
        if own == broker_group_id or are_related(own, self._raft.former_group_ids, broker_group_id, ()):
            # A client with a route from before a recovery or promotion may reach no nameserver to refresh it.
            return
        raise RefusedError(
            route_pb2.OTHER_GROUP,
            f'node {config.node_id} at this address belongs to another broker group "{config.group}" (id '
            f"{own:016x}) than the one that is meant (id {broker_group_id:016x}): it was made anew, or two "
            "broker groups were made under one name. Nothing was done. Refresh the route and repeat it. See: "
            "ledgermq cluster status",
            retryable=True,
            retry_after_ms=RETRY_AFTER_MS,
        )

    def meant_by(self, grpc_context: Any) -> MeantBrokerGroup:
        """Return the broker group that a call or stream is meant for, from its metadata."""
        return MeantBrokerGroup(self, grpc_context)


class MeantBrokerGroup:
    """The broker group that a call or stream is meant for.

    Call `check` for each request, and again after waiting: a node without data learns its broker group's id
    while callers wait.
    """

    def __init__(self, identity: BrokerGroupIdentity, grpc_context: Any) -> None:
        self._identity = identity
        self._id, self._problem = 0, ""
        try:
            self._id = meant_group(grpc_context.invocation_metadata())
        except ValueError as error:
            self._problem = str(error)

    def check(self) -> None:
        """Check the call's broker group. Raises: RefusedError when the call is meant for another one."""
        if self._problem:
            raise RefusedError(route_pb2.INVALID_ARGUMENT, self._problem)
        self._identity.check_id(self._id)

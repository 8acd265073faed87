"""Feature levels: what older builds cannot apply, and whether every node of this broker group can (D23).

A node's greeting says which level its build supports. A command above level 1 is proposed only after every
node of the broker group has said that it knows it. A command that all builds know then stores the level in
the replicated state, so that a node that is away later delays nothing.
Owns: the levels, and the check.   Must not: propose the command that needs the level.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from ledgermq.proto import route_pb2
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.known_leader import Leadership
from ..config import BrokerConfig
from ..leader.pipeline import AppendPipeline
from ..refusals import REFUSABLE, RefusedError
from ..replica import Replica
from ..state.commands import HOLDS, FeatureLevel

logger = logging.getLogger(__name__)

#: Drain, take back and remove a broker group: SetBrokerGroupMode, versions 1 and 2.
BROKER_GROUP_MODES: Final = 2
#: The highest level that this build supports.
SUPPORTED: Final = HOLDS

_RETRY_AFTER_MS: Final = 500


@dataclass(eq=False, repr=False)
class Features:
    """The level that every node of the broker group supports, and the level that is stored."""

    _config: BrokerConfig
    _raft: RaftNode
    _replica: Replica
    _pipeline: AppendPipeline
    _leadership: Leadership

    async def require(self, level: int, what: str) -> None:
        """Return when every node of the broker group supports a level and the level is stored.

        Leader only. `what`: the requested operation, worded to follow "does not know how to". Raises:
        RefusedError, and what the pipeline raises.
        """
        older, unmet = self._lagging(level)
        broker_group = self._config.group
        if older:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"broker group {broker_group} has nodes of an older version, which does not know how to "
                f"{what} and would stop at it: {', '.join(older)}. Nothing was changed. Install this version "
                f"on every node of {broker_group}, one after the other, and repeat it",
            )
        if self._replica.state.feature_level >= level:
            return
        if unmet:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"whether every node of broker group {broker_group} knows how to {what} cannot be told: "
                f"{', '.join(unmet)} has not been met since {self._config.node_id} started. Nothing was "
                "changed. Start it with this version, or a new one in its place (ledgermq broker --rejoin), "
                "and repeat it",
                retryable=True,
                retry_after_ms=_RETRY_AFTER_MS,
            )
        await self._pipeline.run(FeatureLevel(level))

    def remember(self) -> None:
        """Store the level that all nodes support, if this node leads and has met them all.

        Call it after each leadership change and periodically: the last old node may be replaced later.
        """
        if not self._leadership.ready or self._replica.state.feature_level >= SUPPORTED:
            return
        if any(self._lagging(SUPPORTED)):
            return
        try:
            self._pipeline.run(FeatureLevel(SUPPORTED))  # a failure is retried by the next call
        except REFUSABLE as error:
            logger.debug("feature level not stored, the next try follows reason=%s", error)

    def _lagging(self, level: int) -> tuple[list[str], list[str]]:
        """Return the nodes whose build is below the level, and those not met since this node started."""
        older, unmet = [], []
        for peer in self._raft.status().peers:
            if peer.node_id == self._config.node_id:
                continue
            if peer.feature_level is None:
                unmet.append(str(peer.node_id))
            elif peer.feature_level < level:
                older.append(str(peer.node_id))
        return older, unmet

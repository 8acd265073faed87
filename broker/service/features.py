"""What older builds cannot apply, and whether every node of this group can (D23).

A node says in its greeting how far its build goes. A command above level 1 is proposed only when every node of the group has
said that it knows it. The group remembers that in its replicated level, by a command that all builds know, so that a node
that is away later holds nothing up.
Owns: the levels, and the question.   Must not: propose what is asked for.
"""

from __future__ import annotations

import logging
from typing import Final

from ledgermq.proto import route_pb2
from ledgermq.raft.node.raft_node import RaftNode

from ..cluster.known_leader import Leadership
from ..config import BrokerConfig
from ..leader.pipeline import AppendPipeline
from ..refusals import REFUSABLE, RefusedError
from ..replica import Replica
from ..state.commands import KEEP_UNREAD, FeatureLevel

logger = logging.getLogger(__name__)

#: Drain, take back and remove a broker group: SetBrokerGroupMode, versions 1 and 2.
BROKER_GROUP_MODES: Final = 2
#: How far this build goes.
SUPPORTED: Final = KEEP_UNREAD

_RETRY_AFTER_MS: Final = 500


class Features:
    """What every node of the broker group can apply, and its memory of that."""

    def __init__(
        self,
        config: BrokerConfig,
        raft: RaftNode,
        replica: Replica,
        pipeline: AppendPipeline,
        leadership: Leadership,
    ) -> None:
        self._config = config
        self._raft = raft
        self._replica = replica
        self._pipeline = pipeline
        self._leadership = leadership

    async def require(self, level: int, what: str) -> None:
        """Return when every node of the group knows what belongs to a level, and the group remembers that.

        Leader only.

        `what`: that which is asked for, as it stands behind "does not know how to". Raises: RefusedError, and
        what the pipeline raises.
        """
        older, unmet = self._lagging(level)
        group = self._config.group
        if older:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"broker group {group} has nodes of an older version, which does not know how to {what} and "
                f"would stop at "
                f"it: {', '.join(older)}. Nothing was changed. Install this version on every node of "
                f"{group}, one after the "
                "other, and repeat it",
            )
        if self._replica.state.feature_level >= level:
            return
        if unmet:
            raise RefusedError(
                route_pb2.NOT_SUPPORTED,
                f"whether every node of broker group {group} knows how to {what} cannot be told: "
                f"{', '.join(unmet)} has not "
                f"been met since {self._config.node_id} started. Nothing was changed. Start it with this "
                f"version, or a new "
                "one in its place (ledgermq broker --rejoin), and repeat it",
                retryable=True,
                retry_after_ms=_RETRY_AFTER_MS,
            )
        await self._pipeline.run(FeatureLevel(level))

    def remember(self) -> None:
        """Let the group remember what its nodes know, if this node leads and has met them all.

        Call it after each change of the leadership, and now and then: the last node is perhaps replaced
        later.
        """
        if not self._leadership.ready or self._replica.state.feature_level >= SUPPORTED:
            return
        if any(self._lagging(SUPPORTED)):
            return
        try:
            self._pipeline.run(FeatureLevel(SUPPORTED))  # what fails is tried again
        except REFUSABLE as error:
            logger.debug("feature level not stored, the next try follows reason=%s", error)

    def _lagging(self, level: int) -> tuple[list[str], list[str]]:
        """Return the other nodes whose build does not go so far, and those that were not met in this run."""
        older, unmet = [], []
        for peer in self._raft.status().peers:
            if peer.node_id == self._config.node_id:
                continue
            if peer.feature_level is None:
                unmet.append(str(peer.node_id))
            elif peer.feature_level < level:
                older.append(str(peer.node_id))
        return older, unmet

"""Bugs of broker groups with a master: slaves with a vote, and slaves that override the master.

Test-only. V1 is the rule that a node without a configured vote never uses one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ledgermq.raft.config import RaftConfig
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.quorum import Majority
from ledgermq.raft.drive import voting_rights
from ledgermq.raft.folder import bootstrap
from ledgermq.raft.transport.hello import Hello
from ledgermq.raft.types import LogIndex, NodeId

from .mutant_list import core_mutant, patch_mutant


@core_mutant("V1")
class SlavesVote(RaftCore):
    """Who has no vote by configuration campaigns and votes when its disk is well."""

    @property
    def may_vote(self) -> bool:
        return self.is_voter


_committed_index = Majority.committed_index


def _by_anybody(self: Majority, match: Mapping[NodeId, LogIndex]) -> LogIndex:
    if len(self.voters) > 1:
        return _committed_index(self, match)
    return max(match.values())


patch_mutant(
    "SlavesCommit",
    "V1, P8",
    "In a broker group with a master what a slave has acknowledged is committed, before the master has "
    "flushed it.",
    (Majority, "committed_index", _by_anybody),
)


def _make_it(
    mine: Hello, others: Collection[NodeId], hellos: dict[NodeId, Hello], *, may_make: bool = True
) -> int:
    return bootstrap.find_group_id(mine, others, hellos)


patch_mutant(
    "SlavesMakeTheGroupsId",
    "V1",
    "A slave, which asks its master only, makes the broker group's id itself: another one than the master "
    "makes.",
    (voting_rights, "find_group_id", _make_it),
)

patch_mutant(
    "SlavesJudgeEachOther",
    "V1, K12",
    "A slave refuses another one that came back with the master's consent, because it was not told.",
    (RaftConfig, "not_judged", frozenset()),
)

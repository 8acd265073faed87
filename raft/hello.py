"""The greeting that opens every stream between two nodes, and the reasons to refuse one.

Pure. Both sides check the other's greeting with the same function, so both refuse, and both can say why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ledgermq.proto import raft_pb2 as pb

from .types import NodeId, Term

FORMAT: Final = 1


class Standing(Enum):
    """What a node's vote and copies are worth (P19)."""

    FRESH = pb.STANDING_FRESH  # never voted, empty log; becomes a voter by `Bootstrap`
    VOTER = pb.STANDING_VOTER
    LEARNER = pb.STANDING_LEARNER  # lost its log; becomes a voter again by `Rejoin`


class RefusalKind(Enum):
    """Why a greeting was refused."""

    FORMAT = pb.REFUSAL_FORMAT
    CLUSTER = pb.REFUSAL_CLUSTER
    GROUP = pb.REFUSAL_GROUP
    NOT_A_MEMBER = pb.REFUSAL_NOT_A_MEMBER
    WRONG_ADDRESS = pb.REFUSAL_WRONG_ADDRESS
    SEGMENT_SIZE = pb.REFUSAL_SEGMENT_SIZE
    INCARNATION = pb.REFUSAL_INCARNATION
    MALFORMED = pb.REFUSAL_MALFORMED
    OTHER_GROUP = pb.REFUSAL_OTHER_GROUP


@dataclass(frozen=True, slots=True)
class Refusal:
    """`text` says what happened, why, and what to do; it is shown on both sides."""

    kind: RefusalKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """One node's greeting. `to_node_id` is empty in an answer."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int
    segment_size: int
    standing: Standing
    term: Term
    to_node_id: str = ""
    group_id: int = 0  # `group_id_of` the group's first members; 0: the sender does not know it yet
    known_incarnations: dict[NodeId, int] = field(default_factory=dict)
    format: int = FORMAT
    feature_level: int = 1
    fsync_p99_ms: float = 0.0
    disk_used_ratio: float = 0.0

    def to_proto(self) -> pb.Hello:
        """Return the wire form."""
        return pb.Hello(
            format=self.format,
            feature_level=self.feature_level,
            cluster_id=self.cluster_id,
            group=self.group,
            node_id=self.node_id,
            to_node_id=self.to_node_id,
            incarnation=self.incarnation,
            segment_size=self.segment_size,
            standing=self.standing.value,
            term=self.term,
            group_id=self.group_id,
            known_incarnations={str(node): name for node, name in self.known_incarnations.items()},
            fsync_p99_ms=self.fsync_p99_ms,
            disk_used_ratio=self.disk_used_ratio,
        )

    @staticmethod
    def from_proto(message: pb.Hello) -> Hello:
        """Decode. Raises: ValueError for a standing that this build does not know."""
        return Hello(
            format=message.format,
            feature_level=message.feature_level,
            cluster_id=message.cluster_id,
            group=message.group,
            node_id=NodeId(message.node_id),
            to_node_id=message.to_node_id,
            incarnation=message.incarnation,
            segment_size=message.segment_size,
            standing=Standing(message.standing),
            term=Term(message.term),
            group_id=message.group_id,
            known_incarnations={NodeId(k): v for k, v in message.known_incarnations.items()},
            fsync_p99_ms=message.fsync_p99_ms,
            disk_used_ratio=message.disk_used_ratio,
        )


def refusal_of(mine: Hello, theirs: Hello, members: frozenset[NodeId]) -> Refusal | None:
    """Return why `theirs` must be refused, or None. Incarnations are judged by `MemberRecord`."""
    who = f"{theirs.node_id or 'a node without a name'}"
    checks = (
        (
            theirs.format != mine.format,
            RefusalKind.FORMAT,
            f"{who} speaks Raft protocol version {theirs.format}, {mine.node_id} speaks {mine.format}. "
            "Run the same LedgerMQ release on both",
        ),
        (
            theirs.cluster_id != mine.cluster_id,
            RefusalKind.CLUSTER,
            f"{who} belongs to cluster {theirs.cluster_id}, {mine.node_id} to cluster {mine.cluster_id}. "
            "Check the member addresses in the configuration of both",
        ),
        (
            theirs.group != mine.group,
            RefusalKind.GROUP,
            f"{who} belongs to group {theirs.group}, {mine.node_id} to group {mine.group}. "
            "Check the member addresses in the configuration of both",
        ),
        (
            0 != theirs.group_id != mine.group_id != 0,
            RefusalKind.OTHER_GROUP,
            f"another group with the same names (cluster {mine.cluster_id}, group {mine.group}) answers at that address: "
            f"{who} has group id {theirs.group_id:016x}, {mine.node_id} has {mine.group_id:016x}. Two clusters on one "
            "machine, or ports mixed up? Check the addresses and ports of the members in the configuration of both; "
            "nothing was changed",
        ),
        (
            theirs.node_id not in members or theirs.node_id == mine.node_id,
            RefusalKind.NOT_A_MEMBER,
            f"{who} is not another member of group {mine.group} for {mine.node_id} "
            f"(members: {', '.join(sorted(members))}). Use the same member list on every node",
        ),
        (
            theirs.to_node_id not in ("", mine.node_id),
            RefusalKind.WRONG_ADDRESS,
            f"{who} looked for {theirs.to_node_id} and reached {mine.node_id}. "
            "Correct the member addresses in the configuration",
        ),
        (
            theirs.segment_size != mine.segment_size,
            RefusalKind.SEGMENT_SIZE,
            f"{who} has segments of {theirs.segment_size} bytes, {mine.node_id} of {mine.segment_size}. "
            "The segment size must be equal on every node of a group",
        ),
    )
    for failed, kind, text in checks:
        if failed:
            return Refusal(kind, text)
    return None

"""Whose data folder this is (interface first; the body follows)."""

from __future__ import annotations

from dataclasses import dataclass

from .types import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity record of a data folder."""

    cluster_id: str
    group: str
    node_id: NodeId
    incarnation: int  # 63 random bits, new whenever the folder starts with an empty log
    segment_size: int
    feature_level: int
    members: dict[NodeId, int]  # incarnation of each member as last seen; 0 = never seen

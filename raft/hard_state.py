"""Durable hard state of one node (D6, rule P1): one checksummed record in two alternating slots.

(interface first; the bodies follow)
"""

from __future__ import annotations

from enum import IntEnum


class MembershipState(IntEnum):
    """Whether this node may vote."""

    VOTER = 1
    REJOINING = 2  # its log was lost or replaced: it may not vote before it holds the leader's commit at rejoin (P19)

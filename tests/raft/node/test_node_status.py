"""A node's report about itself must not depend on what its disk can still read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ledgermq.raft.node.status_view import StatusView
from ledgermq.raft.types import LogIndex

from ..log_rig import DATA, LogRig
from ..simulated_disk import SimulatedDisk


def test_how_far_a_follower_is_behind_is_not_known_where_the_log_is_damaged() -> None:
    """Status and reports go on. A reader of the entry finds the damage and repairs it."""
    rig = LogRig(SimulatedDisk())
    for _ in range(30):
        rig.append(bytes(300))
    rig.flush()
    none: Any = None
    view = StatusView(
        none, cast(Any, SimpleNamespace(log=rig.log)), none, none, none, none, none, none, none, none, none
    )
    first = asyncio.run(rig.log.header_at(LogIndex(1)))
    assert view._behind_bytes(LogIndex(1)) == rig.log.end_offset - first.end
    rig.disk.flip(DATA / "commitlog" / f"{0:020d}", 20)
    assert view._behind_bytes(LogIndex(1)) is None

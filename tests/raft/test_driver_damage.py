"""A log that turns out damaged while its entries are read for a follower: to be repaired, and no defect."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ledgermq.raft.driver import Driver
from ledgermq.raft.errors import DamagedLogError
from ledgermq.raft.log_time import LogTime
from ledgermq.raft.messages import AppendEntries
from ledgermq.raft.metrics import RaftMetrics
from ledgermq.raft.outputs import Output
from ledgermq.raft.types import LogIndex, NodeId, Term

from .log_rig import DATA, LogRig
from .simulated_disk import SimulatedDisk

N1, N2 = NodeId("n1"), NodeId("n2")


class OneAppend:
    """A core that wants one message sent."""

    def __init__(self, message: AppendEntries) -> None:
        self._outputs = [Output(send=[message])]

        self.dropped: list[AppendEntries] = []

    def poll(self) -> Output | None:
        return self._outputs.pop() if self._outputs else None

    def append_dropped(self, message: AppendEntries) -> None:
        self.dropped.append(message)


class Owner:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.damages: list[DamagedLogError] = []

    def on_fault(self, reason: str) -> None:
        self.faults.append(reason)

    def on_damage(self, error: DamagedLogError) -> None:
        self.damages.append(error)


async def _pump(rig: LogRig) -> tuple[Owner, OneAppend]:
    message = AppendEntries(
        Term(1), N1, N2, LogIndex(0), Term(0), LogIndex(1), LogIndex(1), LogIndex(0),
        ((LogIndex(1), Term(1)),), max_bytes=1 << 20,
    )  # fmt: skip
    link = SimpleNamespace(append=SimpleNamespace(connected=True))
    owner = Owner()
    fake: dict[str, Any] = {
        "core": (core := OneAppend(message)),
        "transport": SimpleNamespace(links={N2: link}),
        "applier": SimpleNamespace(applied_index=0),
    }
    driver = Driver(
        N1, cast(Any, fake["core"]), rig.log, LogTime(), fake["transport"], fake["applier"], cast(Any, owner),
        RaftMetrics(None),
    )  # fmt: skip
    driver.pump()
    return owner, core


def test_entry_that_cannot_be_read_for_a_follower_is_damage_and_no_defect() -> None:
    rig = LogRig(SimulatedDisk(), cache_bytes=0)
    rig.append(b"soon unreadable")
    rig.append(b"last")
    rig.flush()
    rig.disk.names[DATA / "commitlog" / f"{0:020d}"].unreadable = 3
    owner, core = asyncio.run(_pump(rig))
    (damage,) = owner.damages  # the node repairs it and sends again
    assert (damage.offset, damage.path.name, owner.faults) == (0, f"{0:020d}", [])
    assert [message.lo for message in core.dropped] == [1]

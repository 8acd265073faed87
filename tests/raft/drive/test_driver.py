"""Driver with a failing log: reports damage found for a follower, falls silent without disk space."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.raft.core.log_time import LogTime
from ledgermq.raft.core.messages import AppendEntries, AppendEntriesReply, Heartbeat, Message
from ledgermq.raft.core.outputs import BecameLeader, Output, Persist, Role
from ledgermq.raft.core.quorum import Majority
from ledgermq.raft.core.tick_schedule import NoClock
from ledgermq.raft.drive.driver import Driver
from ledgermq.raft.errors import DamagedLogError, DiskFullError
from ledgermq.raft.metrics import RaftMetrics
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from ..log_rig import DATA, LogRig
from ..simulated_disk import SimulatedDisk

N1, N2 = NodeId("n1"), NodeId("n2")


class OneOutput:
    """A core with a single output."""

    leading = None
    role = Role.LEADER

    def __init__(self, output: Output, voters: tuple[NodeId, ...]) -> None:
        self._outputs = [output]
        self.quorum = Majority(voters)
        self.dropped: list[AppendEntries] = []

    def poll(self) -> Output | None:
        return self._outputs.pop() if self._outputs else None

    def append_dropped(self, message: AppendEntries) -> None:
        self.dropped.append(message)


class Owner:
    """Records its calls."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.damages: list[DamagedLogError] = []

    def on_fault(self, reason: str) -> None:
        self.faults.append(reason)

    def on_damage(self, error: DamagedLogError) -> None:
        self.damages.append(error)


async def _pump(
    rig: LogRig,
    output: Output,
    control: SimpleNamespace | None = None,
    voters: tuple[NodeId, ...] = (N1, N2),
) -> tuple[Owner, OneOutput]:
    link = SimpleNamespace(append=SimpleNamespace(connected=True), control=control)
    owner = Owner()
    fake: dict[str, Any] = {
        "core": (core := OneOutput(output, voters)),
        "transport": SimpleNamespace(links={N2: link}),
        "applier": SimpleNamespace(applied_index=0),
    }
    driver = Driver(
        N1, cast(Any, fake["core"]), rig.log, LogTime(), fake["transport"], fake["applier"], RaftMetrics(None)
    )
    driver.start(cast(Any, owner), NoClock(), None)
    driver.pump()
    return owner, core


def test_entry_that_cannot_be_read_for_a_follower_is_damage_and_no_defect() -> None:
    rig = LogRig(SimulatedDisk(), cache_bytes=0)
    rig.append(b"soon unreadable")
    rig.append(b"last")
    rig.flush()
    asyncio.run(rig.log.header_at(LogIndex(1)))  # opens the segment
    rig.disk.names[DATA / "commitlog" / f"{0:020d}"].unreadable = 3
    message = AppendEntries(
        Term(1), N1, N2, LogIndex(0), Term(0), LogIndex(1), LogIndex(1), LogIndex(0),
        ((LogIndex(1), Term(1)),), max_bytes=1 << 20,
    )  # fmt: skip
    owner, core = asyncio.run(_pump(rig, Output(send=[message])))
    (damage,) = owner.damages  # the node repairs it and sends again
    assert (damage.offset, damage.path.name, owner.faults) == (0, f"{0:020d}", [])
    assert [message.lo for message in core.dropped] == [1]


def test_new_leader_that_cannot_store_the_first_entry_of_its_term_says_nothing() -> None:
    rig = LogRig(SimulatedDisk(), segment_size=512)
    with pytest.raises(DiskFullError):
        for _ in range(10):
            rig.append(b"filled to the brim")
            rig.flush()
            rig.disk.capacity = rig.disk.used
    sent: list[Message] = []
    output = Output(
        events=[BecameLeader(Term(2), LogIndex(rig.log.last_index + 1))],
        persist=Persist(rig.seq + 1, HardState(Term(2))),
        send=[Heartbeat(Term(2), N1, N2, LogIndex(0))],
    )
    owner, _ = asyncio.run(_pump(rig, output, SimpleNamespace(put=sent.append)))
    (fault,) = owner.faults
    assert "the first entry of term 2 cannot be stored" in fault
    assert not sent and not rig.flusher.step()


@pytest.mark.parametrize(("voters", "persisted_first"), [((N1,), True), ((N1, N2), False)])
def test_a_leader_that_commits_alone_begins_its_own_flush_before_it_sends(
    voters: tuple[NodeId, ...], persisted_first: bool
) -> None:
    """With a majority, the followers' flushes commit. So they get the entries first."""
    rig = LogRig(SimulatedDisk())
    asked_for: list[int] = []
    persist, real = Persist(rig.seq + 1), rig.log.persist

    def noted(seq: int, hard_state: HardState | None) -> None:
        asked_for.append(seq)
        real(seq, hard_state)

    setattr(rig.log, "persist", noted)  # noqa: B010 (a method, to a type checker)
    seen: list[int] = []
    control = SimpleNamespace(put=lambda _message: seen.append(len(asked_for)))
    output = Output(persist=persist, send=[AppendEntriesReply(Term(1), N1, N2, True)])
    asyncio.run(_pump(rig, output, control, voters))
    assert asked_for == [persist.seq]
    assert seen == [int(persisted_first)]

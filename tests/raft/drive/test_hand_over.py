"""A leadership transfer ends if its target dies: no caller waits for a dead process."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.raft.drive.leadership import LeaderDuties
from ledgermq.raft.errors import TransferFailedError
from ledgermq.raft.types import NodeId, Term

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
AN_HOUR_MS = 3_600_000


def leadership() -> LeaderDuties:
    """Transfer of n1, which leads, to n2."""
    core: Any = SimpleNamespace(transfer_leadership=lambda to: N2)
    driver: Any = SimpleNamespace(settle=lambda: None, pump=lambda: None)
    config: Any = SimpleNamespace(node_id=N1, election_ms_max=AN_HOUR_MS)
    machine: Any = SimpleNamespace(on_leader_changed=lambda leader, term: None)
    metrics: Any = SimpleNamespace(counter=lambda name: SimpleNamespace(inc=lambda: None))
    return LeaderDuties(config, core, driver, machine, metrics, lambda reason: None)


async def begun(led: LeaderDuties) -> asyncio.Task[NodeId]:
    task = asyncio.create_task(led.transfer(None))
    await asyncio.sleep(0)
    return task


async def test_it_ends_when_its_target_is_gone() -> None:
    led = leadership()
    moving = await begun(led)
    led.link_changed(N3, gone=True)
    await asyncio.sleep(0)
    assert not moving.done(), "another node is gone"
    led.link_changed(N2, gone=True)
    with pytest.raises(TransferFailedError, match="n2 is gone"):
        await moving


async def test_it_does_not_begin_with_a_target_that_is_gone_and_does_when_that_is_back() -> None:
    led = leadership()
    led.link_changed(N2, gone=True)
    with pytest.raises(TransferFailedError, match="n2 is gone"):
        await led.transfer(None)
    led.link_changed(N2, gone=False)
    moving = await begun(led)
    led.changed(N2, Term(2))
    assert await moving == N2
    led.link_changed(N2, gone=True)  # afterwards it no longer matters
    await asyncio.sleep(0)

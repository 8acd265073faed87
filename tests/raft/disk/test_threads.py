"""Threads that write for a task: they end before the task continues, however often it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.disk.threads import in_thread
from ledgermq.raft.drive.voting_rights import VotingRights
from ledgermq.raft.log.identity import Identity
from ledgermq.raft.transport.hello import Hello, Standing
from ledgermq.raft.types import HardState, NodeId, Term

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


@dataclass
class SlowWork:
    """Runs in a thread until it is told to continue."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    done: list[object] = field(default_factory=list)

    def run(self, what: object = "done") -> object:
        self.reached.set()
        assert self.go_on.wait(60)
        self.done.append(what)
        return what


async def test_a_task_that_is_cancelled_again_and_again_waits_for_its_thread() -> None:
    """A fault ends a node's streams, and its stop ends them again."""
    work, undone = SlowWork(), list[object]()
    task = asyncio.create_task(in_thread(work.run, undo=undone.append))
    await asyncio.to_thread(work.reached.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    work.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.done == undone == ["done"]


def hello(node: NodeId) -> Hello:
    return Hello(
        cluster_id="test", group="g0", node_id=node, incarnation=9, segment_size=1 << 20,
        standing=Standing.VOTER,
        term=Term(1),
    )  # fmt: skip


def rights_over(learn_members: Any) -> VotingRights:
    """Of a voter that has met no peer yet."""
    members = tuple(Member(node, f"{node}:1") for node in (N1, N2, N3))
    identity = Identity(
        cluster_id="test", group="g0", node_id=N1, incarnation=7, segment_size=1 << 20, members={N1: 7}
    )
    storage = SimpleNamespace(
        identity=identity, incarnation=7, hard_state=HardState(Term(1)), log=SimpleNamespace(last_index=0),
        learn_members=learn_members,
    )  # fmt: skip
    none: Any = None
    return VotingRights(
        RaftConfig(cluster_id="test", group="g0", node_id=N1, members=members, data_dir=Path("n1"),
        segment_size=1 << 20),
        cast(Any, storage), cast(Any, SimpleNamespace(is_voter=True, term=Term(1), is_silent=False)),
        promote=none, announce=lambda: None, read_index=none, on_new_incarnation=none, on_learner=none,
        on_left_behind=none, on_outdated=none,
    )  # fmt: skip


async def test_nothing_is_stored_for_a_greeting_behind_the_back_of_a_node_that_stopped() -> None:
    """The folder is closed next and its lock released. Another process may then write there."""
    work = SlowWork()
    rights = rights_over(work.run)
    greeting = asyncio.create_task(rights.admit(hello(N2)))
    await asyncio.to_thread(work.reached.wait)
    closing = asyncio.create_task(rights.close())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not closing.done()
    work.go_on.set()
    await closing
    assert work.done == [{N2: 9}]
    assert await greeting is None
    with pytest.raises(OSError, match="stopping"):
        await rights.admit(hello(N3))
    assert work.done == [{N2: 9}]

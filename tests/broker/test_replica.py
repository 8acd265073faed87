"""Effects of applied entries besides the state: polls that wake, and periodic work of the leader."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ledgermq.broker import replica as replica_module
from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.leader.pipeline import Applied, TooManyRequestsError
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.replica import Replica
from ledgermq.broker.state.commands import Command, DeleteTopic, ReleaseLeases, SessionLost, lease_rows
from ledgermq.broker.state.consume_queue import ColdRead
from ledgermq.broker.state.effects import Effects
from ledgermq.raft.disk.threads import in_thread
from ledgermq.raft.types import Term

from .entry_log import START_MS, Node, command_section
from .no_observer import NoObserver


class FakePipeline:
    """Takes commands, or is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.asked: list[Command] = []
        self.on_ask: Callable[[], None] = lambda: None

    def on_leader(self, view: object) -> None:
        pass

    def on_applied(self, effects: Effects) -> None:
        pass

    def run(self, command: Command) -> asyncio.Future[Applied]:
        self.asked.append(command)
        self.on_ask()
        if self.is_full:
            raise TooManyRequestsError(100, 100)
        return asyncio.get_running_loop().create_future()


class Rig:
    """A replica on the state of a test node."""

    def __init__(self) -> None:
        self.node = Node()
        self.polls = Polls()
        store: Any = None
        self.replica = Replica(store, Leadership("n1"), self.polls)
        self.replica.state = self.node.state
        self.pipeline = FakePipeline()
        pipeline: Any = self.pipeline
        self.now = START_MS
        self.replica.attach(pipeline, lambda: self.now, lambda index: None, NoObserver())


async def test_housekeeping_goes_on_when_its_commands_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the leases of lost clients would never end while this node leads."""
    monkeypatch.setattr(replica_module, "HOUSEKEEPING_INTERVAL", 0.0)
    rig = Rig()
    monkeypatch.setattr(rig.node.state.consumption, "drop_idle_sessions", lambda: [7, 8])
    seen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, found: seen.append(found))
    asked_again = asyncio.Event()
    rig.pipeline.on_ask = lambda: asked_again.set() if len(rig.pipeline.asked) > 2 else None
    rig.pipeline.is_full = True
    rig.replica.on_leader_ready(Term(1), START_MS)
    rig.now += 60_000
    async with asyncio.timeout(10):
        await asked_again.wait()
    rig.replica.on_leader_lost(Term(1))
    assert rig.pipeline.asked[:2] == [SessionLost(7), SessionLost(7)]
    assert seen == []


async def test_readers_of_a_topic_are_woken_when_it_is_deleted() -> None:
    """They are told at once that it is gone, not at the end of their poll."""
    rig = Rig()
    topic = rig.node.topic(queues=2)
    waiters = [rig.polls.open([("queue", topic, 1)]), rig.polls.open([("topic", topic)])]
    rig.replica.apply([rig.node.log.add([command_section(DeleteTopic(topic))])])
    assert [await waiter.wait(0) for waiter in waiters] == [True, True]


async def test_a_release_that_was_refused_is_proposed_by_the_housekeeping() -> None:
    rig = Rig()
    rig.replica.on_leader_ready(Term(1), START_MS)
    release = ReleaseLeases(1, 1, lease_rows([(0, 5, 9)]))
    rig.pipeline.is_full = True
    refused = rig.replica.releases.propose(release)
    assert isinstance(refused.exception(), TooManyRequestsError)
    rig.pipeline.is_full = False
    rig.replica.keep_house()
    rig.replica.keep_house()
    asked = [
        (type(each), each.rows.tolist() if isinstance(each, ReleaseLeases) else [])
        for each in rig.pipeline.asked
    ]
    assert asked == [(ReleaseLeases, [(0, 5, 9)])] * 2, "once it is under way, it is not proposed again"
    rig.replica.on_leader_lost(Term(1))


async def test_reads_of_queue_files_that_wait_for_the_disk_take_no_thread_of_what_the_node_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Consumers cause any number of them; storing the incarnation of a peer needs a thread, too."""
    rig = Rig()
    gate, waiting = threading.Event(), threading.Semaphore(0)

    def stand_still(read: ColdRead) -> bytes:
        waiting.release()
        gate.wait()
        return b""

    monkeypatch.setattr(rig.replica, "load_units", stand_still)
    cold = ColdRead((1, 0), "orders@1", 0, 1)
    reads = [asyncio.create_task(rig.replica.warm([cold])) for _ in range(100)]
    try:
        async with asyncio.timeout(20):
            while not waiting.acquire(blocking=False):  # noqa: ASYNC110 (threads set no event)
                await asyncio.sleep(0)
            assert await in_thread(lambda: "stored") == "stored"
        assert not any(read.done() for read in reads)
    finally:
        for read in reads:
            read.cancel()
        gate.set()
        rig.replica.close()
        await asyncio.gather(*reads, return_exceptions=True)

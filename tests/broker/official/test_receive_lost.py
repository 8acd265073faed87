"""Leases of messages that were not sent end, whatever happens to the receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.leader_calls import Call
from ledgermq.broker.cluster.members import Members
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.errors import ConsumeQueueError, QueueNotFoundError
from ledgermq.broker.leader.releases import LeaseHolders, LeaseReleases, RecentDeliveries
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.official.receive_at_leader import LeaderReceives, Selections
from ledgermq.broker.reading.log_reader import QueueReader, StoredSection
from ledgermq.broker.reading.polls import Polls
from ledgermq.broker.service.creation import Creation
from ledgermq.broker.state.commands import CommitOffsets, CreateConsumerGroup, StartPosition, position_rows
from ledgermq.broker.wire.status import StatusError
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import decode_record
from ledgermq.proto.route_pb2 import NodeInfo
from ledgermq.raft.errors import BusyError, DamagedLogError, NodeStoppedError

from ..entry_log import records
from ..fake_raft import FakeRaft, settle
from ..leader.test_produce import message


class Rig:
    """A leader with three messages in one queue, and what a receive needs of its node."""

    def __init__(self) -> None:
        self.raft = FakeRaft()
        self.unreadable: Exception | None = None
        raft = self.raft
        leadership, config = Leadership("n1"), BrokerConfig(group="g0", min_invisible_ms=0)
        self.releases = LeaseReleases(raft.pipeline.run, lambda: raft.state, leadership)
        replica: Any = SimpleNamespace(state=raft.state, view=raft.view, releases=self.releases)
        self.replica = replica
        self.polls, self.deliveries = Polls(), RecentDeliveries()
        leadership.on_ready(1)
        fake, reader = cast(Any, raft), cast(Any, self)
        creation = Creation(config, replica, raft.pipeline, leadership)
        self.queues = QueueReader(replica, reader)
        selections = Selections(fake, replica, raft.pipeline, self.polls, leadership, self.queues)
        members = Members(NodeInfo(node_id="n1"), ("n1",))
        self.receives = LeaderReceives(
            config, replica, creation, selections, self.deliveries, LeaseHolders(), reader, members, Metrics()
        )

    async def section_of(self, offset: int) -> StoredSection:
        if self.unreadable is not None:
            raise self.unreadable
        return StoredSection(0, 0, 3, 1000, 0)

    async def record(self, offset: int, size: int) -> Any:
        return decode_record(records(1)[0])

    async def prepare(self) -> None:
        await self.raft.topic("a", 1)
        self.raft.pipeline.run(CreateConsumerGroup("billing"))
        for name in (b"1", b"2", b"3"):
            self.raft.pipeline.submit(message(self.raft.state, name))
        await settle()
        await self.raft.decide(1)

    def receive(self, group: str = "billing", **fields: Any) -> Any:
        request = v2.ReceiveMessageRequest(auto_renew=True, batch_size=3, **fields)
        request.message_queue.topic.name, request.group.name = "a", group
        return self.receives.receive(request, Call("client", "", "default", "", time.monotonic() + 60, ()))

    @property
    def leased(self) -> int:
        return self.raft.state.leased_count(1, 1, 0)

    @property
    def deliverable(self) -> bool:
        """Whether all three messages can be delivered, without an attempt that counted."""
        found = self.raft.state.consumption.get((1, 1, 0))
        assert found is not None
        return len(found.expired(1000)) == 3 and not found.leases["attempt"].any()

    async def granted(self, frames: Any) -> asyncio.Task[Any]:
        """Begin a receive up to its first frame; its grant is applied, and nothing of it has run since."""
        task: asyncio.Task[Any] = asyncio.ensure_future(anext(frames))
        await settle()
        proposal = self.raft.proposals[-1]
        proposal.committed.set_result(None)
        effects = self.raft.state.apply(proposal.header, memoryview(self.raft.payloads[-1]))
        self.raft.view.on_applied(proposal.index)
        self.raft.pipeline.on_applied(effects)
        assert self.leased == 3
        return task

    async def release(self) -> None:
        """Commit what the broker proposes by itself."""
        await settle()
        assert len(self.raft.proposals) == 4, "a topic, its messages, a grant, and now a release"
        await self.raft.decide(3)


@pytest.fixture
@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.prepare()
    yield made


async def test_a_client_that_goes_in_the_moment_of_the_grant_loses_nothing(rig: Rig) -> None:
    task = await rig.granted(rig.receive())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await rig.release()
    assert rig.deliverable


async def test_a_release_that_cannot_be_proposed_now_is_proposed_again(rig: Rig) -> None:
    """The lease is the session's, and the client lives on: nothing else would ever end it."""
    task = await rig.granted(rig.receive())
    rig.raft.error = BusyError()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await settle()
    assert not rig.deliverable
    rig.raft.error = None
    rig.releases.again()
    await rig.release()
    assert rig.deliverable


@pytest.mark.parametrize("taken", [1, 2, 3, 4])
async def test_a_client_that_goes_amid_the_frames_gets_the_rest_again(rig: Rig, taken: int) -> None:
    """The first frame is the status; the one that is on its way when the client goes has not arrived."""
    frames = rig.receive()
    await (await rig.granted(frames))
    for _ in range(taken - 1):
        await anext(frames)
    await frames.aclose()
    await rig.release()
    found = rig.raft.state.consumption.get((1, 1, 0))
    assert found is not None
    arrived = max(taken - 2, 0)
    assert found.expired(1000)["offset"].tolist() == [0, 1, 2][arrived:]


async def test_messages_that_cannot_be_read_stay_with_nobody(rig: Rig) -> None:
    """Another node may be able to hand them out."""
    rig.unreadable = DamagedLogError("n1", Path("x"), 0, 0, "a test")
    task = await rig.granted(rig.receive())
    with pytest.raises(DamagedLogError):
        await task
    await rig.release()
    assert rig.deliverable


async def test_damaged_queue_files_hold_up_their_reader_only_and_only_until_they_are_made_again(
    rig: Rig,
) -> None:
    """Producers that share the turn are not refused, and nothing stays reserved for the group."""
    mended, damage = asyncio.Event(), ConsumeQueueError("x", "a test", ((1, 0), 0))

    async def wait_mended(error: ConsumeQueueError) -> None:
        assert error is damage
        await mended.wait()

    def lookup(*place: int) -> Any:
        if not mended.is_set():
            raise damage
        return whole(*place)

    queues: Any = rig.raft.state.queues
    whole, queues.lookup = queues.lookup, lookup
    rig.replica.mended = wait_mended
    sent = message(rig.raft.state, b"4")
    task = asyncio.ensure_future(anext(rig.receive()))
    rig.raft.pipeline.submit(sent)
    await settle()
    await rig.raft.decide(2)
    assert sent.future.result()[0].offset == 3
    assert not task.done()
    mended.set()
    await settle()
    await rig.raft.decide(3)
    await task
    assert rig.leased == 3


async def test_queue_files_that_cannot_be_made_again_send_the_reader_to_another_node(rig: Rig) -> None:
    damage = ConsumeQueueError("x", "a test", ((1, 0), 0))

    def lookup(*place: int) -> Any:
        raise damage

    async def never(error: ConsumeQueueError) -> None:
        raise error

    queues: Any = rig.raft.state.queues
    queues.lookup = lookup
    rig.replica.mended = never
    with pytest.raises(NodeStoppedError, match="a test"):
        await anext(rig.receive())


async def test_a_topic_that_is_deleted_while_its_reader_looks_for_a_start_is_not_found(rig: Rig) -> None:
    async def deleted(*place: int) -> Any:
        raise QueueNotFoundError("a", 0)

    rig.raft.pipeline.run(CreateConsumerGroup("by-time", StartPosition(5)))
    await settle()
    await rig.raft.decide(2)
    rig.replica.units = deleted
    with pytest.raises(StatusError) as refused:
        await anext(rig.receive("by-time"))
    assert refused.value.code == v2.TOPIC_NOT_FOUND


async def test_a_grant_that_came_to_nothing_is_asked_for_again_at_once(rig: Rig) -> None:
    """An offset was set between selection and apply: messages follow it, and nothing may wake the poll."""
    rig.raft.pipeline.run(CommitOffsets(1, position_rows([(1, 0, 1)]), True))
    task = asyncio.ensure_future(anext(rig.receive()))
    await settle()
    await rig.raft.decide(2)  # the receive has chosen from offset 0 before this is applied
    await rig.raft.decide(3)
    assert not task.done()
    await rig.raft.decide(4)
    await task
    assert rig.leased == 2

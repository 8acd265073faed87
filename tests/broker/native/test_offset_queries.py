"""QueryOffsets: the offsets of a time, and what a node answers that finds no leader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.cluster.members import Members
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.native.consumer_offsets import ConsumerOffsets
from ledgermq.broker.native.log_service import LogService
from ledgermq.broker.reading.log_reader import LogReader, QueueReader
from ledgermq.broker.service import read_barrier
from ledgermq.broker.service.answers import Refusals
from ledgermq.broker.service.broker_group_identity import BrokerGroupIdentity
from ledgermq.broker.service.read_barrier import ReadBarrier
from ledgermq.broker.state.commands import CommitOffsets, position_rows
from ledgermq.proto import log_pb2, route_pb2
from ledgermq.proto.route_pb2 import NodeInfo
from ledgermq.raft.errors import NotLeaderError

from ..entry_log import START_MS, Node
from ..reading.test_log_reader import BytesLog


class Asked:
    """A node with two messages of each of three moments, of which a group has consumed one."""

    def __init__(self, *, leader: bool = True) -> None:
        self.node = Node()
        self.topic, group = self.node.topic("orders", 1), self.node.group("billing")
        for moment in range(3):
            self.node.log.now = START_MS + 10 * moment
            self.node.fill(self.topic, 0, 2)
        self.node.command(CommitOffsets(group, position_rows([(self.topic, 0, 1)])))
        self._leader = leader

    async def _read_index(self) -> int:
        if not self._leader:
            raise NotLeaderError(None)
        return self.node.state.applied_index

    async def _wait_applied(self, index: int) -> None:
        assert index <= self.node.state.applied_index

    async def _units(self, topic_id: int, queue_id: int, offset: int, count: int) -> Any:
        return self.node.state.queues.lookup(topic_id, queue_id, offset, count)

    def query(self, *, remaining: float = 5.0, **request: Any) -> log_pb2.QueryOffsetsResponse:
        nothing: Any = None  # of what is not asked
        replica: Any = SimpleNamespace(
            state=self.node.state, units=self._units, require_whole_state=lambda: None
        )
        raft: Any = SimpleNamespace(
            read_index=self._read_index, wait_applied=self._wait_applied, config=SimpleNamespace(reign=None)
        )
        reader = QueueReader(replica, LogReader(BytesLog(b"".join(self.node.log.raw))))
        barrier = ReadBarrier(raft, replica, Leadership("n2"))
        offsets = ConsumerOffsets(replica, nothing, nothing, barrier, reader)
        identity = BrokerGroupIdentity(BrokerConfig(), raft)
        refusals = Refusals(raft, Leadership("n2"), Members(NodeInfo(), ()), Metrics())
        service = LogService(nothing, nothing, nothing, offsets, nothing, nothing, identity, refusals)
        raw = log_pb2.QueryOffsetsRequest(group="billing", topic="orders", **request).SerializeToString()
        call = SimpleNamespace(time_remaining=lambda: remaining, invocation_metadata=tuple)
        return asyncio.run(service._query_offsets(raw, call))


@pytest.mark.parametrize(("after", "offset"), [(-5, 0), (0, 0), (1, 2), (10, 2), (20, 4), (21, 6)])
def test_the_offset_of_a_time_is_that_of_the_first_message_stored_then_or_later(
    after: int, offset: int
) -> None:
    (found,) = Asked().query(timestamp=START_MS + after).offsets
    assert (found.time_offset, found.begin_offset, found.end_offset) == (offset, 0, 6)


def test_no_offset_of_a_time_is_looked_for_unless_it_is_asked_for() -> None:
    (found,) = Asked().query().offsets
    assert not found.HasField("time_offset")


def test_without_a_leader_a_question_is_refused_and_may_be_repeated() -> None:
    answer = Asked(leader=False).query(remaining=0.1)
    assert (answer.refusal.code, answer.refusal.retryable) == (route_pb2.NO_QUORUM, True)


def test_without_a_leader_who_wants_it_hears_what_this_node_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_barrier, "STALE_AFTER_S", 0.1)
    answer = Asked(leader=False).query(allow_stale=True)
    assert answer.stale
    assert [(each.offset, each.end_offset) for each in answer.offsets] == [(1, 6)]


def test_with_a_leader_nothing_is_stale() -> None:
    assert not Asked().query(allow_stale=True).stale

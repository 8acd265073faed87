"""A backlog is read from a follower: the seeds' example, and a follower with and without a leader."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.native.fetch import Fetches
from ledgermq.broker.reading.log_reader import LogReader
from ledgermq.broker.reading.read_advice import ReadAdvice
from ledgermq.proto import log_pb2
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.record import decode_section, seal_section

from ..entry_log import Node, records, section
from ..fetching import fetches
from .test_log_reader import BytesLog
from .test_read_advice import peer

ENTRY_MESSAGES = 500


class GroupLog(BytesLog):
    """The log that all nodes have.

    What stands before `hot_from` is on disk only: reading it waits for `gate`.
    """

    segment_size = 1 << 30

    def __init__(self, raw: bytes, hot_from: int) -> None:
        super().__init__(raw)
        self.hot_from = hot_from
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.cold_reads = 0

    def read_at_nowait(self, offset: int, size: int) -> memoryview | None:
        return memoryview(self.raw)[offset : offset + size] if offset >= self.hot_from else None

    async def read_at(self, offset: int, size: int) -> memoryview:
        self.cold_reads += 1
        self.begun.set()
        await self.gate.wait()
        return await super().read_at(offset, size)


class Replicas:
    """Nodes n1 (leader), n2 and n3 with one state, one log, and queues of a topic."""

    def __init__(self, queues: int = 1) -> None:
        self.node = Node()
        self.topic = self.node.topic("orders", queues)
        self._parts = records(ENTRY_MESSAGES, size=20)
        self.log: GroupLog
        self.advice = ReadAdvice(0)

    def write(self, messages: int, queue: int = 0) -> None:
        for _ in range(messages // ENTRY_MESSAGES):
            base = self.node.state.queue_end(self.topic, queue)
            made = section(self.topic, queue, self._parts, base=base, producer_id=0)
            seal_section(made, base_queue_offset=base, entry_distance=HEADER_SIZE)
            self.node.apply(made)

    def close_log(self, *, messages_in_memory: int) -> None:
        """Nothing is written any more; so many messages fit into memory."""
        raw = b"".join(self.node.log.raw)
        size = (len(raw) - self.node.log.entry(1)[0].size) * messages_in_memory
        size //= sum(each.end for each in self.node.state.queues_of(self.node.state.topics.named("orders")))
        self.advice = ReadAdvice(size)
        self.log = GroupLog(raw, len(raw) - size)
        self.log.gate.set()

    def at(self, name: str, leader: str | None = "n1", metrics: Metrics | None = None) -> Fetches:
        """Return what a node serves."""
        leadership = Leadership(name)
        if leader == name:
            leadership.on_ready(1)
        else:
            leadership.on_changed(leader, 1)

        async def units(topic_id: int, queue_id: int, offset: int, count: int) -> Any:
            return self.node.state.queues.lookup(topic_id, queue_id, offset, count)

        peers = [peer("n1", role="leader"), peer("n2"), peer("n3", connected=False)]
        raft = SimpleNamespace(applied_index=9, log=SimpleNamespace(end_offset=len(self.log.raw)))
        raft.status = lambda: SimpleNamespace(peers=peers)
        replica = SimpleNamespace(state=self.node.state, units=units, require_whole_state=lambda: None)
        return fetches(raft, replica, LogReader(self.log), leadership, self.advice, metrics or Metrics())

    async def fetch(self, node: Fetches, *offsets: int, max_bytes: int = 64 << 10) -> log_pb2.FetchResponse:
        request = log_pb2.FetchRequest(max_bytes=max_bytes)
        for queue, offset in enumerate(offsets):
            request.positions.add(topic_id=self.topic, queue_id=queue, offset=offset)
        return log_pb2.FetchResponse.FromString(await node.fetch(request))


def end_of(found: log_pb2.FetchedQueue) -> int:
    """Return the offset behind what was fetched of a queue."""
    header = decode_section(found.sections[-1].section)
    return header.base_queue_offset + header.count


async def test_the_example_of_the_seeds() -> None:
    """100,000 written, 20,000 consumed, 50,000 fit: a follower serves the rest, the leader the end."""
    replicas = Replicas()
    replicas.write(100_000)
    replicas.close_log(messages_in_memory=50_000)
    metrics = {"n1": Metrics(), "n2": Metrics()}
    nodes = {name: replicas.at(name, metrics=counts) for name, counts in metrics.items()}
    at, offset, moves = "n1", 20_000, []
    while offset < 100_000:
        answer = await replicas.fetch(nodes[at], offset)
        assert (answer.node_id, answer.stale) == (at, False)
        offset = end_of(answer.queues[0])
        if answer.suggested_node_id:
            at = answer.suggested_node_id
            moves.append((at, offset))
    assert [node for node, _ in moves] == ["n2", "n1"]
    assert moves[0][1] < 22_000
    assert 74_000 < moves[1][1] < 77_000, "half of what fits is left"
    assert replicas.log.cold_reads > 0
    counted = metrics["n1"].reads_moved.labels("follower")._value.get()
    assert counted == metrics["n2"].reads_moved.labels("leader")._value.get() == 1


async def test_one_answer_has_as_many_whole_sections_as_fit() -> None:
    """A3.23: many messages are read at a time, as they stand in the log."""
    replicas = Replicas()
    replicas.write(5_000)
    replicas.close_log(messages_in_memory=5_000)
    answer = await replicas.fetch(replicas.at("n1"), 0, max_bytes=256 << 10)
    found = [decode_section(each.section) for each in answer.queues[0].sections]
    assert len(found) > 3 and sum(len(each.section) for each in answer.queues[0].sections) <= 256 << 10
    assert [(each.base_queue_offset, each.count) for each in found] == [
        (number * ENTRY_MESSAGES, ENTRY_MESSAGES) for number in range(len(found))
    ]


async def test_a_reader_whose_backlog_fits_stays_with_the_leader() -> None:
    replicas = Replicas()
    replicas.write(100_000)
    replicas.close_log(messages_in_memory=50_000)
    leader = replicas.at("n1")
    assert (await replicas.fetch(leader, 51_000)).suggested_node_id == ""
    assert (await replicas.fetch(leader, 100_000)).suggested_node_id == ""


async def test_a_reader_stays_at_the_follower_while_one_of_its_queues_is_far_behind() -> None:
    """Also when the answer has room for others only."""
    replicas = Replicas(queues=2)
    replicas.write(50_000, queue=1)
    replicas.write(50_000, queue=0)
    replicas.close_log(messages_in_memory=50_000)
    follower = replicas.at("n2")
    answer = await replicas.fetch(follower, 40_000, 0)
    assert [found.queue_id for found in answer.queues] == [0]
    assert answer.suggested_node_id == ""
    assert (await replicas.fetch(follower, 40_000, 50_000)).suggested_node_id == "n1"


async def test_a_lone_old_message_is_no_backlog() -> None:
    """Nothing is left to be read behind it: another node would not help."""
    replicas = Replicas(queues=2)
    replicas.write(ENTRY_MESSAGES, queue=1)
    replicas.write(100_000, queue=0)
    replicas.close_log(messages_in_memory=50_000)
    assert (await replicas.fetch(replicas.at("n1"), 100_000, 0)).suggested_node_id == ""


async def test_a_follower_that_knows_no_leader_serves_what_is_committed_and_says_so() -> None:
    replicas = Replicas()
    replicas.write(10_000)
    replicas.close_log(messages_in_memory=5_000)
    follower = replicas.at("n2", leader=None)
    answer = await replicas.fetch(follower, 0)
    assert (answer.node_id, answer.stale, answer.suggested_node_id) == ("n2", True, "")
    assert end_of(answer.queues[0]) > 0
    assert not (await replicas.fetch(follower, 10_000)).queues, "and nothing beyond what it has applied"


async def test_a_cold_read_at_a_follower_holds_up_no_hot_one() -> None:
    replicas = Replicas()
    replicas.write(20_000)
    replicas.close_log(messages_in_memory=10_000)
    replicas.log.gate.clear()
    follower = replicas.at("n2")
    cold = asyncio.create_task(replicas.fetch(follower, 0))
    await replicas.log.begun.wait()
    hot = await replicas.fetch(follower, 15_000)
    assert end_of(hot.queues[0]) > 15_000
    assert not cold.done()
    assert replicas.log.cold_reads == 1
    replicas.log.gate.set()
    assert end_of((await cold).queues[0]) > 0

"""Fetch beside deletion: what a reader of several queues is told when one of them goes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ledgermq.broker.cluster.known_leader import Leadership
from ledgermq.broker.metrics import Metrics
from ledgermq.broker.native.fetch import MAX_SECTIONS
from ledgermq.broker.reading.log_reader import StoredSection
from ledgermq.broker.reading.read_advice import ReadAdvice
from ledgermq.broker.state.commands import DeleteTopic
from ledgermq.proto import log_pb2, route_pb2
from ledgermq.raft.errors import LogCompactedError

from ..entry_log import Node
from ..fetching import fetches


class Rig:
    """A node with two topics of one queue and one message each; reading the first one deletes it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.node, self.error = Node(), error
        self.topics = [self.node.topic(name, 1) for name in ("a", "b")]
        for topic in self.topics:
            self.node.fill(topic, 0, 1)
        self.deleted = False
        self.state, self.applied_index = self.node.state, 9
        leadership = Leadership("n1")
        leadership.on_ready(1)
        self.fetches = fetches(self, self, self, leadership, ReadAdvice(1 << 30), Metrics())

    def require_whole_state(self) -> None:
        """It is whole."""

    def status(self) -> Any:
        return SimpleNamespace(peers=())

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> Any:
        if not self.deleted:
            self.deleted = True
            self.node.command(DeleteTopic(self.topics[0]))
        if self.error is not None and topic_id == self.topics[0]:
            raise self.error
        return self.node.state.queues.lookup(topic_id, queue_id, offset, count)

    async def section_of(self, offset: int) -> StoredSection:
        return StoredSection(0, 0, 1, 8, 0)

    async def section_bytes(self, section: StoredSection) -> bytes:
        return b"8 bytes!"

    def fetch(self) -> log_pb2.FetchResponse:
        request = log_pb2.FetchRequest()
        for topic in self.topics:
            request.positions.add(topic_id=topic)
        return log_pb2.FetchResponse.FromString(asyncio.run(self.fetches.fetch(request)))


def test_a_topic_that_is_deleted_while_it_is_read_is_refused_alone() -> None:
    for error in (None, LogCompactedError(1, 2)):
        queues = Rig(error).fetch().queues
        assert [len(queue.sections) for queue in queues] == [0, 1]
        assert queues[0].refusal.code == route_pb2.STALE_ROUTE


class Tiny(Rig):
    """One queue of single messages that memory has: reading them suspends nowhere by itself."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.deleted = True
        self.log = SimpleNamespace(end_offset=count)
        self.node.fill(self.topics[0], 0, count)

    async def units(self, topic_id: int, queue_id: int, offset: int, count: int) -> Any:
        found: Any = self.node.state.queues.lookup(topic_id, queue_id, offset, count)
        found = found.copy()
        found["physical_offset"] = offset
        return found

    async def section_of(self, offset: int) -> StoredSection:
        return StoredSection(offset, offset, 1, 8, 0)


def test_many_small_sections_end_an_answer_and_let_others_have_their_turn() -> None:
    tiny = Tiny(MAX_SECTIONS + 10)
    turns = 0

    async def scenario() -> log_pb2.FetchResponse:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        request = log_pb2.FetchRequest()
        for _ in range(3):
            request.positions.add(topic_id=tiny.topics[0])
        answer = await tiny.fetches.fetch(request)
        task.cancel()
        return log_pb2.FetchResponse.FromString(answer)

    queues = asyncio.run(scenario()).queues
    assert [len(queue.sections) for queue in queues] == [MAX_SECTIONS]
    assert turns >= MAX_SECTIONS // 128

"""Who reads here, stores no progress, and is behind: seen while its stream is open."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.native import log_service
from ledgermq.broker.native.log_service import FetchStreams
from ledgermq.broker.reading.live_readers import LiveReaders, LiveReading
from ledgermq.broker.service.broker_group_identity import BrokerGroupIdentity
from ledgermq.broker.state.commands import CommitOffsets, position_rows
from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.call_metadata import CONSUMER_GROUP

from ..entry_log import Node


def request(*positions: tuple[int, int, int]) -> pb.FetchRequest:
    """(topic id, queue id, offset)."""
    return pb.FetchRequest(
        positions=[pb.FetchPosition(topic_id=t, queue_id=q, offset=offset) for t, q, offset in positions]
    )


def test_a_reader_is_behind_by_what_it_has_not_fetched_and_the_last_of_a_group_counts() -> None:
    node, readers = Node(), LiveReaders()
    orders, bills = node.topic("orders", queues=2), node.topic("bills", queues=1)
    for queue in (0, 1):
        node.fill(orders, queue, 10)
    node.fill(bills, 0, 3)
    with readers.open("audit") as first, readers.open("audit") as second, readers.open("") as nameless:
        assert readers.unseen(node.state) == [], "they have asked for nothing yet"
        first.request = request((orders, 0, 10), (orders, 1, 4), (bills, 0, 3))
        second.request = request((orders, 0, 1), (orders, 1, 9), (99, 0, 0))
        nameless.request = request((bills, 0, 1))
        assert readers.unseen(node.state) == [
            LiveReading("", "bills", 1, 2),
            LiveReading("audit", "orders", 2, 10),
        ]
        first.request = request((orders, 0, 10), (orders, 1, 10))
        second.request = request((orders, 0, 12), (orders, 1, 10))
        assert readers.unseen(node.state) == [LiveReading("", "bills", 1, 2)]
    assert readers.unseen(node.state) == []


def test_whose_progress_is_stored_here_is_counted_there() -> None:
    node, readers = Node(), LiveReaders()
    orders, group = node.topic("orders", queues=1), node.group("billing")
    node.fill(orders, 0, 5)
    with readers.open("billing") as reader:
        reader.request = request((orders, 0, 2))
        assert readers.unseen(node.state) == [LiveReading("billing", "orders", 1, 3)]
        node.command(CommitOffsets(group, position_rows([(orders, 0, 1)])))
        assert readers.unseen(node.state) == []


def test_a_fetch_stream_is_a_reader_until_it_ends() -> None:
    node, readers = Node(), LiveReaders()
    orders = node.topic("orders", queues=1)
    node.fill(orders, 0, 5)
    seen: list[list[LiveReading]] = []

    async def fetch(_request: object) -> bytes:
        seen.append(readers.unseen(node.state))
        return b""

    async def scenario() -> None:
        requests = [request((orders, 0, offset)).SerializeToString() for offset in (1, 4)]

        async def read() -> Any:
            return requests.pop(0) if requests else log_service._EOF

        async def write(_answer: bytes) -> None:
            pass

        stream: Any = SimpleNamespace(
            read=read, write=write, invocation_metadata=lambda: ((CONSUMER_GROUP, "audit"),)
        )
        fetches, nothing = cast(Any, SimpleNamespace(fetch=fetch)), cast(Any, None)
        identity = BrokerGroupIdentity(BrokerConfig(), nothing)
        await FetchStreams(fetches, readers, identity, nothing).serve(None, stream)

    asyncio.run(scenario())
    assert seen == [[LiveReading("audit", "orders", 1, 4)], [LiveReading("audit", "orders", 1, 1)]]
    assert readers.unseen(node.state) == []

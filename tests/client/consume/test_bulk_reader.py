"""The bulk reader's answers, and the choice of nodes, without a broker."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.client.cluster.topic_route import BrokerGroup, Node
from ledgermq.client.consume.bulk_reader import BulkReader, NodesUnreachableError, QueueRange, _opened
from ledgermq.client.errors import CorruptMessageError, TopicNotFoundError
from ledgermq.proto import log_pb2, route_pb2
from tests.ports import free_ports

from ..sections import TOPIC_ID, section


def wanted(*addresses: str, queue_id: int = 0, leader: str = "n1") -> QueueRange:
    nodes = tuple(Node(f"n{n + 1}", address, "", True) for n, address in enumerate(addresses))
    group = BrokerGroup("local", "g0", 1, leader, nodes, True)
    return QueueRange("orders", group, TOPIC_ID, queue_id, 0, 10)


def found(*sections: bytes, **refusal: int) -> log_pb2.FetchedQueue:
    queue = log_pb2.FetchedQueue(topic_id=TOPIC_ID, queue_id=0)
    for raw in sections:
        queue.sections.add(section=raw, store_timestamp=5)
    if refusal:
        queue.refusal.code = refusal["code"]  # type: ignore[assignment]
        queue.begin_offset = refusal.get("begin", 0)
    return queue


def test_an_answer_is_verified_and_says_where_to_go_on() -> None:
    fetched = _opened(wanted(), 3, found(section(0, 2, b"a", b"b"), section(0, 4, b"c")))
    assert fetched is not None
    assert (fetched.next_offset, fetched.begin, fetched.store_timestamps) == (5, -1, (5, 5))
    assert [header.base_queue_offset for header in fetched.headers] == [2, 4]


@pytest.mark.parametrize(
    ("offset", "sections", "words"),
    [
        (1, (section(0, 2, b"a"),), "does not follow 1"),
        (2, (section(0, 2, b"a"), section(0, 4, b"b")), "does not follow 3"),
        (9, (section(0, 2, b"a"),), "does not follow 9"),
        (2, (section(0, 2, b"a")[:-8] + bytes(8),), "checksum"),
        (2, (b"x",), "cut short"),
    ],
)
def test_an_answer_with_a_gap_or_damage_is_refused(
    offset: int, sections: tuple[bytes, ...], words: str
) -> None:
    with pytest.raises(CorruptMessageError, match=words):
        _opened(wanted(), offset, found(*sections))


def test_refusals_of_a_queue() -> None:
    deleted = _opened(wanted(), 3, found(code=route_pb2.OFFSET_OUT_OF_RANGE, begin=7))
    assert deleted is not None
    assert (deleted.begin, deleted.sections) == (7, ())
    assert _opened(wanted(), 9, found(code=route_pb2.OFFSET_OUT_OF_RANGE, begin=7)) is None
    with pytest.raises(TopicNotFoundError):
        _opened(wanted(), 3, found(code=route_pb2.STALE_ROUTE))


def test_followers_come_first_in_turn_by_queue_and_the_leader_last() -> None:
    async def orders() -> list[list[str]]:
        async with BulkReader("127.0.0.1:1") as reader:
            ranges = [wanted("a:1", "b:1", "c:1", queue_id=queue) for queue in range(2)]
            return [reader._in_order(each, each.broker_group) for each in ranges]

    assert asyncio.run(orders()) == [["b:1", "c:1", "a:1"], ["c:1", "b:1", "a:1"]]


def test_when_no_node_answers_the_error_names_the_addresses_and_the_option() -> None:
    (port,) = free_ports(1)

    async def fetch() -> None:
        async with BulkReader("127.0.0.1:1", patience_s=0) as reader:
            await reader.fetch(wanted(f"127.0.0.1:{port}"), 0)

    with pytest.raises(NodesUnreachableError, match=f"127.0.0.1:{port}.*set log_advertise") as raised:
        asyncio.run(fetch())
    assert raised.value.addresses == (f"127.0.0.1:{port}",)

"""Rows are recognised by content, one by one, in any order."""

from __future__ import annotations

import random

import pytest

from ledgermq.client.batches.row_packer import PartAddress, Row, RowPacker
from ledgermq.client.batches.stored_rows import StoredRows, content_of, read_back
from ledgermq.client.cluster.channels import Channels
from ledgermq.client.cluster.routes import Routes
from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.client.errors import BatchError, LedgerMQError
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.client.produce.message_ids import MessageIdSource
from ledgermq.proto.log_pb2 import BeginBatchResponse
from ledgermq.proto.record import BATCH_WRITE_EPOCH

from ..fakes import FakeCluster, FakeGroup

ROW = Row(b"body", "tag", ("k1", "k2"), {"a": "1", "b": "2"}, "group")


def test_every_part_of_a_row_counts() -> None:
    others = [
        ROW._replace(body=b"bodY"), ROW._replace(tag=""), ROW._replace(tag="group", message_group="tag"),
        ROW._replace(keys=("k1",)), ROW._replace(keys=("k2", "k1")), ROW._replace(properties={"a": "12"}),
        ROW._replace(properties=None), ROW._replace(message_group=""), Row(b"body"), Row(b""),
        Row(b"body", "tag", ("k1", "k2", "a"), {"1b": "2"}, "group"),
    ]  # fmt: skip
    assert len({content_of(row) for row in [ROW, *others]}) == len(others) + 1


def test_the_order_of_properties_and_the_kind_of_sequence_do_not_count() -> None:
    same = ROW._replace(keys=["k1", "k2"], properties={"b": "2", "a": "1"})
    assert content_of(same) == content_of(ROW)
    assert content_of(Row(b"x")) == content_of(Row(b"x", properties={}))


def test_equal_rows_are_counted_one_by_one() -> None:
    stored = StoredRows()
    for _ in range(2):
        stored.add(ROW)
    stored.add(Row(b"x"))
    assert [stored.take(ROW) for _ in range(3)] == [True, True, False]
    assert stored.count == 1


def test_an_attempt_in_another_order_sends_what_is_missing_and_nothing_else() -> None:
    choose = random.Random(3)
    rows = [Row(b"%d" % (number % 40)) for number in range(100)]
    stored = StoredRows()
    for row in rows[:63]:
        stored.add(row)
    again = choose.sample(rows, len(rows))
    missing = [row for row in again if not (stored.count and stored.take(row))]
    assert sorted(missing) == sorted(rows[63:])
    assert stored.count == 0


def packed(producer_id: int, bodies: list[bytes]) -> bytes:
    """Return a section of queue 0 of topic 1."""
    epoch = BATCH_WRITE_EPOCH if producer_id == 77 else 0
    address = PartAddress(topic_id=1, queue_count=1, producer_id=producer_id, producer_epoch=epoch)
    packer = RowPacker(
        RecordEncoder("orders", born_host="h"), address, MessageIdSource(b"123456", 1), first=0
    )
    (request,) = [*packer.bodies(bodies, 5), *packer.rest()]
    return bytes(request.sections[0])


async def test_reading_back_finds_the_messages_of_the_part_among_others() -> None:
    async with FakeCluster(group := FakeGroup("g0", {"orders": 1})) as cluster:
        for number in range(5):
            group.sessions.clear()  # the sequences do not matter here
            group.store(packed(77 if number % 2 else 5, [b"%d" % number, b"same"]))
        answer = BeginBatchResponse(producer_id=77, topic_id=1, count=4)
        answer.spans.add(queue_id=0, offset=2, end_offset=8)
        channels = Channels()
        routes = Routes(cluster.address, channels)
        await routes.get("orders")

        def broker_group() -> BrokerGroup:
            return routes.broker_group("orders", "g0")

        try:
            stored = StoredRows()
            await read_back(stored, broker_group, channels, "orders", answer, 60)
            assert stored.count == 4
            taken = [stored.take(Row(body)) for body in (b"1", b"3", b"same", b"same", b"same", b"2")]
            assert taken == [True, True, True, True, False, False]
            answer.count = 5
            with pytest.raises(LedgerMQError, match=r"4 messages of this part .* has recorded 5"):
                await read_back(StoredRows(), broker_group, channels, "orders", answer, 60)
            group.queues[1, 0].begin = 4
            with pytest.raises(BatchError, match="Retention has deleted"):
                await read_back(StoredRows(), broker_group, channels, "orders", answer, 60)
        finally:
            await routes.close()
            await channels.close()

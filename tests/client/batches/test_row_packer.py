"""Rows become sections: every record readable, sequences in a row, requests of bounded size."""

from __future__ import annotations

import random

import pytest

from ledgermq.client.batches.row_packer import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_COUNT,
    PackedRequest,
    PartAddress,
    Row,
    RowPacker,
)
from ledgermq.client.batches.stored_rows import row_of
from ledgermq.client.consume.fetched_records import open_section
from ledgermq.client.message import MessageQueue
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.client.produce.message_ids import MessageIdSource
from ledgermq.client.produce.queue_selection import queue_of_group
from ledgermq.proto import log_pb2
from ledgermq.proto.record import decode_section, seal_section

ADDRESS = PartAddress(topic_id=3, queue_count=4, producer_id=77, producer_epoch=1 << 31)


def packer(
    first: int = 0, queue: int = 0, max_request_bytes: int = MAX_REQUEST_BYTES, *, one_queue: bool = False
) -> RowPacker:
    return RowPacker(
        RecordEncoder("orders", born_host="here"), ADDRESS, MessageIdSource(b"123456", 1), first=first,
        queue=queue, one_queue=one_queue, max_request_bytes=max_request_bytes,
    )  # fmt: skip


def rows_in(requests: list[PackedRequest]) -> list[tuple[int, Row]]:
    """Return (queue, row) of all records, and check the headers of their sections."""
    found = []
    for request in requests:
        sequence = request.first
        for each in request.sections:
            sealed = bytearray(each)
            seal_section(sealed, base_queue_offset=0, entry_distance=64)
            header = decode_section(sealed)
            assert (header.topic_id, header.producer_id, header.producer_epoch) == (3, 77, 1 << 31)
            assert header.base_sequence == sequence
            sequence += header.count
            queue = MessageQueue("orders", "g0", header.queue_id)
            opened = open_section(queue, log_pb2.FetchedSection(section=bytes(sealed)), 0)
            assert opened is not None
            found += [(header.queue_id, row_of(view)) for view in opened.take(queue, header.count)]
        assert sequence == request.first + request.count
    return found


def test_bodies_of_all_sizes_arrive_in_order() -> None:
    choose, made = random.Random(1), packer(first=5)
    bodies = [choose.randbytes(choose.choice((1, 8, 100, 127, 128, 4096, 9000))) for _ in range(3000)]
    requests = [*made.bodies(bodies, 1_700_000_000_000), *made.rest()]
    assert [row.body for _, row in rows_in(requests)] == bodies
    assert requests[0].first == 5
    assert [each.first + each.count for each in requests] == [*(each.first for each in requests[1:]), 3005]
    assert all(sum(map(len, each.sections)) <= MAX_REQUEST_BYTES for each in requests)
    assert {queue for queue, _ in rows_in(requests)} == set(range(4)), "requests take queues in turn"
    assert not list(made.rest())


def test_rows_keep_their_labels_and_message_groups_keep_their_queue() -> None:
    made = packer(queue=1)
    rows = [
        Row(b"%d" % i, "tag", ["k1", "k2"], {"a": "1", "b": "2"}, f"group {i % 5}" if i % 2 else "")
        for i in range(400)
    ]
    requests = [request for row in rows for request in made.row(row, 5)] + list(made.rest())
    found = rows_in(requests)
    by_body = {row.body: (queue, row) for queue, row in found}
    assert len(found) == len(rows)
    for row in rows:
        queue, stored = by_body[row.body]
        assert stored == row._replace(keys=("k1", "k2"))
        if row.message_group:
            assert queue == queue_of_group(row.message_group, 4)
    group = [row.body for _, row in found if row.message_group == "group 1"]
    assert group == [row.body for row in rows if row.message_group == "group 1"], "in order"


def test_requests_are_bounded_in_messages_and_by_the_broker_group() -> None:
    made = packer()
    requests = [*made.bodies([b"x"] * (MAX_REQUEST_COUNT + 1), 5), *made.rest()]
    assert [each.count for each in requests] == [MAX_REQUEST_COUNT, 1]
    small = packer(max_request_bytes=2000)
    requests = [*small.bodies([b"x" * 700] * 5, 5), *small.rest()]
    assert [each.count for each in requests] == [2, 2, 1]


@pytest.mark.parametrize("size", [3_000_000, 1])
def test_a_message_larger_than_a_request_goes_alone(size: int) -> None:
    made = packer()
    bodies = [b"a", random.Random(1).randbytes(size), b"b"]
    requests = [*made.bodies(bodies, 5), *made.rest()]
    assert [row.body for _, row in rows_in(requests)] == bodies
    assert len(requests) == (3 if size > MAX_REQUEST_BYTES else 1)


def test_one_queue_takes_all_rows_but_those_of_message_groups() -> None:
    made = packer(queue=2, one_queue=True)
    rows = [Row(b"%d" % number, message_group="m" if number % 9 == 0 else "") for number in range(9000)]
    requests = [request for row in rows for request in made.row(row, 1_700_000_000_000)]
    found = rows_in([*requests, *made.rest()])
    assert len(requests) > 1
    assert [row.body for queue, row in found if not row.message_group] == [
        row.body for row in rows if not row.message_group
    ]
    assert {queue for queue, row in found if not row.message_group} == {2}
    assert {queue for queue, row in found if row.message_group} == {queue_of_group("m", 4)}

"""What is fetched and not yet handed out: order, positions, the bound on bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.consume import intake
from ledgermq.client.consume.fetch_buffer import FetchBuffer
from ledgermq.client.consume.intake import FETCH_BYTES, AssignedQueue, OutOfRange
from ledgermq.client.errors import CorruptMessageError
from ledgermq.client.message import MessageQueue
from ledgermq.proto import route_pb2 as pb

from ..sections import TOPIC_ID, answer, section


def reading(*offsets: int, max_bytes: int = 1 << 20) -> tuple[FetchBuffer, list[AssignedQueue]]:
    """A buffer that reads one queue per offset."""
    buffer = FetchBuffer(max_bytes)
    queues = [
        AssignedQueue(MessageQueue("orders", "g0", number), TOPIC_ID, offset, offset)
        for number, offset in enumerate(offsets)
    ]
    for assigned in queues:
        buffer.assign(assigned)
    return buffer, queues


def bodies(buffer: FetchBuffer, at_most: int = 1000) -> list[bytes]:
    return [message.body for message in buffer.take(at_most)]


def test_messages_are_handed_out_in_the_order_of_their_offsets() -> None:
    buffer, (assigned,) = reading(3)
    _, asked = buffer.next_request(10)
    assert buffer.on_response(answer((0, section(0, 3, b"a", b"b", b"c"))), asked) == []
    first, second = buffer.take(2)
    assert (first.body, first.queue_offset, first.store_timestamp) == (b"a", 3, 5)
    assert (second.queue_offset, assigned.position, assigned.fetch_offset) == (4, 5, 6)
    assert bodies(buffer) == [b"c"]
    assert (assigned.position, buffer.has_messages) == (6, False)


def test_what_was_fetched_before_retention_deleted_the_rest_is_handed_out() -> None:
    buffer, (assigned,) = reading(0)
    _, asked = buffer.next_request(10)
    buffer.on_response(answer((0, section(0, 0, b"a", b"b"))), asked)
    buffer.skip_to(assigned, 9)
    assert bodies(buffer) == [b"a", b"b"]
    request, asked = buffer.next_request(10)
    assert request.positions[0].offset == 9
    buffer.on_response(answer((0, section(0, 9, b"c"))), asked)
    assert bodies(buffer) == [b"c"]
    assert assigned.position == 10
    buffer.skip_to(assigned, 20)
    assert assigned.position == 20, "nothing is buffered: the next one is the one that is asked for"


def test_a_section_that_begins_before_the_position_is_cut() -> None:
    buffer, (assigned,) = reading(2)
    _, asked = buffer.next_request(10)
    buffer.on_response(answer((0, section(0, 0, b"a", b"b", b"c"))), asked)
    (message,) = buffer.take(10)
    assert (message.body, message.queue_offset, assigned.position) == (b"c", 2, 3)


def test_what_is_there_already_is_not_taken_twice() -> None:
    buffer, _ = reading(0)
    _, asked = buffer.next_request(10)
    raw = section(0, 0, b"a", b"b")
    buffer.on_response(answer((0, raw), (0, raw)), asked)
    assert bodies(buffer) == [b"a", b"b"]


def test_answers_to_questions_from_before_a_seek_are_dropped() -> None:
    buffer, (assigned,) = reading(0)
    _, asked = buffer.next_request(10)
    buffer.seek(assigned, 9)
    buffer.on_response(answer((0, section(0, 0, b"a"))), asked)
    assert bodies(buffer) == []
    assert (assigned.position, assigned.fetch_offset) == (9, 9)


def test_a_seek_and_a_removal_make_room_at_once() -> None:
    buffer, (one, two) = reading(0, 0, max_bytes=300)
    _, asked = buffer.next_request(10)
    buffer.on_response(answer((0, section(0, 0, bytes(300))), (1, section(1, 0, b"b"))), asked)
    rooms = [buffer.has_room]
    buffer.seek(one, 1)
    rooms.append(buffer.has_room)
    assert bodies(buffer) == [b"b"]
    buffer.on_response(answer((1, section(1, 1, bytes(300)))), asked)
    rooms.append(buffer.has_room)
    buffer.remove(two)
    rooms.append(buffer.has_room)
    assert rooms == [False, True, False, True]
    assert list(buffer._queues.values()) == [one]


def test_without_queues_nothing_is_asked() -> None:
    assert not FetchBuffer().has_room


def test_queues_take_turns_at_the_front_of_a_request() -> None:
    buffer, _ = reading(0, 0, 0)
    fronts = [buffer.next_request(10)[0].positions[0].queue_id for _ in range(3)]
    assert sorted(fronts) == [0, 1, 2]


def test_a_request_names_offsets_wait_and_size() -> None:
    buffer, _ = reading(4, max_bytes=1000)
    request, asked = buffer.next_request(77)
    assert (request.max_bytes, request.max_wait_ms) == (1000, 77)
    assert [(each.topic_id, each.queue_id, each.offset) for each in request.positions] == [(TOPIC_ID, 0, 4)]
    assert asked == {(TOPIC_ID, 0): 0}
    assert reading(0, max_bytes=1 << 30)[0].next_request(1)[0].max_bytes == FETCH_BYTES


def test_refused_queues_are_returned_and_the_others_are_taken() -> None:
    buffer, (gone, behind, _) = reading(0, 5, 0)
    _, asked = buffer.next_request(10)
    response = answer((2, section(2, 0, b"c")))
    response.queues.add(topic_id=TOPIC_ID, queue_id=0).refusal.code = pb.STALE_ROUTE
    out = response.queues.add(topic_id=TOPIC_ID, queue_id=1, begin_offset=8, end_offset=9)
    out.refusal.code = pb.OFFSET_OUT_OF_RANGE
    refusal = pb.Refusal(code=pb.STALE_ROUTE)
    assert buffer.on_response(response, asked) == [(gone, refusal), OutOfRange(behind, 8, 9)]
    assert bodies(buffer) == [b"c"]


def test_a_damaged_section_is_an_error_and_nothing_behind_it_is_taken() -> None:
    buffer, (assigned,) = reading(0)
    _, asked = buffer.next_request(10)
    damaged = bytearray(section(0, 1, b"bbbb"))
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="ledgermq dump"):
        buffer.on_response(
            answer((0, section(0, 0, b"a")), (0, bytes(damaged)), (0, section(0, 2, b"c"))), asked
        )
    assert bodies(buffer) == [b"a"]
    assert assigned.fetch_offset == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=8), st.lists(st.integers(1, 7), min_size=60, max_size=60))
def test_every_message_comes_once_and_in_order_however_it_is_taken(
    sizes: list[int], takes: list[int]
) -> None:
    buffer, (assigned,) = reading(0)
    _, asked = buffer.next_request(10)
    base = 0
    for size in sizes:
        raw = section(0, base, *(b"%d" % (base + i) for i in range(size)))
        buffer.on_response(answer((0, raw)), asked)
        base += size
    found: list[int] = []
    for count in takes:
        taken = bodies(buffer, count)
        assert len(taken) <= count
        found += map(int, taken)
        assert assigned.position == len(found)
    assert found == list(range(base))
    assert buffer.has_room


def test_more_queues_than_a_broker_takes_at_once_are_asked_for_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MAX_POSITIONS", 3)
    buffer = FetchBuffer()
    for queue_id in range(7):
        buffer.assign(AssignedQueue(MessageQueue("orders", "g0", queue_id), TOPIC_ID, 0, 0))
    asked: set[int] = set()
    for _ in range(7):
        request, generations = buffer.next_request(10_000)
        ids = [each.queue_id for each in request.positions]
        assert len(ids) == len(generations) == 3
        assert request.max_wait_ms < 1000, "the others have their turn soon"
        asked.update(ids)
    assert asked == set(range(7))

"""What is open towards one group: what shares a request, and what follows from each answer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.client.message import MessageQueue
from ledgermq.client.produce.send_window import (
    LARGE_BYTES,
    MANY_IN_FLIGHT,
    MAX_IN_FLIGHT,
    MAX_REQUEST_BYTES,
    PIPELINE_BYTES,
    Lane,
    Request,
    SendWindow,
)
from ledgermq.proto import log_pb2
from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.record import decode_section, walk_sections

RECORD = bytes(64)


class Driver:
    """A window with two lanes, an id for each message, and the answers as a broker would give them."""

    def __init__(self) -> None:
        self.sessions = iter(range(1, 10_000))
        self.window = SendWindow(lambda: next(self.sessions))
        self.lanes = [self.window.lane(MessageQueue("orders", "g0", i), 7) for i in range(2)]

    def add(self, lane: int, name: object, *, size: int = 64, now: int = 0, fifo: bool = False) -> None:
        section = self.window.open_section(self.lanes[lane], now, now + 1000, size)
        self.window.added(section, bytes(size), name)
        section.fifo = fifo

    def request(self, now: int = 0) -> Request | None:
        return self.window.next_request(now)

    def must_request(self, now: int = 0) -> Request:
        request = self.request(now)
        assert request is not None
        return request


@pytest.fixture
def driver() -> Driver:
    return Driver()


def stored(request: Request, base: int = 0) -> log_pb2.ProduceResponse:
    answer = log_pb2.ProduceResponse(request_id=request.request_id)
    for section in request.sections:
        answer.results.add(base_queue_offset=base, count=section.count)
        base += section.count
    return answer


def refused(request: Request, code: pb.RefusalCode, **fields: Any) -> log_pb2.ProduceResponse:
    refusal = pb.Refusal(code=code, **fields)
    return log_pb2.ProduceResponse(request_id=request.request_id, refusal=refusal)


def payload(request: Request) -> bytes:
    return b"".join(request.parts)


def tickets(request: Request) -> list[list[object]]:
    return [section.tickets for section in request.sections]


def numbers(request: Request) -> list[tuple[int, int]]:
    """(producer id, sequence) of each section as encoded."""
    headers = [header for _, header in walk_sections(payload(request), len(request.sections))]
    return [(header.producer_id, header.base_sequence) for header in headers]


def test_a_lone_message_goes_at_once(driver: Driver) -> None:
    driver.add(0, "a")
    assert tickets(driver.must_request()) == [["a"]]


def test_what_queues_up_while_a_request_is_out_goes_together(driver: Driver) -> None:
    driver.add(0, "a")
    first = driver.must_request()
    for name in "bcd":
        driver.add(0, name)
    driver.add(1, "e")
    assert driver.request() is None
    driver.window.on_response(stored(first), 0)
    assert tickets(driver.must_request()) == [["b", "c", "d"], ["e"]]


def test_enough_bytes_are_worth_a_second_request_in_flight(driver: Driver) -> None:
    driver.add(0, "a")
    driver.must_request()
    driver.add(0, "b", size=PIPELINE_BYTES)
    assert tickets(driver.must_request()) == [["b"]]


def test_beside_many_requests_only_large_ones_are_cut_and_not_without_end(driver: Driver) -> None:
    for name in range(MANY_IN_FLIGHT):
        driver.add(0, name, size=PIPELINE_BYTES)
        driver.must_request()
    driver.add(0, "small", size=PIPELINE_BYTES)
    assert driver.request() is None
    driver.add(1, "rest", size=LARGE_BYTES - PIPELINE_BYTES)
    assert tickets(driver.must_request()) == [["small"], ["rest"]]
    for name in range(MANY_IN_FLIGHT + 1, MAX_IN_FLIGHT):
        driver.add(name % 2, name, size=LARGE_BYTES)
        driver.must_request()
    for name in range(8):
        driver.add(name % 2, name, size=LARGE_BYTES)
    assert driver.request() is None


def test_a_request_is_bounded_in_bytes(driver: Driver) -> None:
    for name in range(8):
        driver.add(name % 2, name, size=400 * 1024)
    assert len(payload(driver.must_request())) <= MAX_REQUEST_BYTES


def test_a_request_is_cut_to_what_the_group_takes(driver: Driver) -> None:
    driver.window.limit(100 * 1024)
    for name in range(40):
        driver.add(name % 2, name, size=10 * 1024)
    sizes = []
    while driver.window.wants_to_send:
        request = driver.must_request()
        sizes.append(len(payload(request)))
        driver.window.on_response(stored(request), 0)
    assert max(sizes) <= 100 * 1024
    assert sum(sizes) > 400 * 1024


def test_sequences_count_records_and_go_on_from_section_to_section(driver: Driver) -> None:
    for name in "abc":
        driver.add(0, name)
    first = driver.must_request()
    driver.window.on_response(stored(first), 0)
    driver.add(0, "d")
    assert numbers(first) == [(1, 0)]
    assert numbers(driver.must_request()) == [(1, 3)]


def test_an_answer_tells_the_offset_of_each_section(driver: Driver) -> None:
    driver.add(0, "a")
    driver.add(1, "b")
    outcome = driver.window.on_response(stored(driver.must_request(), base=40), 0)
    assert [(each.section.tickets, each.base_offset) for each in outcome.delivered] == [
        (["a"], 40),
        (["b"], 41),
    ]
    assert driver.window.idle


def test_after_a_broken_stream_the_same_bytes_go_again(driver: Driver) -> None:
    driver.add(0, "a")
    before = payload(driver.must_request())
    driver.window.on_disconnect()
    assert payload(driver.must_request()) == before


def test_what_was_never_sent_can_move_to_another_group(driver: Driver) -> None:
    driver.add(0, "a")
    driver.must_request()
    driver.window.on_disconnect(sent=False)
    assert [section.tickets for section in driver.window.release()] == [["a"]]


def test_what_was_sent_before_the_connection_failed_does_not_move(driver: Driver) -> None:
    driver.add(0, "a")
    driver.must_request()
    driver.window.on_disconnect()
    driver.must_request()
    driver.window.on_disconnect(sent=False)
    assert driver.window.release() == []


def test_after_a_broken_stream_open_sections_go_before_new_ones(driver: Driver) -> None:
    driver.add(0, "a")
    driver.must_request()
    driver.add(0, "b")
    driver.window.on_disconnect()
    assert tickets(driver.must_request()) == [["a"], ["b"]]


def test_a_refused_section_waits_until_nothing_of_its_queue_is_in_flight(driver: Driver) -> None:
    driver.add(0, "a")
    first = driver.must_request()
    driver.add(0, "b", size=PIPELINE_BYTES)
    second = driver.must_request()
    driver.window.on_response(refused(first, pb.TOO_MANY_REQUESTS, retry_after_ms=5, retryable=True), 0)
    assert driver.request(10) is None, "b is still out: a must not overtake it"
    driver.window.on_response(refused(second, pb.SEQUENCE_GAP), 10)
    again = driver.must_request(20)
    assert tickets(again) == [["a"], ["b"]]
    assert numbers(again) == [(1, 0), (1, 1)], "the numbers stay: the broker still expects them"


def test_a_pause_is_kept(driver: Driver) -> None:
    driver.add(0, "a")
    driver.window.on_response(refused(driver.must_request(), pb.TOO_MANY_REQUESTS, retry_after_ms=50), 100)
    assert driver.request(149) is None
    assert driver.request(150) is not None


def test_not_leader_asks_for_another_node(driver: Driver) -> None:
    driver.add(0, "a")
    outcome = driver.window.on_response(
        refused(driver.must_request(), pb.NOT_LEADER, leader_address="n2:1"), 0
    )
    assert (outcome.find_leader, outcome.leader_hint) == (True, "n2:1")
    assert tickets(driver.must_request()) == [["a"]]


def test_a_final_refusal_fails_the_section_and_what_follows_is_numbered_anew(driver: Driver) -> None:
    driver.add(0, "a")
    outcome = driver.window.on_response(refused(driver.must_request(), pb.MESSAGE_TOO_LARGE), 0)
    assert [each.section.tickets for each in outcome.failed] == [["a"]]
    driver.add(0, "b")
    assert numbers(driver.must_request()) == [(3, 0)]


def test_a_broker_that_forgot_the_producer_gets_the_records_numbered_anew(driver: Driver) -> None:
    driver.add(0, "a")
    driver.window.on_response(stored(driver.must_request()), 0)
    driver.add(0, "b")
    driver.window.on_response(refused(driver.must_request(), pb.SEQUENCE_GAP), 0)
    assert numbers(driver.must_request()) == [(3, 0)]


def test_what_may_be_stored_is_never_renumbered(driver: Driver) -> None:
    driver.add(0, "a")
    first = driver.must_request()
    driver.add(0, "b", size=PIPELINE_BYTES)
    driver.must_request()
    driver.window.on_response(refused(first, pb.MESSAGE_TOO_LARGE), 0)
    driver.window.on_disconnect()
    again = driver.must_request()
    assert numbers(again) == [(1, 1)], "b may be stored under its old number"
    driver.window.on_response(refused(again, pb.SEQUENCE_GAP), 0)
    assert numbers(driver.must_request()) == [(3, 0)], "now it is certain that it is not"


def test_a_section_fails_at_its_deadline_and_says_whether_it_was_sent(driver: Driver) -> None:
    driver.add(0, "sent")
    request = driver.must_request()
    driver.add(1, "waiting")
    failed = {each.section.tickets[0]: each.sent for each in driver.window.expire(1000)}
    assert failed == {"sent": True, "waiting": False}
    assert driver.window.expire(2000) == []
    assert driver.window.on_response(stored(request), 2000).delivered == [], "its caller was told already"


def test_messages_that_come_late_do_not_inherit_an_old_deadline(driver: Driver) -> None:
    driver.add(0, "out")
    driver.must_request()
    driver.add(0, "early", now=0)
    driver.add(0, "late", now=900)
    expired = [each.section.tickets for each in driver.window.expire(1000)]
    assert ["late"] not in expired
    assert ["early"] in expired


def test_a_message_that_cannot_be_encoded_leaves_no_empty_section(driver: Driver) -> None:
    driver.window.open_section(driver.lanes[0], 0, 1000, 10)
    assert driver.request() is None


@pytest.mark.parametrize("code", [pb.DISK_FULL, pb.TOO_MANY_REQUESTS, pb.NO_QUORUM, pb.NOT_LEADER])
def test_a_refusal_before_the_broker_looked_says_nothing_of_an_earlier_copy(code: pb.RefusalCode) -> None:
    """The first copy may be stored: it must not go to another broker group, nor count as not stored."""
    driver = Driver()
    driver.add(0, "a")
    first = driver.must_request()
    driver.window.on_disconnect()
    again = driver.must_request(1)
    assert payload(again) == payload(first)
    driver.window.on_response(refused(again, code, retryable=True), 1)
    assert driver.window.release() == []
    (failed,) = driver.window.expire(5_000)
    assert failed.sent, "it may be stored"


def test_sections_that_certainly_are_not_stored_can_move_to_another_group() -> None:
    driver, other = Driver(), Driver()
    driver.add(0, "refused")
    driver.add(1, "ordered", fifo=True)
    driver.window.on_response(refused(driver.must_request(), pb.DISK_FULL), 0)
    driver.add(0, "waiting", now=1)
    moved = driver.window.release()
    assert [section.tickets for section in moved] == [["refused"], ["waiting"]]
    for section in moved:
        other.window.adopt(section, other.lanes[1])
    request = other.must_request()
    assert tickets(request) == [["refused"], ["waiting"]]
    assert decode_section(payload(request)).queue_id == 1


def test_a_topic_that_was_created_again_takes_over_what_is_not_stored(driver: Driver) -> None:
    driver.add(0, "a")
    outcome = driver.window.on_response(refused(driver.must_request(), pb.STALE_ROUTE), 0)
    assert outcome.refresh_topics == {"orders"}
    driver.window.lane(MessageQueue("orders", "g0", 0), 8)
    request = driver.must_request(1000)
    assert tickets(request) == [["a"]]
    assert decode_section(payload(request)).topic_id == 8


def test_what_was_in_flight_when_its_topic_was_created_again_follows_when_it_is_refused(
    driver: Driver,
) -> None:
    driver.add(0, "a")
    request = driver.must_request()
    driver.window.lane(MessageQueue("orders", "g0", 0), 8)
    driver.window.on_response(refused(request, pb.STALE_ROUTE), 0)
    again = driver.must_request(1000)
    assert (tickets(again), decode_section(payload(again)).topic_id) == ([["a"]], 8)


def test_what_is_open_of_an_old_topic_still_has_its_deadline(driver: Driver) -> None:
    driver.add(0, "a")
    driver.must_request()
    driver.window.lane(MessageQueue("orders", "g0", 0), 8)
    assert [each.section.tickets for each in driver.window.expire(1000)] == [["a"]]


def test_what_is_given_up_with_its_broker_group_may_be_stored_only_if_it_was_sent(driver: Driver) -> None:
    driver.add(0, "refused")
    driver.window.on_response(refused(driver.must_request(), pb.DISK_FULL, retry_after_ms=1_000), 0)
    driver.add(1, "sent before, without an answer")
    driver.must_request(1_000)
    driver.window.on_disconnect()
    driver.window.on_response(refused(driver.must_request(1_000), pb.NOT_LEADER), 1_000)
    driver.add(1, "waits", now=1_000)
    failed = {each.section.tickets[0]: each.sent for each in driver.window.give_up_all()}
    assert failed == {"refused": True, "sent before, without an answer": True, "waits": False}
    assert driver.window.idle
    assert driver.request(2_000) is None


def test_what_was_refused_for_good_is_given_up_as_not_stored_and_what_is_in_flight_as_perhaps_stored() -> (
    None
):
    driver = Driver()
    driver.add(0, "refused")
    driver.window.on_response(refused(driver.must_request(), pb.DISK_FULL, retry_after_ms=1), 0)
    assert [each.sent for each in driver.window.give_up_all()] == [False]
    driver.add(0, "in flight")
    driver.must_request(1)
    assert [each.sent for each in driver.window.give_up_all()] == [True]


def test_what_was_given_up_is_not_given_up_again_with_its_broker_group(driver: Driver) -> None:
    driver.add(0, "a")
    driver.must_request()
    assert len(driver.window.expire(1000)) == 1
    assert driver.window.give_up_all() == []
    assert driver.window.idle


# --- against a broker that loses streams, answers and leaders -----------------------------------------------


class Broker:
    """Stores by the rules: in sequence, each once."""

    def __init__(self) -> None:
        self.log: dict[tuple[int, int], list[object]] = {}
        self.next: dict[tuple[int, int], int] = {}
        self.known: dict[tuple[int, int, int], int] = {}

    def answer(self, request: Request, fault: str) -> log_pb2.ProduceResponse:
        if fault in ("NOT_LEADER", "TOO_MANY_REQUESTS", "DISK_FULL", "OUTCOME_UNKNOWN"):
            return refused(request, getattr(pb, fault))
        answer = log_pb2.ProduceResponse(request_id=request.request_id)
        headers = [header for _, header in walk_sections(payload(request), len(request.sections))]
        for section, header in zip(request.sections, headers, strict=True):
            stream = (header.producer_id, header.queue_id)
            key = (*stream, header.base_sequence)
            log = self.log.setdefault((header.topic_id, header.queue_id), [])
            if key in self.known:
                answer.results.add(base_queue_offset=self.known[key], count=header.count, duplicate=True)
            elif self.next.get(stream, 0) != header.base_sequence:
                answer.results.add(refusal=pb.Refusal(code=pb.SEQUENCE_GAP))
            else:
                self.known[key] = len(log)
                self.next[stream] = header.base_sequence + header.count
                answer.results.add(base_queue_offset=len(log), count=header.count)
                log.extend(section.tickets)
        return answer


faults = st.sampled_from(
    ["", "", "", "lost request", "lost answer", "NOT_LEADER", "TOO_MANY_REQUESTS", "OUTCOME_UNKNOWN"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), faults), min_size=1, max_size=40))
def test_every_message_is_stored_once_and_in_order_whatever_breaks(script: list[tuple[int, str]]) -> None:
    driver, broker, now, count = Driver(), Broker(), 0, 0
    delivered: dict[object, tuple[Lane, int]] = {}
    script += [(0, "")] * 60
    for messages, fault in script:
        for _ in range(messages):
            driver.add(count % 2, count, size=PIPELINE_BYTES // 2, now=now)
            count += 1
        out = []
        while (request := driver.request(now)) is not None:
            out.append(request)
        broken = False
        for request in out:
            if broken or fault == "lost request":
                broken = True
                break
            answer = broker.answer(request, fault)
            if fault == "lost answer":
                broken = True
                break
            for each in driver.window.on_response(answer, now).delivered:
                for i, ticket in enumerate(each.section.tickets):
                    delivered[ticket] = (each.section.lane, each.base_offset + i)
        if broken:
            driver.window.on_disconnect()
        now += 600
    assert driver.window.idle
    for lane in driver.lanes:
        log = broker.log.get((7, lane.queue.queue_id), [])
        assert log == [ticket for ticket in range(count) if ticket % 2 == lane.queue.queue_id]
        assert all(log[offset] == ticket for ticket, (where, offset) in delivered.items() if where is lane)
    assert len(delivered) == count

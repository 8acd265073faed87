"""Hand-written wire bytes of Produce and Fetch are those of the generated code."""

from __future__ import annotations

import pytest

from ledgermq.broker import log_wire
from ledgermq.proto import log_pb2
from ledgermq.proto.record import MAX_BODY_SIZE, SectionKind, encode_record, encode_section


def section(records: int = 2, flags: int = 0) -> bytearray:
    parts, distance = [], 64
    for i in range(records):
        record = encode_record(
            b"",
            b"body%d" % i,
            section_distance=distance,
            body_offset_in_rest=0,
            body_size=5,
            message_id=bytes(16),
            born_timestamp=1,
            flags=flags,
        )
        parts.append(record)
        distance += len(record)
    return encode_section(SectionKind.RECORDS, parts, records, topic_id=3, queue_id=1, producer_id=9)


def test_a_request_is_split_without_decoding_it() -> None:
    raw = log_pb2.ProduceRequest(
        request_id=300, sections=bytes(section()) * 2, section_count=2
    ).SerializeToString()
    request_id, sections, count = log_wire.split_produce_request(raw)
    assert (request_id, count) == (300, 2)
    found = log_wire.checked_sections(request_id, sections, count)
    assert [(each.header.topic_id, each.header.count) for each in found] == [(3, 2), (3, 2)]
    assert bytes(found[0].header_bytes) + bytes(found[0].body) == bytes(section())


@pytest.mark.parametrize("position", [20, 70, 130])
def test_a_damaged_section_is_refused_before_it_is_stored(position: int) -> None:
    raw = section()
    raw[position] ^= 0x40
    with pytest.raises(log_wire.BadProduceRequestError) as error:
        log_wire.checked_sections(7, memoryview(raw), 1)
    assert error.value.request_id == 7
    assert error.value.corrupt


def test_commands_and_empty_requests_cannot_be_produced() -> None:
    commands = encode_section(SectionKind.COMMANDS, [bytes(8)], 1)
    for raw, count in ((commands, 1), (bytearray(), 0)):
        with pytest.raises(log_wire.BadProduceRequestError) as error:
            log_wire.checked_sections(7, memoryview(raw), count)
        assert not error.value.corrupt


def test_a_truncated_request_is_refused() -> None:
    with pytest.raises(log_wire.BadProduceRequestError):
        log_wire.split_produce_request(b"\x08")


def test_a_fetch_response_is_what_the_generated_code_reads() -> None:
    frame = log_wire.QueueFrame(3, 1)
    frame.add(b"section", 1_700_000_000_000, 4096)
    frame.add(b"", 0, 0)
    refused = log_wire.QueueFrame(4, 0)
    refused.refuse(b"\x08\x0f")
    raw = log_wire.fetch_response([frame.close(0, 300), refused.close(-1, 2)], 77, "n1", True)
    response = log_pb2.FetchResponse.FromString(raw)
    assert (response.applied_index, response.node_id, response.stale) == (77, "n1", True)
    first, second = response.queues
    assert (first.topic_id, first.queue_id, first.end_offset) == (3, 1, 300)
    assert (first.sections[0].section, first.sections[0].physical_offset) == (b"section", 4096)
    assert len(first.sections) == 2
    assert (second.refusal.code, second.begin_offset) == (15, -1)


def test_more_sections_than_one_entry_can_hold_are_refused() -> None:
    raw = bytes(section(1)) * 3
    with pytest.raises(log_wire.BadProduceRequestError, match="70000 sections in one request") as error:
        log_wire.checked_sections(7, memoryview(raw), 70_000)
    assert not error.value.corrupt


def test_a_body_above_the_limit_is_refused_by_the_broker_too() -> None:
    body = bytes(MAX_BODY_SIZE + 1)
    record = encode_record(
        b"",
        body,
        section_distance=64,
        body_offset_in_rest=0,
        body_size=len(body),
        message_id=bytes(16),
        born_timestamp=1,
    )
    raw = encode_section(SectionKind.RECORDS, [record], 1, topic_id=3)
    with pytest.raises(log_wire.BadProduceRequestError, match="more than 4194304 bytes"):
        log_wire.checked_sections(7, memoryview(raw), 1)


@pytest.mark.parametrize("records", [1, 3, 9])
def test_flags_without_a_meaning_are_refused(records: int) -> None:
    assert log_wire.checked_sections(7, memoryview(section(records, flags=15)), 1)
    with pytest.raises(log_wire.BadProduceRequestError, match="no meaning") as error:
        log_wire.checked_sections(7, memoryview(section(records, flags=0xFFFF)), 1)
    assert not error.value.corrupt

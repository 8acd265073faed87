"""Hand-written wire bytes of Produce and Fetch are those of the generated code."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq.broker.wire import native as log_wire
from ledgermq.client.produce.encoding import RecordEncoder
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


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80" * (256 << 10),
        b"\x08" + b"\xff" * (256 << 10),
        b"\x08" + b"\xff" * 9 + b"\x02",  # a request id of 65 bits has no place in the answer
        b"\x2a\x7f",  # a field that reaches beyond the end
    ],
)
def test_numbers_without_an_end_and_lengths_beyond_it_are_refused(raw: bytes) -> None:
    with pytest.raises(log_wire.BadProduceRequestError) as refused:
        log_wire.split_produce_request(raw)
    assert refused.value.corrupt


def test_a_section_of_more_records_than_fit_is_damaged() -> None:
    raw = section(8)
    raw[16:20] = b"\xff" * 4
    with pytest.raises(log_wire.BadProduceRequestError) as refused:
        log_wire.checked_sections(7, memoryview(bytes(raw)), 1)
    assert refused.value.corrupt and refused.value.request_id == 7


def test_a_fetch_response_is_what_the_generated_code_reads() -> None:
    frame = log_wire.QueueFrame(3, 1)
    frame.add(b"section", 1_700_000_000_000, 4096)
    frame.add(b"", 0, 0)
    refused = log_wire.QueueFrame(4, 0)
    refused.refuse(b"\x08\x0f")
    raw = log_wire.fetch_response([frame.close(0, 300), refused.close(-1, 2)], 77, "n1", True)
    response = log_pb2.FetchResponse.FromString(raw)
    assert (response.applied_index, response.node_id, response.stale) == (77, "n1", True)
    assert response.suggested_node_id == ""
    first, second = response.queues
    assert (first.topic_id, first.queue_id, first.end_offset) == (3, 1, 300)
    assert (first.sections[0].section, first.sections[0].physical_offset) == (b"section", 4096)
    assert len(first.sections) == 2
    assert (second.refusal.code, second.begin_offset) == (15, -1)


def test_a_fetch_response_names_the_node_to_ask_next() -> None:
    response = log_pb2.FetchResponse.FromString(log_wire.fetch_response([], 0, "n1", False, "n2"))
    assert (response.node_id, response.suggested_node_id, response.stale) == ("n1", "n2", False)


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
    assert log_wire.checked_sections(7, memoryview(section(records, flags=11)), 1)
    with pytest.raises(log_wire.BadProduceRequestError, match="no meaning") as error:
        log_wire.checked_sections(7, memoryview(section(records, flags=0xFFFF)), 1)
    assert not error.value.corrupt


@pytest.mark.parametrize("records", [1, 3, 9])
def test_only_brokers_mark_copies(records: int) -> None:
    with pytest.raises(log_wire.BadProduceRequestError, match="marked as a copy") as error:
        log_wire.checked_sections(7, memoryview(section(records, flags=4)), 1)
    assert not error.value.corrupt


def labelled(records: int, *, system: int = 0, before_body: int = 0, keys: int = 0) -> memoryview:
    """A section whose last record has so many bytes of labels; the others have none."""
    parts, distance = [], 64
    for i in range(records):
        last = i == records - 1
        record = encode_record(
            bytes(system * last),
            bytes(before_body * last) + b"body",
            section_distance=distance,
            body_offset_in_rest=before_body * last,
            body_size=4,
            message_id=bytes(16),
            born_timestamp=1,
            key_hashes=[1] * (keys * last),
        )
        parts.append(record)
        distance += len(record)
    return memoryview(encode_section(SectionKind.RECORDS, parts, records, topic_id=3))


@pytest.mark.parametrize("records", [1, 3, 9])
@pytest.mark.parametrize(
    "labels", [{"system": 20_000}, {"before_body": 20_000}, {"system": 10_000, "before_body": 10_000}]
)
def test_labels_above_16_kib_are_refused(records: int, labels: dict[str, int]) -> None:
    with pytest.raises(log_wire.BadProduceRequestError, match="have more than 16384 bytes") as error:
        log_wire.checked_sections(7, labelled(records, **labels), 1)
    assert not error.value.corrupt


def test_more_keys_than_allowed_are_refused() -> None:
    assert log_wire.checked_sections(7, labelled(2, system=5000, keys=1024), 1)
    with pytest.raises(log_wire.BadProduceRequestError, match="3000 keys; at most 1024"):
        log_wire.checked_sections(7, labelled(2, system=5000, keys=3000), 1)


@pytest.mark.parametrize(
    ("tag", "keys", "properties"),
    [
        ("t" * 16_384, (), {}),
        ("", ("k" * 16_384,), {}),
        ("", ["k" * 16] * 1024, {}),
        ("", (), {f"{i:064}": "v" * 64 for i in range(128)}),
    ],
)
def test_the_most_that_the_client_lets_through_is_taken(
    tag: str, keys: Sequence[str], properties: dict[str, str]
) -> None:
    encoder = RecordEncoder("t" * 127, born_host="h" * 255)
    record = encoder.encode(64, b"x", (bytes(16), "01" + 32 * "0"), 1, tag, keys, properties, "g" * 63)
    raw = encode_section(SectionKind.RECORDS, [record], 1, topic_id=3)
    assert log_wire.checked_sections(7, memoryview(raw), 1)


def test_a_group_may_take_smaller_messages_only() -> None:
    record = RecordEncoder("t", born_host="h", compress_above=None).encode(
        64, bytes(2000), (bytes(16), "01" + 32 * "0"), 1
    )
    raw = memoryview(encode_section(SectionKind.RECORDS, [record], 1, topic_id=3))
    assert log_wire.checked_sections(7, raw, 1, 2000)
    with pytest.raises(log_wire.BadProduceRequestError, match="more than 1999 bytes"):
        log_wire.checked_sections(7, raw, 1, 1999)

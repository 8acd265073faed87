"""Hand-written wire bytes of Produce and Fetch are those of the generated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ledgermq.broker.wire import native as log_wire
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.proto import log_pb2
from ledgermq.proto.entry import Buffer
from ledgermq.proto.record import MAX_BODY_SIZE, SectionKind, encode_record, encode_section


def section(
    records: int = 2,
    body: bytes = b"body",
    *,
    flags: int = 0,
    system: int = 0,
    before: int = 0,
    keys: int = 0,
) -> bytearray:
    """Return a section whose last record has so many bytes of labels and so many keys; the others none."""
    parts, distance = [], 64
    for labels in [0] * (records - 1) + [1]:
        record = encode_record(
            bytes(system * labels), bytes(before * labels) + body, section_distance=distance,
            body_offset_in_rest=before * labels, body_size=len(body), message_id=bytes(16), born_timestamp=1,
            key_hashes=[1] * (keys * labels), flags=flags,
        )  # fmt: skip
        parts.append(record)
        distance += len(record)
    return encode_section(SectionKind.RECORDS, parts, records, topic_id=3, queue_id=1, producer_id=9)


def check_refused(
    raw: Buffer,
    match: str | None = None,
    *,
    count: int = 1,
    corrupt: bool = False,
    body_max: int = MAX_BODY_SIZE,
) -> None:
    with pytest.raises(log_wire.BadProduceRequestError, match=match) as refused:
        log_wire.checked_sections(7, memoryview(raw), count, body_max)
    assert (refused.value.request_id, refused.value.corrupt) == (7, corrupt)


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
    check_refused(raw, corrupt=True)


def test_commands_and_empty_requests_cannot_be_produced() -> None:
    check_refused(encode_section(SectionKind.COMMANDS, [bytes(8)], 1))
    check_refused(b"", count=0)


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
    check_refused(raw, corrupt=True)


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
    check_refused(section(1) * 3, "70000 sections in one request", count=70_000)


def test_a_body_above_the_limit_is_refused_by_the_broker_too() -> None:
    check_refused(section(1, bytes(MAX_BODY_SIZE + 1)), "more than 4194304 bytes")
    raw = section(1, bytes(2000))
    assert log_wire.checked_sections(7, memoryview(raw), 1, 2000)
    check_refused(raw, "more than 1999 bytes", body_max=1999)


@pytest.mark.parametrize("records", [1, 3, 9])
def test_flags_without_a_meaning_and_marks_of_brokers_are_refused(records: int) -> None:
    assert log_wire.checked_sections(7, memoryview(section(records, flags=11)), 1)
    check_refused(section(records, flags=0xFFFF), "no meaning")
    check_refused(section(records, flags=4), "marked as a copy")


@pytest.mark.parametrize("records", [1, 3, 9])
@pytest.mark.parametrize(
    "labels", [{"system": 20_000}, {"before": 20_000}, {"system": 10_000, "before": 10_000}]
)
def test_labels_above_16_kib_are_refused(records: int, labels: dict[str, Any]) -> None:
    check_refused(section(records, **labels), "have more than 16384 bytes")


def test_more_keys_than_allowed_are_refused() -> None:
    assert log_wire.checked_sections(7, memoryview(section(2, system=5000, keys=1024)), 1)
    check_refused(section(2, system=5000, keys=3000), "3000 keys; at most 1024")


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

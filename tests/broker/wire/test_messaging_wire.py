"""Messages through the wire: what a producer sent comes out, plus what the server adds."""

from __future__ import annotations

import hashlib

import pytest

from ledgermq.broker.wire import official as wire
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import SECTION_HEADER_SIZE, RecordFlags, decode_record, encode_record, hash_text
from ledgermq.proto.varint import read_varint


def sent(body: bytes = b"hello", **system: object) -> v2.Message:
    message = v2.Message(topic=v2.Resource(name="orders"), body=body)
    message.user_properties["colour"] = "red"
    message.system_properties.message_id = "01" + "AB" * 16
    for name, value in system.items():
        setattr(message.system_properties, name, value)
    return message


def delivered(message: v2.Message) -> v2.Message:
    record = decode_record(wire.outgoing_record(message).encode(SECTION_HEADER_SIZE))
    delivery = wire.OutgoingDelivery(3, 41, 1_700_000_000_123, "127.0.0.1:8081", "handle", 2)
    frame = v2.ReceiveMessageResponse.FromString(wire.message_frame(wire.delivered_message(record, delivery)))
    return frame.message


def test_a_message_arrives_as_it_was_sent_with_the_fields_of_the_server() -> None:
    message = delivered(sent(tag="t"))
    system = message.system_properties
    assert (message.topic.name, message.body) == ("orders", b"hello")
    assert dict(message.user_properties) == {"colour": "red"}
    assert (system.tag, system.message_id) == ("t", "01" + "AB" * 16)
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 41, 2)
    assert (system.receipt_handle, system.store_host) == ("handle", "127.0.0.1:8081")
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert (system.body_encoding, system.message_type) == (v2.IDENTITY, v2.NORMAL)
    assert system.body_digest.checksum == hashlib.md5(b"hello").hexdigest().upper()


def test_one_system_properties_field_is_written() -> None:
    record = decode_record(wire.outgoing_record(sent()).encode(SECTION_HEADER_SIZE))
    data = wire.delivered_message(record, wire.OutgoingDelivery(0, 0, 0, "h:1", "x", 1))
    fields, position = [], 0
    while position < len(data):
        fields.append(data[position] >> 3)
        size, position = read_varint(data, position + 1)
        position += size
    assert fields.count(3) == 1


def test_a_producer_cannot_set_the_fields_of_the_server() -> None:
    message = sent(receipt_handle="forged", delivery_attempt=9, queue_offset=7)
    message.system_properties.store_timestamp.FromNanoseconds(999_999_999)
    system = delivered(message).system_properties
    assert (system.receipt_handle, system.delivery_attempt, system.queue_offset) == ("handle", 2, 41)
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_123


def test_a_digest_that_the_producer_sent_is_kept() -> None:
    message = sent()
    message.system_properties.body_digest.type = v2.SHA1
    message.system_properties.body_digest.checksum = "AA"
    assert delivered(message).system_properties.body_digest.checksum == "AA"


def test_flags_and_hashes_stand_in_the_record() -> None:
    message = sent(tag="t", message_group="g", body_encoding=v2.GZIP)
    message.system_properties.keys.append("k")
    record = decode_record(wire.outgoing_record(message).encode(SECTION_HEADER_SIZE))
    assert record.flags == RecordFlags.GZIP | RecordFlags.V1_ID | RecordFlags.FIFO
    assert record.tag_hash == hash_text("t")
    assert record.key_hashes == (hash_text("k") & 0xFFFFFFFFFFFFFFFF,)
    assert bytes(record.body) == b"hello"


def test_fields_are_found_without_decoding_them() -> None:
    run = v2.SystemProperties(
        tag="t", keys=["a", "b"], queue_offset=300, message_group="g"
    ).SerializeToString()
    assert wire.present_fields(run) == 1 << 1 | 1 << 2 | 1 << 14 | 1 << 17
    with pytest.raises((ValueError, IndexError)):
        wire.present_fields(run[:-1])


def test_javas_string_hash() -> None:
    assert wire.java_string_hash("hello") == 99162322
    assert wire.java_string_hash("") == 0
    assert wire.java_string_hash("polygenelubricants") == -(1 << 31)


def test_more_queues_move_few_message_groups() -> None:
    groups = [f"group-{i}" for i in range(1000)]
    moved = sum(wire.queue_of_group(g, 8) != wire.queue_of_group(g, 9) for g in groups)
    assert 50 < moved < 200
    assert {wire.queue_of_group(g, 8) for g in groups} == set(range(8))


@pytest.mark.parametrize(
    ("system", "before_body"), [(b"\x1a\xff\xff\x0f", b"\x1a\xff\xff\x0f"), (b"", b"\x22\x04")]
)
def test_a_record_that_is_no_protobuf_or_has_no_topic_is_delivered_with_what_can_be_read_of_it(
    system: bytes, before_body: bytes
) -> None:
    raw = encode_record(
        system, before_body + b"body", section_distance=SECTION_HEADER_SIZE,
        body_offset_in_rest=len(before_body), body_size=4, message_id=bytes(16), born_timestamp=1 << 62,
    )  # fmt: skip
    delivery = wire.OutgoingDelivery(3, 77, 1_000, "127.0.0.1:8081", "handle", 1, "orders")
    message = v2.Message.FromString(wire.delivered_message(decode_record(raw), delivery))
    assert (message.topic.name, message.body) == ("orders", b"body")
    found = message.system_properties
    assert (found.queue_id, found.queue_offset, found.receipt_handle) == (3, 77, "handle")
    assert found.message_id == "00" * 16

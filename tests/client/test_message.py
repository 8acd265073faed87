"""Messages whose bytes are not what they say: named where they are looked at, and passed by who goes on."""

from __future__ import annotations

import gzip

import pytest

from ledgermq.client.errors import CorruptMessageError
from ledgermq.client.message import LeasedMessage, MessageQueue, MessageView
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import RecordFlags, encode_record

QUEUE = MessageQueue("orders", "g0", 2)
GARBAGE = b"\x1a\xff\xff\x0f"


def view(offset: int, body: bytes, *, flags: int = 0, system: bytes = b"") -> MessageView:
    record = encode_record(
        system,
        body,
        section_distance=64,
        body_offset_in_rest=0,
        body_size=len(body),
        message_id=bytes(16),
        born_timestamp=1,
        tag_hash=1,
        flags=flags,
    )
    return MessageView(record, 0, QUEUE, offset, 1)


@pytest.mark.parametrize(
    "body", [b"plain", b"\x1f\x8bplain", gzip.compress(b"cut short" * 99, mtime=0)[:-20]]
)
def test_a_body_that_is_not_compressed_as_it_says_names_its_place(body: bytes) -> None:
    with pytest.raises(CorruptMessageError, match='offset 7 of topic "orders" queue 2') as error:
        _ = view(7, body, flags=RecordFlags.GZIP).body
    assert error.value.queue_offset == 7


def test_a_loop_that_catches_the_error_gets_what_is_behind_it() -> None:
    bodies = []
    for message in (view(7, b"plain", flags=RecordFlags.GZIP), view(8, b"good")):
        try:
            bodies.append(message.body)
        except CorruptMessageError:
            continue
    assert bodies == [b"good"]


def test_properties_that_cannot_be_decoded_name_their_place_and_leave_the_body_readable() -> None:
    message = view(7, GARBAGE, system=GARBAGE, flags=0xFFF0)
    for attribute in ("tag", "properties"):
        with pytest.raises(CorruptMessageError, match="offset 7"):
            getattr(message, attribute)
    assert message.body == GARBAGE
    assert message.message_id == "00" * 16


def test_a_leased_message_names_its_place_too() -> None:
    raw = v2.Message(topic=v2.Resource(name="orders"), body=b"plain")
    raw.system_properties.queue_id, raw.system_properties.queue_offset = 2, 7
    raw.system_properties.body_encoding = v2.GZIP
    with pytest.raises(CorruptMessageError, match='offset 7 of topic "orders" queue 2'):
        _ = LeasedMessage(raw, "g0").body

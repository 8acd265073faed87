"""Messages whose bytes are not what they say: named where they are looked at, and passed by who goes on."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from ledgermq.client.errors import CorruptMessageError
from ledgermq.client.message import LeasedMessage, MessageQueue, MessageView, unpack_body
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import MAX_BODY_SIZE, RecordFlags, encode_record

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


GZIP_FORM, ZLIB_FORM = 31, 15


def packed_zeros(size: int, form: int) -> bytes:
    """Compress so many zeros without ever having them."""
    packer = zlib.compressobj(9, wbits=form)
    step = bytes(1 << 20)
    parts = [packer.compress(step[: size - at]) for at in range(0, size, len(step))]
    return b"".join([*parts, packer.flush()])


@pytest.mark.parametrize("form", [GZIP_FORM, ZLIB_FORM])
def test_a_small_body_that_stands_for_a_huge_one_is_not_unpacked(form: int) -> None:
    bomb = packed_zeros(100 << 20, form)
    assert len(bomb) < 200_000
    message = view(7, bomb, flags=RecordFlags.GZIP)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMessageError, match=r"offset 7 .* more than 4,194,304 bytes .* read_body"):
            _ = message.body
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BODY_SIZE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", [GZIP_FORM, ZLIB_FORM])
def test_a_body_may_have_all_that_a_producer_may_send_and_more_when_it_is_asked_for(form: int) -> None:
    largest = view(7, packed_zeros(MAX_BODY_SIZE, form), flags=RecordFlags.GZIP)
    assert largest.body == bytes(MAX_BODY_SIZE)
    larger = view(8, packed_zeros(MAX_BODY_SIZE + 1, form), flags=RecordFlags.GZIP)
    with pytest.raises(CorruptMessageError, match="offset 8"):
        _ = larger.body
    assert larger.read_body(5_000_000) == bytes(MAX_BODY_SIZE + 1)
    raw = v2.Message(topic=v2.Resource(name="orders"), body=packed_zeros(MAX_BODY_SIZE + 1, form))
    raw.system_properties.body_encoding = v2.GZIP
    leased = LeasedMessage(raw, "g0")
    with pytest.raises(CorruptMessageError, match="more than 4,194,304 bytes"):
        _ = leased.body
    assert leased.read_body(5_000_000) == bytes(MAX_BODY_SIZE + 1)


def test_members_of_gzip_count_together() -> None:
    parts = [gzip.compress(b"%d" % number * 10) for number in range(3)]
    assert unpack_body(b"".join([*parts, bytes(9)]), True) == b"000000000011111111112222222222"
    with pytest.raises(ValueError, match="more than 25 bytes"):
        unpack_body(b"".join(parts), True, 25)
    with pytest.raises(ValueError, match="more than 64 parts"):
        unpack_body(gzip.compress(b"") * 65, True)
    with pytest.raises(zlib.error):
        unpack_body(parts[0] + b"something else", True)

"""From messages to records: what the broker and the official clients will decode."""

from __future__ import annotations

import gzip
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.arguments import check_name, check_tag_filter
from ledgermq.client.errors import InvalidMessageError, InvalidNameError, MessageTooLargeError, UsageError
from ledgermq.client.message import MessageQueue, MessageView
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.client.produce.message_ids import MessageIdSource
from ledgermq.proto import rocketmq_v2_pb2 as v2
from ledgermq.proto.record import MAX_BODY_SIZE, RecordFlags, decode_record, hash_text, pack_message_id

IDS = MessageIdSource(b"\1\2\3\4\5\6", 4711)
NOW = 1_767_225_600_123


def encode(body: bytes = b"hello", **labels: Any) -> bytes:
    return RecordEncoder("orders", born_host="host").encode(64, body, IDS.next(NOW), NOW, **labels)


def view(record: bytes) -> MessageView:
    return MessageView(record, 0, MessageQueue("orders", "g0", 1), 5, NOW)


texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).filter(
    lambda text: text.strip() and "|" not in text
)


@given(
    st.binary(min_size=1, max_size=300),
    st.one_of(st.just(""), texts),
    st.lists(texts, max_size=3),
    st.dictionaries(texts, texts, max_size=3),
    st.one_of(st.just(""), texts.filter(lambda text: len(text.encode()) < 64)),
)
def test_what_is_encoded_by_hand_is_what_protobuf_decodes(
    body: bytes, tag: str, keys: list[str], properties: dict[str, str], message_group: str
) -> None:
    record = decode_record(
        encode(body, tag=tag, keys=keys, properties=properties, message_group=message_group)
    )
    rest = v2.Message.FromString(bytes(record.rest_run))
    system = v2.SystemProperties.FromString(bytes(record.system_run))
    assert (rest.topic.name, rest.body, dict(rest.user_properties)) == ("orders", body, properties)
    assert (system.tag, list(system.keys), system.message_group) == (tag, keys, message_group)
    assert system.message_type == (v2.FIFO if message_group else v2.NORMAL)
    assert system.body_encoding == v2.IDENTITY
    assert system.born_timestamp.ToMilliseconds() == record.born_timestamp == NOW
    assert system.born_host == "host"
    assert pack_message_id(system.message_id) == (record.message_id, RecordFlags.V1_ID)
    assert record.tag_hash == hash_text(tag)
    assert [key & (1 << 64) - 1 for key in map(hash_text, keys)] == list(record.key_hashes)
    assert bytes(record.body) == body
    assert bool(record.flags & RecordFlags.FIFO) == bool(message_group)


def test_a_view_decodes_what_was_sent() -> None:
    message = view(encode(b"hi", tag="a", keys=["k"], properties={"p": "q"}, message_group="m"))
    assert (message.body, message.tag, message.keys, message.properties) == (b"hi", "a", ("k",), {"p": "q"})
    assert (message.message_group, message.topic, message.queue_id, message.queue_offset) == (
        "m",
        "orders",
        1,
        5,
    )
    assert message.message_id.startswith("01010203040506")
    assert message.born_timestamp == NOW


def test_a_large_body_is_compressed_and_comes_back_as_it_was() -> None:
    body = b"abc" * 10_000
    record = encode(body)
    assert len(record) < 1000
    assert decode_record(record).flags & RecordFlags.GZIP
    assert gzip.decompress(bytes(decode_record(record).body)) == body
    assert view(record).body == body
    assert view(record).system_properties.body_encoding == v2.GZIP


def test_a_body_of_exactly_the_threshold_is_not_compressed() -> None:
    assert not decode_record(encode(b"a" * 4096)).flags & RecordFlags.GZIP
    assert decode_record(encode(b"a" * 4097)).flags & RecordFlags.GZIP


def test_a_large_body_that_looks_like_noise_is_not_offered_to_the_compressor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered: list[int] = []
    compress = gzip.compress

    def noted(body: bytes, *rest: int, **named: int) -> bytes:
        offered.append(len(body))
        return compress(body, *rest, **named)

    monkeypatch.setattr(gzip, "compress", noted)
    noise = random.Random(1).randbytes(1 << 20)
    assert not decode_record(encode(noise)).flags & RecordFlags.GZIP
    assert offered == []
    assert not decode_record(encode(noise[: 32 << 10])).flags & RecordFlags.GZIP  # small enough just to try
    assert offered == [32 << 10]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_large_body_is_compressed_when_any_of_its_samples_would_be(place: int) -> None:
    thirds = [random.Random(1).randbytes(40_000) for _ in range(3)]
    thirds[place] = b"word " * 8000
    body = b"".join(thirds)
    record = encode(body)
    assert len(record) < 85_000
    assert view(record).system_properties.body_encoding == v2.GZIP
    assert gzip.decompress(bytes(decode_record(record).body)) == body


def test_compression_can_be_switched_off() -> None:
    encoder = RecordEncoder("orders", born_host="h", compress_above=None)
    assert len(encoder.encode(64, b"a" * 10_000, IDS.next(NOW), NOW)) > 10_000


def test_four_mebibytes_are_taken_and_one_byte_more_is_refused() -> None:
    assert view(encode(b"a" * MAX_BODY_SIZE)).body == b"a" * MAX_BODY_SIZE
    with pytest.raises(MessageTooLargeError, match="4,194,305 bytes; the limit is 4,194,304"):
        encode(b"a" * (MAX_BODY_SIZE + 1))


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({"body": b""}, "body"),
        ({"tag": "a|b"}, "tag"),
        ({"tag": " "}, "tag"),
        ({"keys": ["\n"]}, "key"),
        ({"keys": "abc"}, "keys"),
        ({"properties": {"a": "\0"}}, "property"),
        ({"properties": {"a": 1}}, "property"),
        ({"properties": {str(i): "x" for i in range(129)}}, "property"),
        ({"properties": {"a": "x" * 17_000}}, "property"),
        ({"message_group": "g" * 64}, "message_group"),
    ],
)
def test_what_no_broker_accepts_is_refused_before_it_is_sent(labels: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        encode(**labels)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["", "a b", "ö", "a/b", "x" * 128, "orders\n", ".a", ".."])
def test_bad_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        check_name("topic", name)


def test_names_may_have_dots_behind_their_first_character() -> None:
    check_name("topic", "com.acme.orders")
    check_name("group", "%RETRY%com.acme|v1.")
    with pytest.raises(InvalidNameError, match="character '/' is not allowed"):
        check_name("topic", "a.b/c")


def test_message_ids_are_unique_and_their_text_names_their_bytes() -> None:
    ids = [IDS.next(NOW) for _ in range(1000)]
    assert len({raw for raw, _ in ids}) == 1000
    assert all(text == "01" + raw.hex().upper() for raw, text in ids)


@pytest.mark.parametrize(
    "expression",
    [
        "a > 5",
        "a>5",
        "a >= 5 AND b",
        "region = 'east'",
        "TAGS IN ('a', 'b')",
        "x IS NOT NULL",
        "a BETWEEN 1 AND 3",
    ],
)
def test_an_sql_filter_is_refused_since_as_a_tag_it_would_pass_everything_over(expression: str) -> None:
    with pytest.raises(UsageError, match="filtered by tags only"):
        check_tag_filter(expression)


@pytest.mark.parametrize(
    "expression",
    ["*", "", "a || b", "a", "kind=new", "in || or", "SAND || ORANGE", "new order", "a->b", "<a>"],
)
def test_tags_are_no_sql_filter(expression: str) -> None:
    check_tag_filter(expression)

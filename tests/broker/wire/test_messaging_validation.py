"""What MessagingService accepts, and the codes it refuses with."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.broker.wire import validation as validation
from ledgermq.broker.wire.status import StatusError
from ledgermq.proto import rocketmq_v2_pb2 as v2


def message(**changes: Any) -> v2.Message:
    made = v2.Message(topic=v2.Resource(name="orders"), body=b"x")
    made.system_properties.message_id = "01ABC"
    for name, value in changes.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name in ("tag", "message_id", "message_group"):
            setattr(made.system_properties, name, value)
        elif name == "user":
            made.user_properties.update(value)
        else:
            setattr(made, name, value)
    return made


def code_of(made: v2.Message) -> int:
    with pytest.raises(StatusError) as error:
        validation.check_messages([made])
    return error.value.code


def test_an_ordinary_message_is_accepted_and_its_topic_returned() -> None:
    assert validation.check_messages([message(tag="a", keys=["k"], message_group="g")]) == "orders"


def test_a_body_of_exactly_4_mib_is_accepted_and_one_byte_more_is_not() -> None:
    validation.check_messages([message(body=bytes(4194304))])
    assert code_of(message(body=bytes(4194305))) == v2.MESSAGE_BODY_TOO_LARGE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"body": b""}, v2.MESSAGE_BODY_EMPTY),
        ({"user": {f"k{i}": "" for i in range(129)}}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"user": {"TAGS": "x"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": "b\x01"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"user": {"a": "b" * 16384}}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"tag": " "}, v2.ILLEGAL_MESSAGE_TAG),
        ({"tag": "a|b"}, v2.ILLEGAL_MESSAGE_TAG),
        ({"keys": [" "]}, v2.ILLEGAL_MESSAGE_KEY),
        ({"message_id": " "}, v2.ILLEGAL_MESSAGE_ID),
        ({"message_group": ""}, v2.ILLEGAL_MESSAGE_GROUP),
        ({"message_group": "g" * 64}, v2.ILLEGAL_MESSAGE_GROUP),
    ],
)
def test_each_illegal_field_has_its_own_code(changes: dict[str, object], code: int) -> None:
    assert code_of(message(**changes)) == code


@pytest.mark.parametrize("text", ["", " ", "a\nb", "\x1b[2J", "a\u202eb", "\x9b31m", "x" * 256])
def test_an_id_that_cannot_be_shown_is_refused_at_the_door(text: str) -> None:
    problem = validation.id_problem("message id", text)
    assert problem and problem.isprintable()
    assert code_of(message(message_id=text)) == v2.ILLEGAL_MESSAGE_ID
    with pytest.raises(StatusError) as refused:
        validation.check_client_id(text)
    assert refused.value.message.isprintable()


def test_a_request_of_too_many_messages_is_refused_before_any_is_looked_at() -> None:
    empty = v2.Message(topic=v2.Resource(name="orders"))
    with pytest.raises(StatusError, match="send at most") as refused:
        validation.check_messages([empty] * (validation.MAX_ENTRIES + 1))
    assert refused.value.code == v2.PAYLOAD_TOO_LARGE


def test_what_is_stored_beside_body_and_labels_is_short_and_can_be_shown() -> None:
    for field in ("born_host", "trace_context"):
        made = message()
        setattr(made.system_properties, field, "\x1b[2J")
        assert code_of(made) == v2.MESSAGE_CORRUPTED
        setattr(made.system_properties, field, "x" * 30_000)
        assert code_of(made) == v2.MESSAGE_PROPERTIES_TOO_LARGE
    for namespace in ("x" * 256, "\x1b"):
        named = v2.Message(body=b"x")
        named.topic.CopyFrom(v2.Resource(name="orders", resource_namespace=namespace))
        assert code_of(named) == v2.ILLEGAL_TOPIC


def test_ids_of_official_clients_are_accepted() -> None:
    for text in (
        "01" + "AB" * 16,
        "host-1@12345@0@3x8f2k1m9q",
        "7F00000100002A9F0000000000000000",
        "x" * 255,
    ):
        assert validation.id_problem("id", text) == ""


def test_names_of_the_system_are_refused() -> None:
    for topic in ("", "a b", "TBW102", "rmq_sys_x", "t" * 128):
        with pytest.raises(StatusError):
            validation.check_topic(topic)
    for group in ("", "g/h", "CID_RMQ_SYS_x", "g" * 121):
        with pytest.raises(StatusError):
            validation.check_consumer_group(group)
    validation.check_topic("%DLQ%group")


def test_messages_of_two_topics_cannot_share_a_request() -> None:
    other = message()
    other.topic.name = "payments"
    with pytest.raises(StatusError, match="topic in message is not same"):
        validation.check_messages([message(), other])


def test_the_type_is_derived_from_the_properties() -> None:
    assert validation.derived_type(v2.SystemProperties()) == v2.NORMAL
    assert validation.derived_type(v2.SystemProperties(message_group="g")) == v2.FIFO
    assert validation.derived_type(v2.SystemProperties(message_type=v2.TRANSACTION)) == v2.TRANSACTION
    delayed = v2.SystemProperties(message_group="g")
    delayed.delivery_timestamp.FromSeconds(5)
    assert validation.derived_type(delayed) == v2.DELAY


def test_invisible_time_has_a_range() -> None:
    request = v2.ReceiveMessageRequest()
    request.invisible_duration.FromMilliseconds(9_999)
    with pytest.raises(StatusError, match=r"too small\. min is 10000"):
        validation.invisible_ms(request, 10_000)
    request.invisible_duration.FromSeconds(12 * 3600 + 1)
    with pytest.raises(StatusError, match=r"too large\. max is 43200000"):
        validation.invisible_ms(request, 10_000)

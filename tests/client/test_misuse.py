"""Arguments that make no sense are refused at the call, with what to give instead, before anything is sent.

No node listens at the address of these tests: a call that tried one would end with another error, or wait.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from ledgermq.client import Message, SimpleConsumer, sync
from ledgermq.client.errors import InvalidMessageError, InvalidNameError, UsageError
from ledgermq.client.message import LeasedMessage
from ledgermq.client.produce.early_message import keep
from ledgermq.proto import rocketmq_v2_pb2 as v2

CLOSED_PORT = "127.0.0.1:1"
LEASED = LeasedMessage(v2.Message(), "group-a")


def refused(use: Callable[[SimpleConsumer], Any], says: str) -> None:
    async def scenario() -> None:
        async with SimpleConsumer(CLOSED_PORT, group="billing") as consumer:
            with pytest.raises(UsageError, match=says):
                await use(consumer)

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [0, -1, 1.5, None, "9"])
def test_a_receive_of_no_messages_is_refused(count: Any) -> None:
    refused(lambda consumer: consumer.receive(count), "max_messages is .* whole number from 1 on")


@pytest.mark.parametrize("timeout_ms", [math.nan, math.inf, -math.inf, "5"])
def test_a_receive_that_waits_for_no_number_is_refused(timeout_ms: Any) -> None:
    refused(lambda consumer: consumer.receive(timeout_ms=timeout_ms), "timeout_ms is")


@pytest.mark.parametrize("invisible_ms", [-1, 0, math.nan, 1.5, "9", True, 12 * 3600 * 1000 + 1])
def test_a_lease_that_no_broker_gives_is_refused_wherever_it_is_given(invisible_ms: Any) -> None:
    says = r"invisible_ms is .* ms, 1 to 43,200,000 \(12 h\)"
    refused(lambda consumer: consumer.receive(invisible_ms=invisible_ms), says)
    builds: tuple[Callable[..., Any], ...] = (SimpleConsumer, sync.SimpleConsumer)
    for build in builds:
        with pytest.raises(UsageError, match=says):
            build(CLOSED_PORT, group="billing", invisible_ms=invisible_ms)
    with pytest.raises(UsageError, match=says):
        sync.Consumer(CLOSED_PORT, group="billing", topic="orders", invisible_ms=invisible_ms)


@pytest.mark.parametrize("delay_ms", [-1, math.nan, 1.5, None])
def test_a_message_is_not_given_back_after_a_time_that_is_none(delay_ms: Any) -> None:
    refused(lambda consumer: consumer.change_invisible(LEASED, delay_ms), "invisible_ms is .* ms, 0 to")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"start": "x"}, 'start is \'x\'.*"earliest", "latest"'),
        ({"timeout_ms": math.nan}, "timeout_ms is nan"),
        ({"timeout_ms": math.inf}, "Give None to wait without end"),
        ({"expression": 5}, "5 is not a tag filter"),
        ({"topic": 5}, "5 is not a valid topic name: it is of type int"),
        ({"group": None}, "None is not a valid group name"),
    ],
)
def test_a_synchronous_consumer_is_not_made_with_what_it_cannot_use(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sync.Consumer(CLOSED_PORT, **{"group": "billing", "topic": "orders", **wrong})


@pytest.mark.parametrize(("topic", "expression"), [(5, "*"), (None, "*"), ("orders", 5), ("orders", None)])
def test_a_subscription_wants_texts(topic: Any, expression: Any) -> None:
    says = "tag filter.*Give a str" if topic == "orders" else "it is of type .*; a str is wanted"
    refused(lambda consumer: consumer.subscribe(topic, expression), says)


def test_a_name_of_another_type_is_an_invalid_name() -> None:
    wrong: dict[str, Any] = {"group": 3}
    with pytest.raises(InvalidNameError, match="of type int"):
        SimpleConsumer(CLOSED_PORT, **wrong)


@pytest.mark.parametrize("body", [5, 0, True, [1, 2], {"a": 1}, 2.5])
def test_what_is_no_text_and_no_bytes_is_no_body(body: object) -> None:
    """Of a number as many zeros would be stored."""
    given: Any = body
    with pytest.raises(InvalidMessageError, match="bytes or a str are wanted"):
        keep(Message("orders", given))


@pytest.mark.parametrize("body", [b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"])
def test_bytes_of_any_kind_and_text_are_a_body(body: object) -> None:
    given: Any = body
    kept, _ = keep(Message("orders", given))
    assert kept.body == b"ab"

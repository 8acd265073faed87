"""Long inputs, and results by a function, against fake nodes on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain, repeat
from typing import Any

import pytest

from ledgermq.client import Message, SendReceipt
from ledgermq.client.errors import InvalidMessageError, MessageTooLargeError, TopicNotFoundError, UsageError
from ledgermq.client.produce.many import PART_BYTES, PART_MESSAGES, parts_of

from ..reading import producing


class Column:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def to_pylist(self) -> list[Any]:
        return self._values


class Rows:
    """What is used of an Arrow RecordBatch."""

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = columns
        self.schema = self
        self.names = list(columns)
        self.num_rows = len(next(iter(columns.values())))

    def slice(self, start: int, length: int) -> Rows:
        return Rows(**{name: values[start : start + length] for name, values in self._columns.items()})

    def column(self, number: int) -> Column:
        return Column(self._columns[self.names[number]])


class Table:
    """What is used of an Arrow Table."""

    def __init__(self, *batches: Rows) -> None:
        self._batches = batches

    def to_batches(self) -> tuple[Rows, ...]:
        return self._batches


async def test_many_bodies_are_stored_in_order_and_reported_part_by_part() -> None:
    parts: list[tuple[int, Sequence[SendReceipt]]] = []
    count = 2 * PART_MESSAGES + 100
    async with producing() as (group, _, producer):
        bodies = (b"%d" % number for number in range(count))
        stored = await producer.produce_many(
            bodies, topic="orders", on_stored=lambda first, receipts: parts.append((first, receipts))
        )
        assert stored == count == group.stored()
    assert [first for first, _ in parts] == [0, PART_MESSAGES, 2 * PART_MESSAGES]
    assert [receipt.queue_offset for _, part in parts for receipt in part] == list(range(count))
    assert len({receipt.message_id for _, part in parts for receipt in part}) == count


async def test_an_iterable_is_not_read_far_ahead_of_what_is_stored() -> None:
    read = 0

    def bodies() -> Iterator[bytes]:
        nonlocal read
        for _ in range(200):
            read += 1
            yield bytes(64 << 10)

    async with producing(max_pending_bytes=1 << 20, compress_above=None) as (group, _, producer):
        ahead = 0

        def look(first: int, receipts: Sequence[SendReceipt]) -> None:
            nonlocal ahead
            ahead = max(ahead, read - first - len(receipts))

        assert await producer.produce_many(bodies(), topic="orders", on_stored=look) == 200 == group.stored()
        assert ahead * (64 << 10) <= (1 << 20) + 2 * PART_BYTES


async def test_messages_and_bodies_mix_and_may_come_from_an_asynchronous_iterable() -> None:
    async def items() -> AsyncIterator[Message | bytes | str]:
        yield b"one"
        yield Message("bills", b"two", tag="t")
        yield "three"

    async with producing() as (group, _, producer):
        with pytest.raises(TopicNotFoundError) as raised:
            await producer.produce_many(items(), topic="orders")
        assert raised.value.failed_messages == (range(1, 2),)
        assert group.stored() == 2


async def test_a_failure_ends_the_reading_and_names_the_messages() -> None:
    batch = [b"x" * 10] * 5 + [b""] + [b"x" * 10] * 3 + [bytes((4 << 20) + 1)]
    async with producing(compress_above=None) as (group, _, producer):
        endless = repeat(bytes(PART_BYTES))  # one of them is a part
        with pytest.raises(InvalidMessageError) as raised:
            await producer.produce_many(chain(batch, endless), topic="orders")
        assert raised.value.failed_messages == (range(5, 6), range(9, 10))
        before = group.stored()
        with pytest.raises(MessageTooLargeError) as one:
            await producer.send_batch([Message("orders", body) for body in (b"a", batch[-1], b"c")])
        assert one.value.failed_messages == (range(1, 2),)
        assert group.stored() == before + 2


async def test_what_was_read_before_the_iterable_failed_is_stored() -> None:
    def bodies() -> Iterator[bytes]:
        yield from [b"x"] * 10
        raise OSError("the file is gone")

    async with producing() as (group, _, producer):
        with pytest.raises(OSError, match="the file is gone"):
            await producer.produce_many(bodies(), topic="orders")
        assert group.stored() == 10


def test_rows_of_a_table_become_messages() -> None:
    table = Table(
        Rows(body=[b"a", "b"], tag=["t", None], key=["k", None], message_group=[None, "g"]),
        Rows(body=[b"c"], keys=[["k1", "k2"]]),
    )
    (part,) = parts_of(table, "orders")
    assert part == [
        Message("orders", b"a", tag="t", keys=["k"]),
        Message("orders", b"b", keys=[], message_group="g"),
        Message("orders", b"c", keys=["k1", "k2"]),
    ]
    assert list(parts_of(Rows(body=[b"a", b"b"]), "orders")) == [[b"a", b"b"]]


@pytest.mark.parametrize(
    ("given", "topic", "text"),
    [
        (Rows(text=["a"]), "orders", "the table has the columns text"),
        (Rows(body=["a"], price=[1]), "orders", "body, price"),
        (Rows(body=["a"]), "", "without a topic"),
        ([b"a"], "", "bodies together with a topic"),
        ([7], "orders", "is of type int"),
        (b"bytes", "orders", "an iterable of messages"),
        (7, "orders", "an iterable of messages"),
    ],
)
def test_input_without_a_meaning_is_refused(given: Any, topic: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        list(parts_of(given, topic))


async def test_results_go_to_a_function() -> None:
    results: list[tuple[SendReceipt | None, Exception | None]] = []

    def note(receipt: SendReceipt | None, error: Exception | None) -> None:
        results.append((receipt, error))

    async with producing() as (group, _, producer):
        for number in range(50):  # the first ones wait for the route
            producer.produce(note, "orders", b"%d" % number)
            if number == 25:
                await producer.flush()
        producer.produce(note, Message("orders", b"x", tag="t"))
        await producer.flush()
        producer.produce(note, "nowhere", b"x")
        await producer.flush()
        await asyncio.sleep(0)
        assert group.stored() == 51
    assert [receipt.queue_offset for receipt, _ in results[:51] if receipt] == list(range(51))
    assert results[51][0] is None and isinstance(results[51][1], TopicNotFoundError)


async def test_a_function_that_fails_keeps_no_other_message_from_its_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(receipt: SendReceipt | None, error: Exception | None) -> None:
        raise ValueError("a bug of the caller")

    async with producing() as (group, _, producer):
        await producer.send("orders", b"warm")
        producer.produce(fail, "orders", b"one")
        assert (await producer.send("orders", b"two")).queue_offset == 2
        assert group.stored() == 3
    assert "a bug of the caller" in caplog.text


async def test_batches_that_fail_for_the_same_reason_each_say_what_of_them_failed() -> None:
    async with producing() as (_, _, producer):
        batches = [producer.send_batch([Message("absent", b"x")] * count) for count in (3, 7)]
        errors = await asyncio.gather(*batches, return_exceptions=True)
        positions = [each.failed_messages for each in errors if isinstance(each, TopicNotFoundError)]
        assert positions == [(range(3),), (range(7),)]

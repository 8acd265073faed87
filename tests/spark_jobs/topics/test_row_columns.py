"""Arrow columns become bodies and rows, by topic and in order."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="Arrow is not installed")

import pyarrow as pa

from ledgermq.client.batches.row_packer import Row
from ledgermq.client.errors import InvalidMessageError
from ledgermq.spark_jobs.topics.row_columns import bodies_of, rows_by_topic


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_bodies_of_every_type_and_of_slices(kind: Any) -> None:
    values = ["a", "", "ccc", "ü" * 300, "e"]
    column = pa.array([text.encode() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else text
                       for text in values], kind)  # fmt: skip
    wanted = [text.encode() for text in values]
    assert bodies_of(column) == wanted
    assert bodies_of(column.slice(1, 3)) == wanted[1:4]
    assert bodies_of(column.slice(5)) == []


def test_rows_without_a_body_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match="null"):
        bodies_of(pa.array(["a", None]))
    with pytest.raises(InvalidMessageError, match="int64"):
        bodies_of(pa.array([1]))


def test_bodies_alone_stay_bodies() -> None:
    batch = pa.record_batch({"body": [b"a", b"b"]})
    assert list(rows_by_topic(batch, "orders")) == [("orders", [b"a", b"b"])]


def test_rows_with_labels_and_nulls() -> None:
    batch = pa.record_batch(
        {
            "body": ["a", "b"],
            "tag": ["t", None],
            "key": ["k", None],
            "message_group": [None, "g"],
            "properties": pa.array([[("x", "1")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    ((topic, rows),) = rows_by_topic(batch, "orders")
    assert topic == "orders"
    assert rows == [Row(b"a", "t", ["k"], {"x": "1"}, ""), Row(b"b", "", (), None, "g")]
    (found,) = rows_by_topic(pa.record_batch({"body": ["a"], "keys": [["k1", "k2"]]}), "orders")
    assert found[1] == [Row(b"a", "", ["k1", "k2"])]


def test_rows_go_to_their_topic_or_else_to_the_given_one() -> None:
    batch = pa.record_batch({"body": ["1", "2", "3", "4"], "topic": ["a", None, "b", "a"]})
    assert dict(rows_by_topic(batch, "else")) == {"a": [b"1", b"4"], "else": [b"2"], "b": [b"3"]}
    with pytest.raises(InvalidMessageError, match="a row has none"):
        list(rows_by_topic(batch, ""))


def test_large_batches_are_converted_in_portions() -> None:
    batch = pa.record_batch({"body": [str(number) for number in range(10_000)]})
    portions = [rows for _, rows in rows_by_topic(batch, "t")]
    assert len(portions) == 3
    assert [row for rows in portions for row in rows] == [b"%d" % number for number in range(10_000)]

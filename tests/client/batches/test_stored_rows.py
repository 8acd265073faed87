"""Rows are recognised by content, one by one, in any order."""

from __future__ import annotations

import random

from ledgermq.client.batches.row_packer import Row
from ledgermq.client.batches.stored_rows import StoredRows, content_of

ROW = Row(b"body", "tag", ("k1", "k2"), {"a": "1", "b": "2"}, "group")


def test_every_part_of_a_row_counts() -> None:
    others = [
        ROW._replace(body=b"bodY"), ROW._replace(tag=""), ROW._replace(tag="group", message_group="tag"),
        ROW._replace(keys=("k1",)), ROW._replace(keys=("k2", "k1")), ROW._replace(properties={"a": "12"}),
        ROW._replace(properties=None), ROW._replace(message_group=""), Row(b"body"), Row(b""),
        Row(b"body", "tag", ("k1", "k2", "a"), {"1b": "2"}, "group"),
    ]  # fmt: skip
    assert len({content_of(row) for row in [ROW, *others]}) == len(others) + 1


def test_the_order_of_properties_and_the_kind_of_sequence_do_not_count() -> None:
    same = ROW._replace(keys=["k1", "k2"], properties={"b": "2", "a": "1"})
    assert content_of(same) == content_of(ROW)
    assert content_of(Row(b"x")) == content_of(Row(b"x", properties={}))


def test_equal_rows_are_counted_one_by_one() -> None:
    stored = StoredRows()
    for _ in range(2):
        stored.add(ROW)
    stored.add(Row(b"x"))
    assert [stored.take(ROW) for _ in range(3)] == [True, True, False]
    assert stored.count == 1


def test_an_attempt_in_another_order_sends_what_is_missing_and_nothing_else() -> None:
    choose = random.Random(3)
    rows = [Row(b"%d" % (number % 40)) for number in range(100)]
    stored = StoredRows()
    for row in rows[:63]:
        stored.add(row)
    again = choose.sample(rows, len(rows))
    missing = [row for row in again if not (stored.count and stored.take(row))]
    assert sorted(missing) == sorted(rows[63:])
    assert stored.count == 0

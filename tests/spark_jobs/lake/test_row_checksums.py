"""Row checksums: equal messages have equal ones, in any order and form; others have not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
import pyarrow as pa

from ledgermq.spark_jobs.lake.row_checksums import row_checksums, total

from .lake_maker import messages


def test_each_row_has_its_own_whatever_is_around_it() -> None:
    whole = messages(0, 100)
    found = row_checksums(whole)
    assert len(set(found.tolist())) == 100
    assert np.array_equal(found[20:50], row_checksums(whole.slice(20, 30)))
    order = np.random.default_rng(1).permutation(100)
    mixed = pa.Table.from_batches([whole]).take(order).combine_chunks().to_batches()[0]
    assert np.array_equal(found[order], row_checksums(mixed))
    assert total(found) == sum(map(int, found)) % (1 << 64)
    assert len(row_checksums(messages(0, 0))) == 0


@pytest.mark.parametrize("name", messages(0, 1).schema.names)
def test_every_column_counts(name: str) -> None:
    before, other = messages(0, 60), messages(1001, 1061, queue=1, group="g1", at_ms=1)
    place = before.schema.get_field_index(name)
    after = before.set_column(place, before.schema.field(place), other.column(name))
    same = [
        a == b for a, b in zip(before.column(name).to_pylist(), other.column(name).to_pylist(), strict=True)
    ]
    assert (row_checksums(before) == row_checksums(after)).tolist() == same
    assert not all(same)


def test_nothing_and_an_empty_value_differ() -> None:
    batch = messages(0, 3)
    empties: dict[str, Any] = {"body": b"", "tag": "", "message_group": "", "keys": [], "properties": []}
    for name, empty in empties.items():
        place = batch.schema.get_field_index(name)
        field = batch.schema.field(place)
        found = [
            row_checksums(batch.set_column(place, field, pa.array([value] * 3, field.type)))
            for value in (None, empty)
        ]
        assert not (found[0] == found[1]).any(), name


def test_the_order_of_properties_does_not_count_and_that_of_keys_does() -> None:
    batch = messages(0, 1)
    pairs = [("a", "1"), ("b", "2")]

    def found(name: str, value: object) -> int:
        place = batch.schema.get_field_index(name)
        field = batch.schema.field(place)
        return total(row_checksums(batch.set_column(place, field, pa.array([value], field.type))))

    assert found("properties", pairs) == found("properties", pairs[::-1])
    assert found("keys", ["a", "b"]) != found("keys", ["b", "a"])


def test_a_checksum_is_what_it_was_in_the_first_version() -> None:
    """Manifests hold it: another value would call every lake damaged."""
    assert total(row_checksums(messages(0, 25))) == 3694703692998222130

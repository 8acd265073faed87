"""Errors of queries as a person reads them, values of rows, and which topics a query is about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")

from pyspark.errors import PySparkException

from ledgermq.spark_jobs.topics.topic_views import (
    clear_error,
    is_of_spark,
    mentioned,
    plain_value,
    unknown_table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_of_an_error_our_own_sentence_is_left_or_the_first_ones_of_spark() -> None:
    ours = (
        'Traceback (most recent call last):\n  raise\nledgermq.x.SparkJobError: topic "a" is gone\n SQLSTATE'
    )
    assert clear_error(Exception(ours)) == 'topic "a" is gone'
    plan = "[UNRESOLVED_COLUMN] no column x; line 1 pos 7;\n'Project ['x]\n+- 'UnresolvedRelation"
    assert clear_error(Exception(plan)) == "[UNRESOLVED_COLUMN] no column x; line 1 pos 7"
    assert clear_error(Exception("it broke\n\tat org.apache.spark.X\n\tat org.apache.Y")) == "it broke"


def test_a_table_that_is_no_topic_is_named_with_the_topic_that_was_meant(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT * FROM ordres")
    text = unknown_table(caught.value, ["orders", "paid"])
    assert text == 'there is no topic "ordres", and no view of that name. Did you mean "orders"?'
    assert unknown_table(caught.value, []).endswith("Topics: none yet")
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELEC 1")
    assert is_of_spark(caught.value) and not unknown_table(caught.value, ["orders"])
    assert not is_of_spark(ValueError())


def test_only_topics_in_the_query_become_views() -> None:
    assert mentioned("select * FROM Orders", ["orders", "paid"]) == ["orders"]


def test_values_are_made_plain_for_json() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 5000, UTC)
    assert plain_value([b"text", b"\xff", {"n": 1}, moment, None]) == [
        "text", "/w==", {"n": 1}, "2026-01-31T12:00:00.005+00:00", None,
    ]  # fmt: skip

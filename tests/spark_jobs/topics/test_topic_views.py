"""Errors and rows as `ledgermq spark` prints them, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("pyarrow", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.topics.topic_views import clear_error, mentioned, plain_value


def test_our_own_sentence_is_what_is_left_of_a_trace() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File x\n"
        'ledgermq.spark_jobs.errors.SparkJobError: topic "a" does not exist. Create it\n'
        " SQLSTATE: 38000\nJVM stacktrace:\n at org.apache.spark"
    )
    assert clear_error(Exception(text)) == 'topic "a" does not exist. Create it'


def test_a_missing_view_is_a_missing_topic() -> None:
    text = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordrs` cannot be found. Verify the spelling"
    assert (
        clear_error(Exception(text), ["orders", "x"]) == 'there is no topic "ordrs". Did you mean "orders"?'
    )
    assert clear_error(Exception(text)) == 'there is no topic "ordrs". See: ledgermq topic list'


def test_spark_s_plan_and_trace_are_cut_off() -> None:
    text = "[UNRESOLVED_COLUMN] No column `a`; line 1 pos 7;\n'Project ['a]\n+- Relation"
    assert clear_error(Exception(text)) == "[UNRESOLVED_COLUMN] No column `a`; line 1 pos 7;"


def test_values_and_names() -> None:
    assert plain_value({"a": [b"text", b"\xff"]}) == {"a": ["text", "/w=="]}
    assert plain_value(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000+00:00"
    assert mentioned("select * from ORDERS", ["orders", "payments"]) == ["orders"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'Lost task 0.3: java.io.IOException: Cannot run program "/opt/py": error=2, No such file',
            "there is no Python at /opt/py on an executor",
        ),
        (
            "Traceback (most recent call last):\nModuleNotFoundError: No module named 'ledgermq'\n",
            "the executors have no ledgermq. Send our code: spark-submit --py-files",
        ),
        ("ModuleNotFoundError: No module named 'crc32c'", "has no module crc32c. It needs numpy, pyarrow"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: "
            "3.11, PySpark cannot run",
            "the executors have Python 3.12, and here it is 3.11.",
        ),
    ],
)
def test_what_executors_lack_is_one_sentence(text: str, sentence: str) -> None:
    error = clear_error(Exception(f"Job aborted due to stage failure: {text}\n at org.apache.spark"))
    assert sentence in error
    assert len(error.splitlines()) == 1

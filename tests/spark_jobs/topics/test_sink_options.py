"""Options and schemas of the sink: one sentence for each mistake."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the [spark] extra is not installed")

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
)

from ledgermq.spark_jobs.errors import SparkJobError
from ledgermq.spark_jobs.topics.sink_options import (
    SinkOptions,
    check_append,
    check_schema,
    checked_options,
)

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "array<string>": ArrayType(StringType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema_of(text: str) -> StructType:
    """Return the schema of "name type, name type", without a session."""
    schema = StructType()
    for column in text.split(", "):
        name, _, kind = column.partition(" ")
        schema = schema.add(name, _TYPES[kind])
    return schema


def test_names_are_read_as_spark_passes_them() -> None:
    given = {"nameservers": "a:1", "topic": "orders", "writeid": "monday", "timeoutMS": "5000",
             "failonforgottenjob": "False", "cluster": "c"}  # fmt: skip
    assert checked_options(given, streaming=False) == SinkOptions("a:1", "c", "orders", "monday", 5.0, False)
    assert checked_options({"checkpointLocation": "x", "queryName": "q"}, streaming=True) == SinkOptions()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": "orders"}, 'no option "topics" for writing ledgermq. Did you mean "topic"?'),
        ({"nameserver": "a:1"}, 'Did you mean "nameservers"?'),
        ({"write_id": "x"}, 'Did you mean "writeId"?'),
        ({"xyz": "red"}, "Known are: nameservers, cluster, topic"),
        ({"path": "orders"}, 'Did you mean "topic"?'),
        ({"subscribe": "orders"}, 'Did you mean "topic"?'),
        ({"timeoutMs": "soon"}, 'timeoutMs="soon" is not valid; it takes a whole number of milliseconds'),
        ({"timeoutMs": "0"}, "above 0"),
        ({"failOnForgottenJob": "no"}, "it takes true or false"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(SparkJobError) as refused:
        checked_options(given, streaming=False)
    assert text in str(refused.value)


def test_a_stream_needs_no_write_id() -> None:
    with pytest.raises(SparkJobError, match="recognised by its checkpoint"):
        checked_options({"writeId": "x"}, streaming=True)


@pytest.mark.parametrize(
    ("schema", "topic", "text"),
    [
        ("value string", "t", 'no column "body" (binary or string), only value; rename "value" to it'),
        ("bodies string, tag string", "t", 'rename "bodies" to it'),
        ("body int", "t", 'column "body" is of type int; binary or string is wanted: cast it'),
        ("body binary, properties map<string,int>", "t", "map<string,string> is wanted"),
        ("body binary, tags string", "t", 'no column "tags". Did you mean "tag"? Select the columns'),
        ("body binary, key string, keys array<string>", "t", "drop one"),
        ("body binary", "", 'set option("topic", "orders"), or give the rows a column "topic"'),
    ],
)
def test_wrong_schemas_are_refused(schema: str, topic: str, text: str) -> None:
    with pytest.raises(SparkJobError) as refused:
        check_schema(schema_of(schema), SinkOptions(topic=topic))
    assert text in str(refused.value)


def test_every_column_of_a_message_is_taken() -> None:
    schema = "topic string, key string, tag string, properties map<string,string>, message_group string, "
    check_schema(schema_of(schema + "body binary"), SinkOptions())
    check_schema(schema_of("keys array<string>, body string"), SinkOptions(topic="t"))


def test_a_topic_is_not_overwritten() -> None:
    check_append(overwrite=False)
    with pytest.raises(SparkJobError, match=r'mode\("append"\)'):
        check_append(overwrite=True)

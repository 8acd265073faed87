"""Options and schema of the sink. What cannot work is refused on the driver, in one sentence.

Owns: names, types and defaults. Must not: connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ledgermq.client.errors import similar_names

from ..errors import SparkJobError
from .given_options import NAMESERVERS, GivenOptions, no_column

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Option -> what it takes, for errors.
WRITE_OPTIONS: Final[Mapping[str, str]] = {
    "nameservers": "host:port, several with commas",
    "cluster": "a name",
    "topic": "the topic of rows that name none",
    "writeId": "a name of the write",
    "timeoutMs": "a whole number of milliseconds above 0",
    "failOnForgottenJob": "true or false",
    "queuePerPartition": "true or false",
}
#: Likely slips, in lower case -> the option that is meant.
_SAME: Final = {"path": "topic", "subscribe": "topic", "topics": "topic"}
#: Options of Spark's own that it passes on.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
_TIMEOUT_MS: Final = 120_000
#: Column -> the types that it may have, as Spark's simple strings.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "key": ("string",),
    "keys": ("array<string>",),
    "tag": ("string",),
    "properties": ("map<string,string>",),
    "message_group": ("string",),
    "body": ("binary", "string"),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked options of a write. Plain values: they are pickled."""

    nameservers: str = NAMESERVERS
    cluster: str = ""
    topic: str = ""  # of rows without a topic of their own
    write_id: str = ""  # batch writes: a repeat with the same id stores nothing twice
    timeout_s: float = _TIMEOUT_MS / 1000  # a task fails when a broker group has not answered for so long
    fail_on_forgotten_job: bool = True
    queue_per_partition: bool = False  # partition n writes to the n-th queue of the topic


def checked_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options. Raises: SparkJobError."""
    found = GivenOptions(given, WRITE_OPTIONS, "writing")
    found.refuse_unknown(_SAME, _OF_SPARK)
    if streaming and found.text("writeId"):
        raise SparkJobError(
            "option writeId is for batch writes; a stream is recognised by its checkpoint, so leave it out"
        )
    return SinkOptions(
        found.text("nameservers", NAMESERVERS),
        found.text("cluster"),
        found.text("topic"),
        found.text("writeId"),
        found.count("timeoutMs", _TIMEOUT_MS) / 1000,
        found.flag("failOnForgottenJob", True),
        found.flag("queuePerPartition", False),
    )


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check the columns of the rows that are to be written. Raises: SparkJobError."""
    names = [each.name for each in schema.fields]
    if "body" not in names:
        similar = similar_names("body", names) or ["value"] * ("value" in names)
        hint = f'; rename "{similar[0]}" to it' if similar else ""
        raise SparkJobError(
            f'the rows have no column "body" (binary or string), only {", ".join(names) or "none"}{hint}'
        )
    for each in schema.fields:
        wanted = COLUMNS.get(each.name)
        if wanted is None:
            advice = "Select the columns that make up a message, or put it into properties"
            raise SparkJobError(f"{no_column(each.name, COLUMNS)} {advice}")
        kind = each.dataType.simpleString()
        if kind not in wanted:
            raise SparkJobError(
                f'column "{each.name}" is of type {kind}; {" or ".join(wanted)} is wanted: cast it'
            )
    if "key" in names and "keys" in names:
        raise SparkJobError('the rows have both "key" and "keys"; drop one of the two columns')
    if "topic" not in names and not options.topic:
        raise SparkJobError(
            'no topic is given: set option("topic", "orders"), or give the rows a column "topic"'
        )


def check_append(*, overwrite: bool) -> None:
    """Raises: SparkJobError (the write is to replace what is there)."""
    if overwrite:
        raise SparkJobError(
            'a topic can only be appended to: write with .mode("append"), or .outputMode("append")'
        )

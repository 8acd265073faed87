"""Options and schema of the sink. What cannot work is refused on the driver, in one sentence.

Owns: names, types and defaults. Must not: connect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from ..errors import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAMESERVERS: Final = "127.0.0.1:9876"
#: Name in lower case, as Spark passes it -> name as documented.
_NAMES: Final = {
    name.lower(): name
    for name in ("nameservers", "cluster", "topic", "writeId", "timeoutMs", "failOnForgottenJob")
}
#: Options of Spark's own that it passes on.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
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
    timeout_s: float = 120.0  # a task fails when a broker group has not answered for so long
    fail_on_forgotten_job: bool = True


def checked_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options. Raises: SparkJobError."""
    found: dict[str, str] = {}
    for key, text in given.items():
        name = _NAMES.get(key.lower())
        if name is not None:
            found[name] = text
        elif key.lower() == "path":
            raise SparkJobError('the sink takes no path; name the topic: .option("topic", "orders")')
        elif key.lower() not in _OF_SPARK:
            raise SparkJobError(_unknown("option", key, list(_NAMES.values())))
    if streaming and "writeId" in found:
        raise SparkJobError(
            'option "writeId" is for batch writes; a stream is recognised by its checkpoint, so leave it out'
        )
    return SinkOptions(
        found.get("nameservers", NAMESERVERS),
        found.get("cluster", ""),
        found.get("topic", ""),
        found.get("writeId", ""),
        _milliseconds("timeoutMs", found.get("timeoutMs", "120000")) / 1000,
        _flag("failOnForgottenJob", found.get("failOnForgottenJob", "true")),
    )


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Check the columns of the rows that are to be written. Raises: SparkJobError."""
    names = [each.name for each in schema.fields]
    if "body" not in names:
        similar = get_close_matches("body", names, n=1, cutoff=0.6) or ["value"] * ("value" in names)
        hint = f'; rename "{similar[0]}" to it' if similar else ""
        raise SparkJobError(
            f'the rows have no column "body" (binary or string), only {", ".join(names) or "none"}{hint}'
        )
    for each in schema.fields:
        wanted = COLUMNS.get(each.name)
        if wanted is None:
            advice = "select the columns that make up a message, or put it into properties"
            raise SparkJobError(f"{_unknown('column', each.name, list(COLUMNS))}; {advice}")
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


def _unknown(what: str, name: str, known: list[str]) -> str:
    lower = {each.lower(): each for each in known}
    similar = get_close_matches(name.lower(), list(lower), n=1, cutoff=0.5)
    question = f'did you mean "{lower[similar[0]]}"?' if similar else f"known are {', '.join(known)}"
    return f'the sink has no {what} "{name}"; {question}'


def _milliseconds(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise SparkJobError(f'option {name}="{text}" is not a number of milliseconds above 0')
    return found


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SparkJobError(f'option {name}="{text}" is neither true nor false')
    return text.lower() == "true"

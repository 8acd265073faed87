"""Views of topics for Spark SQL, and the rows and errors of a query as a person reads them. On the driver.

Owns: which topics become views, the text of rows, and what is left of an error of Spark.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ledgermq.client.errors import did_you_mean, similar_names
from ledgermq.client.sync import Admin

from .topic_look import is_system

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What the worker of a Python source puts before the text of our own errors, which have one line.
_OWN_ERROR = re.compile(r"(?:SparkJobError|CorruptMessageError): (.+)")
_TRACE_OR_PLAN = re.compile(
    r"\n\s*(?:JVM stacktrace|at (?:org|java|scala)\.|Traceback |Driver stacktrace|'\w+ ?\[)"
)
#: What stands in Spark's text when executors lack something, and the sentence for it.
_EXECUTOR_LACKS = (
    (
        re.compile(r'Cannot run program "([^"]+)"'),
        "there is no Python at {0} on an executor (or here, where Spark plans). Set PYSPARK_PYTHON to the "
        "path that it has there, or send one with --archives: docs/spark.md, Clusters",
    ),
    (
        re.compile(r"No module named '?(ledgermq[\w.]*)"),
        "the executors have no {0}. Send our code: spark-submit --py-files ledgermq-spark.zip, or "
        "spark.addArtifacts with Spark Connect: docs/spark.md, Clusters",
    ),
    (
        re.compile(r"No module named '?([\w.]+)"),
        "the Python of the executors has no module {0}. It needs numpy, pyarrow, crc32c, grpcio, protobuf "
        "and hpack: docs/spark.md, Clusters",
    ),
    (
        re.compile(r"Python in worker has different version: (\S+) than that in driver: ([^\s,]+)"),
        "the executors have Python {0}, and here it is {1}. Set PYSPARK_PYTHON to one of the same version",
    ),
)
_NO_VIEW = re.compile(r"table or view `([^`]+)` cannot be found")


def user_topics(nameservers: str) -> list[str]:
    """Return the names of all topics of users. Raises: LedgerMQError."""
    with Admin(nameservers) as admin:
        return [topic.name for topic in admin.topics() if not is_system(topic)]


def mentioned(query: str, topics: Sequence[str]) -> list[str]:
    """Return the topics that a query may be about: making a view of each takes Spark a moment."""
    words = query.casefold()
    return [topic for topic in topics if topic.casefold() in words]


def make_views(spark: SparkSession, nameservers: str, topics: Sequence[str]) -> list[str]:
    """Make a temporary view of each topic; return their names as SQL needs them.

    A name with other characters than letters, digits and _ stands in backquotes.
    """
    names = []
    for topic in topics:
        frame = (
            spark.read.format("ledgermq").option("nameservers", nameservers).option("subscribe", topic).load()
        )
        quoted = topic if re.fullmatch(r"[A-Za-z_]\w*", topic) else f"`{topic}`"
        frame.createOrReplaceTempView(quoted)
        names.append(quoted)
    return names


def plain_value(value: Any) -> Any:
    """Return a value of a row for JSON: bytes as text, or as base64 when they are none."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(plain_value(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def clear_error(error: BaseException, topics: Sequence[str] = ()) -> str:
    """Return what a person can use of an error of Spark: our own sentence, or Spark's first ones."""
    text = str(error)
    own = _OWN_ERROR.findall(text)
    if own:
        return str(own[-1]).strip()
    for pattern, sentence in _EXECUTOR_LACKS:
        if lacks := pattern.search(text):
            return sentence.format(*lacks.groups())
    missing = _NO_VIEW.search(text)
    if missing:
        question = did_you_mean(similar_names(missing.group(1), topics))
        return f'there is no topic "{missing.group(1)}". {question or "See: ledgermq topic list"}'
    return _TRACE_OR_PLAN.split(text, maxsplit=1)[0].strip()

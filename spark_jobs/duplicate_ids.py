"""Messages that are stored more than once: equal message ids at several positions of one topic, on request.

A message that is sent again while its broker group remembers it is stored once, so it does not appear here.
Copies that the broker group itself makes of a message (dead letters) keep its id and do not count.

Owns: the aggregation, and what is told of it. One replica is read: equal ones have equal messages.
Must not: read bodies, or hold more than `MAX_NAMED` ids on the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ledgermq.proto.record import RecordFlags

from .dump_folder import NodeDump
from .dump_source import FORMAT
from .errors import SparkJobError
from .findings import Finding, Kind, Severity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Ids that are named. The last finding counts the rest.
MAX_NAMED: Final = 50


def chosen_dump(dumps: Sequence[NodeDump]) -> NodeDump:
    """Return the dump whose messages are compared: of those with the log, the one that reaches furthest.

    Raises: SparkJobError.
    """
    whole = [dump for dump in dumps if not dump.has_digests]
    if not whole:
        raise SparkJobError(
            "--duplicates reads messages, and these are dumps of digests, which hold none. Take whole dumps: "
            "ledgermq dump DIR"
        )
    return max(whole, key=lambda dump: (dump.commit_index, -dump.first_index))


def find_duplicates(spark: SparkSession, folder: str, dump: NodeDump, slice_size: int) -> list[Finding]:
    """Return a finding for each message id that a topic has more than once, the first ones in log order.

    Each is at the last message with that id. `dump` is one of `folder`.
    """
    from pyspark.sql import functions as F

    options = {"rows": "messages", "body": "false", "nodes": dump.node, "slice_bytes": str(slice_size)}
    messages = spark.read.format(FORMAT).options(**options).load(folder)
    place = "struct(offset, index, queue_id, queue_offset, flags)"
    found = (
        messages.where(f"flags & {int(RecordFlags.COPY)} = 0")
        .groupBy("topic_id", "message_id")
        .agg(
            F.expr("count(*) as times"), F.expr(f"min({place}) as first"), F.expr(f"max({place}) as last")
        )
        .where("times > 1")
        .persist()
    )  # fmt: skip
    try:
        count = found.count()
        rows = found.orderBy("first.offset").limit(MAX_NAMED).collect()
    finally:
        found.unpersist()
    names = {queue.topic_id: queue.topic for queue in dump.queues}
    named = [_finding(dump.node, row, names) for row in rows]
    if count > len(named):
        named[-1] = replace(named[-1], count=count - len(named) + 1)
    return named


def _finding(node: str, row: Any, names: dict[int, str]) -> Finding:
    topic = f'topic "{names[row.topic_id]}"' if row.topic_id in names else f"topic {row.topic_id}"
    raw = bytes(row.message_id).hex()
    name = f"01{raw.upper()}" if row.first.flags & RecordFlags.V1_ID else f"with the digest {raw}"
    places = " and ".join(
        f"queue {each.queue_id} offset {each.queue_offset:,} (index {each['index']:,})"
        for each in (row.first, row.last)
    )
    text = f"{topic}: the message id {name} is stored {row.times:,} times, first and last at {places}"
    return Finding(node, row.last.offset, row.last["index"], Kind.DUPLICATE_ID, Severity.INFO, text)

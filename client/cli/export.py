"""Command `ledgermq message export`: messages of a dump, one JSON object a line."""

from __future__ import annotations

import base64
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from ledgermq.proto.dumped_log import DumpedLog, UnusableDumpError, find_logs
from ledgermq.proto.foreign_text import safe_json

from ..admin.dump_messages import DumpedMessage, DumpedTopic
from ..errors import CorruptMessageError, LedgerMQError, UsageError
from .output import DumpsArgument, StoredFromOption, StoredToOption, err
from .times import time_ms


def export(
    dumps: DumpsArgument,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Whose messages; it may be deleted by now.")],
    begin: StoredFromOption = "",
    end: StoredToOption = "",
    to_file: Annotated[
        Path | None, typer.Option("--out", help="File to write; it must not exist. Default: print.")
    ] = None,
) -> int:
    """Write the messages of a topic that a dump holds, one JSON object a line, without a cluster.

    A body that is not UTF-8 text is written as base64 ("body_encoding"). Exit code: 0; 1 when something could
    not be read.
    """
    begin_ms = max(time_ms(begin, earliest=0, latest=0), 0) if begin else 0
    end_ms = max(time_ms(end, earliest=1, latest=0), 1) if end and end != "latest" else 0
    try:
        with DumpedLog(find_logs(dumps)) as dumped, ExitStack() as stack:
            found = DumpedTopic(dumped, topic, begin_ms, end_ms)
            out = sys.stdout if to_file is None else stack.enter_context(_create(to_file))
            count, corrupt = _write(found, out)
            return _tell(found, count, corrupt)
    except UnusableDumpError as error:
        raise LedgerMQError(str(error), "Nothing was written") from None


def _create(path: Path) -> TextIO:
    """Raises: UsageError."""
    part = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, part, 0o600), "w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be made: {error.strerror}", "Nothing was written", "Name another file"
        ) from None


def _write(found: DumpedTopic, out: TextIO) -> tuple[int, int]:
    """Return how many messages were written, and how many of them without their body."""
    count = corrupt = 0
    for each in found.messages():
        line = _as_dict(each)
        count += 1
        corrupt += "error" in line
        out.write(safe_json(json.dumps(line, ensure_ascii=False)) + "\n")
    out.flush()
    return count, corrupt


def _tell(found: DumpedTopic, count: int, corrupt: int) -> int:
    """Say on stderr what was found and what is missing; return the exit code."""
    reading, missing = found.dumped.reading, []
    if reading.stopped:  # before the requested end
        missing.append(reading.stopped)
    for dispute in reading.disputes:
        missing.append(
            f"{dispute.log.folder} holds another log up to entry {dispute.index:,}: see ledgermq check"
        )
    if found.unreadable:
        missing.append(f"{found.unreadable:,} entries hold records that do not fit their section")
    if corrupt:
        missing.append(f'{corrupt:,} messages cannot be unpacked: they have "error" instead of a body')
    err.print(f"{count:,} messages of {found.topic}", markup=False)
    for line in missing:
        err.print(f"incomplete: {line}", markup=False)
    return 1 if missing else 0


def _as_dict(each: DumpedMessage) -> dict[str, Any]:
    message = each.message
    fields: dict[str, Any] = {
        "message_id": message.message_id, "topic": message.topic, "topic_id": each.topic_id,
        "broker_group": message.queue.broker_group, "queue_id": message.queue_id,
        "queue_offset": message.queue_offset, "index": each.index,
        "store_timestamp": message.store_timestamp, "born_timestamp": message.born_timestamp,
    }  # fmt: skip
    if not each.committed:
        fields["committed"] = False
    try:
        fields |= {
            "tag": message.tag, "keys": list(message.keys), "message_group": message.message_group,
            "properties": message.properties,
        }  # fmt: skip
        body = message.body
    except CorruptMessageError as error:
        return fields | {"body": None, "error": str(error)}
    try:
        return fields | {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return fields | {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}

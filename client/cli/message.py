"""Commands `ledgermq message …`: look up what is stored, by id, by key, by time;
`export` and `trace` are added.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any, Final

import typer

from ledgermq.proto.foreign_text import safe_text

from ..admin.admin import Admin
from ..admin.message_query import DEFAULT_LIMIT, FoundMessages
from ..cluster.every_group import why_missing
from ..errors import CorruptMessageError, LedgerMQError
from ..message import MessageView
from ..produce.message_ids import time_of
from .export import export
from .output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    StoredFromOption,
    StoredToOption,
    administer,
    err,
    out,
    print_json,
    print_table,
)
from .send_consume import printable
from .times import local_time, stored_between
from .trace import trace

_SHOWN: Final = 64 * 1024  # characters of a message's labels: more than is allowed
_PREVIEW: Final = 40  # characters of a body in a table
_MAX_LIMIT: Final = 100_000


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    message = typer.Typer(
        no_args_is_help=True, help="Look up stored messages, and what became of one.", rich_markup_mode=None
    )
    message.command("get")(get)
    message.command("query")(query)
    message.command("trace")(trace)
    message.command("export")(export)
    app.add_typer(message, name="message")


def get(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Id that send printed, or a consumer saw.")],
    topic: Annotated[str, typer.Option("--topic", "-t", help="Only in this topic.")] = "",
    only_body: Annotated[
        bool, typer.Option("--body", help="Print nothing but the body, as it was sent.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show one stored message."""

    async def work(admin: Admin) -> FoundMessages:
        found = await admin.find_message(message_id, topic=topic)
        if not found.messages and message_id != message_id.upper() and time_of(message_id):
            found = await admin.find_message(message_id.upper(), topic=topic)  # ids are stored in upper case
        return found

    found = administer(Admin, nameserver, work)
    if not found.messages:
        raise _not_found(message_id, topic, found)
    _tell_what_is_missing(found)
    if as_json:
        print_json([_as_dict(message) for message in found.messages])
        return
    for number, message in enumerate(found.messages):
        if only_body:
            sys.stdout.buffer.write(message.body)
            continue
        if number:
            out.print()
        _show(message)


def query(
    topic: Annotated[str, typer.Option("--topic", "-t", help="Where to look.")],
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only messages with this key.")] = None,
    begin: StoredFromOption = "",
    end: StoredToOption = "",
    limit: Annotated[
        int, typer.Option("--limit", "-l", min=1, max=_MAX_LIMIT, help="At most so many, the newest.")
    ] = DEFAULT_LIMIT,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """List stored messages of a topic, the newest first: those with a key, or of a time."""
    begin_ms, end_ms = stored_between(begin, end, time.time_ns() // 1_000_000)
    if key is not None and not key.strip():
        raise typer.BadParameter("the key is empty; leave --key out to list messages of all keys")
    found = administer(
        Admin,
        nameserver,
        lambda admin: admin.query_messages(
            topic, key=key or "", begin_ms=begin_ms, end_ms=end_ms, limit=limit
        ),
    )
    if as_json:
        print_json(
            {
                "messages": [_as_dict(message) for message in found.messages],
                "truncated": found.truncated,
                "missing_from_ms": found.missing_from_ms if found.truncated else None,
                "unsearched_bytes": found.unsearched_bytes,
                "silent_groups": sorted(found.silent),
                "stale_groups": found.stale,
            }
        )
    elif found.messages:
        print_table(
            ("STORED", "MESSAGE ID", "BROKER GROUP", "QUEUE>", "OFFSET>", "TAG", "KEYS", "SIZE>", "BODY"),
            [_row(message) for message in found.messages],
        )
    else:
        out.print("no messages found")
    _tell_what_is_missing(found)
    if found.truncated:
        _say_where_to_go_on(found)


def _say_where_to_go_on(found: FoundMessages) -> None:
    at, after = local_time(found.missing_from_ms), local_time(found.missing_from_ms + 1)
    if found.goes_on:
        err.print(f"there are more: raise --limit, or go on with --to {after}")
        return
    err.print(
        "there are more, of the same millisecond as the newest shown: raise --limit, or ask for one --key. "
        f"--to {at} goes on before that millisecond and leaves out the rest of it"
    )


def _not_found(message_id: str, topic: str, found: FoundMessages) -> LedgerMQError:
    where = f' in topic "{topic}"' if topic else ""
    if found.is_complete:
        what = f"no stored message has the id {message_id}{where}"
        why = "It was never stored, or retention has deleted it"
        if not time_of(message_id):  # a client may choose such an id, so it was looked for
            why = "Ids are 34 hexadecimal digits that begin with 01, as ledgermq send prints them"
        return LedgerMQError(what, why, "Look by key or time: ledgermq message query --topic TOPIC")
    return LedgerMQError(
        f"no message with the id {message_id} was found{where}, and not everything could be searched",
        ". ".join(_missing(found)),
        "Ask again later",
    )


def _tell_what_is_missing(found: FoundMessages) -> None:
    for line in _missing(found):
        err.print(f"incomplete: {line}", markup=False)


def _missing(found: FoundMessages) -> list[str]:
    """Return why there may be messages that are not shown."""
    lines = [why_missing(name, error) for name, error in found.silent.items()]
    lines += [f"broker group {name} has no leader: its newest may be missing" for name in found.stale]
    if found.unsearched_bytes:
        mib = found.unsearched_bytes / (1 << 20)
        lines.append(f"the index of {mib:,.1f} MiB of log is being made, messages there were not looked for")
    return lines


# --- output -------------------------------------------------------------------------------------------------
def _row(message: MessageView) -> tuple[Any, ...]:
    try:
        body = message.body
    except CorruptMessageError:
        size, text = message.record.body_size, "(cannot be read)"
    else:
        size, text = len(body), _preview(body)
    tag, keys, _ = _labels(message)
    return (
        local_time(message.store_timestamp), message.message_id, message.queue.broker_group, message.queue_id,
        message.queue_offset, tag, " ".join(keys), size, text,
    )  # fmt: skip


def _preview(body: bytes) -> str:
    return safe_text(body, _PREVIEW)


def _labels(message: MessageView) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return tag, keys and properties; nothing of what cannot be read."""
    try:
        return message.tag, message.keys, message.properties
    except CorruptMessageError:
        return "", (), {}


def _show(message: MessageView) -> None:
    tag, keys, properties = _labels(message)
    lines = {
        "message id": message.message_id,
        "where": f"{message.topic}[{message.queue_id}] of {message.queue.broker_group}, "
        f"offset {message.queue_offset}",
        "stored": local_time(message.store_timestamp),
        "born": local_time(message.born_timestamp),
        "tag": tag,
        "keys": " ".join(keys),
        "message group": message.message_group,
        "properties": " ".join(f"{name}={value}" for name, value in properties.items()),
    }
    for name, value in lines.items():
        if value:
            out.print(f"{name:14}{safe_text(value, _SHOWN)}", markup=False)
    try:
        body = message.body
    except CorruptMessageError as error:
        out.print(f"{'body':14}cannot be read: {error}", markup=False)
        return
    out.print(f"{'body':14}{len(body):,} byte{'s' * (len(body) != 1)}", markup=False)
    out.print(printable(body), markup=False)


def _as_dict(message: MessageView) -> dict[str, Any]:
    tag, keys, properties = _labels(message)
    found: dict[str, Any] = {
        "message_id": message.message_id, "topic": message.topic, "broker_group": message.queue.broker_group,
        "queue_id": message.queue_id, "queue_offset": message.queue_offset,
        "store_timestamp": message.store_timestamp, "born_timestamp": message.born_timestamp,
        "tag": tag, "keys": list(keys), "properties": properties,
    }  # fmt: skip
    try:
        found["body"] = message.body.decode(errors="replace")
    except CorruptMessageError as error:
        found |= {"body": None, "error": str(error)}
    return found

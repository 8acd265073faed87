"""Commands `ledgermq topic hold` and `ledgermq topic release`, and how holds are shown."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..admin.admin import Admin
from ..admin.held_queues import Hold
from ..errors import LedgerMQError, UsageError
from ..message import MessageQueue
from .output import DEFAULT_NAMESERVER, JsonOption, NameserverOption, administer, out, print_done, print_json
from .times import local_time

NameOption = Annotated[str, typer.Option("--name", help="Name of the hold; that of the job that holds it.")]
_TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


def hold(
    topic: _TopicArgument,
    name: NameOption,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            help="Messages from here on are needed: a queue offset, earliest (all that is stored) or latest.",
        ),
    ],
    queue: Annotated[
        list[int] | None,
        typer.Option("--queue", "-q", min=0, help="Only this queue; repeatable. Default: all."),
    ] = None,
    broker_group: Annotated[
        str, typer.Option("--broker-group", help="Only its queues. Default: those of all.")
    ] = "",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Let retention wait for a job that fetches the messages of a topic; or advance its hold.
    It never goes back, and expires when nobody sets it again (hold_expires_hours of the brokers).
    """
    if offset not in ("earliest", "latest") and not (offset.isascii() and offset.isdecimal()):
        raise typer.BadParameter(f"--offset {offset!r} is neither a queue offset, nor earliest or latest")

    async def work(admin: Admin) -> list[Hold]:
        _, queues = await admin.describe_topic(topic)
        offsets = {
            where: _offset(offset, found.begin_offset, found.end_offset)
            for where, found in queues
            if (not queue or where.queue_id in queue) and broker_group in ("", where.broker_group)
        }
        _check_queues(topic, {where for where, _ in queues}, set(queue or ()), broker_group)
        return await admin.hold(topic, name, offsets)

    holds = administer(Admin, nameserver, work)
    if as_json:
        print_json({"topic": topic, "name": name, "holds": [hold_fields(each) for each in holds]})
        return
    out.print(f'hold "{name}" of topic "{topic}": retention waits for its holder', markup=False)
    for each in holds:
        out.print(hold_text(each), markup=False)


def _offset(text: str, begin: int, end: int) -> int:
    return begin if text == "earliest" else end if text == "latest" else int(text)


def _check_queues(topic: str, known: set[MessageQueue], wanted: set[int], broker_group: str) -> None:
    """Raises: UsageError (no broker group, or not the one that was named, has such a queue)."""
    there = {each.queue_id for each in known if broker_group in ("", each.broker_group)}
    if missing := sorted(wanted - there):
        raise UsageError(
            f"topic {topic} has no queue {missing[0]}" + (f" in {broker_group}" if broker_group else ""),
            "Nothing was changed",
            f"See: ledgermq topic describe {topic}",
        )
    if not there:
        groups = ", ".join(sorted({each.broker_group for each in known}))
        raise UsageError(
            f"topic {topic} has no queue in {broker_group}", f"It has some in {groups}", "Name one of them"
        )


def release(
    topic: _TopicArgument,
    name: NameOption,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Remove a hold: retention waits no longer."""

    async def work(admin: Admin) -> bool:
        return await admin.release_hold(topic, name)

    if not administer(Admin, nameserver, work):
        raise LedgerMQError(
            f'topic "{topic}" has no hold "{name}"',
            "Nothing was changed",
            f"See what it has: ledgermq topic describe {topic}",
        )
    print_done(
        f'hold "{name}" of topic "{topic}" is released',
        {"topic": topic, "name": name, "released": True},
        as_json=as_json,
    )


def hold_fields(each: Hold) -> dict[str, Any]:
    """Return a hold for `--json`."""
    return {
        "name": each.name,
        "broker_group": each.queue.broker_group,
        "queue_id": each.queue.queue_id,
        "offset": each.offset,
        "advanced_ms": each.advanced_ms,
        "overridden": each.overridden,
        "lost": each.lost,
        "expired": each.expired,
    }


def hold_text(each: Hold) -> str:
    """Return the line that tells people of a hold in one queue."""
    _, broker_group, queue_id = each.queue
    texts = [f"hold {each.name}: waits at offset {each.offset} of queue {queue_id} in {broker_group}"]
    if each.overridden:
        texts.append(f"overridden: {each.lost:,} messages that it waited for were deleted")
    if each.expired:
        since = local_time(each.advanced_ms, sep=" ", timespec="seconds")
        texts.append(f"expired: its holder is silent since {since}, and retention waits no longer")
    return ", ".join(texts)

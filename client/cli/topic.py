"""Commands `ledgermq topic …`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from ledgermq.proto import admin_pb2, route_pb2

from ..admin.admin import BUILT_TYPES, MESSAGE_TYPES, Admin
from ..admin.held_queues import Hold
from ..cluster.every_group import Silent
from .hold import hold, hold_fields, hold_text, release
from .output import (
    DEFAULT_NAMESERVER,
    MAX_HOURS,
    JsonOption,
    NameserverOption,
    YesOption,
    administer,
    delete_named,
    groups_down,
    out,
    print_done,
    print_json,
    print_table,
    warn_of_down,
    warn_of_silent,
    with_silent,
)

_TYPE_NAMES = {number: name for name, number in MESSAGE_TYPES.items()}

_HOUR_MS = 3_600_000
_UNREAD_KEPT = "keeps what a consumer group has still to read (all, when none consumes it)"

_RETENTION = typer.Option(
    "--retention-hours",
    min=0,
    max=MAX_HOURS,
    help="How long messages are shown; 0: as long as the log holds them.",
)
RetentionOption = Annotated[float, _RETENTION]
ChangedRetentionOption = Annotated[float | None, _RETENTION]
KeepOption = Annotated[
    bool | None,
    typer.Option(
        "--keep-unread/--no-keep-unread",
        help="Retention deletes no message that a consumer group has still to read; "
        "a full disk refuses new ones, of all topics.",
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    topic = typer.Typer(
        no_args_is_help=True,
        help="Create, list, describe, update, delete and hold topics.",
        rich_markup_mode=None,
    )
    topic.command("create")(create)
    topic.command("update")(update)
    topic.command("list")(list_topics)
    topic.command("describe")(describe)
    topic.command("delete")(delete)
    topic.command("hold")(hold)
    topic.command("release")(release)
    app.add_typer(topic, name="topic")


def create(
    topic: TopicArgument,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues", "-q", min=1, max=1024, help="Queues per broker group. Default: as its nodes are set."
        ),
    ] = None,
    kind: Annotated[str, typer.Option("--type", help=f"One of {', '.join(BUILT_TYPES)}.")] = "normal",
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed when the topic is there.")
    ] = False,
    retention_hours: RetentionOption = 0,
    keep_unread: KeepOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Create a topic in every broker group."""

    async def work(admin: Admin) -> tuple[int, list[str]]:
        made = await admin.create_topic(
            topic,
            queues or 0,
            message_type=kind,
            if_not_exists=if_not_exists,
            retention_ms=int(retention_hours * _HOUR_MS),
            keep_unread=bool(keep_unread),
        )
        return made, await groups_down(admin)

    made, down = administer(Admin, nameserver, work)
    print_done(
        f'topic "{topic}" is there with {made} queues. Next: ledgermq send {topic} "hello"',
        {"topic": topic, "queues": made, "down_groups": down},
        as_json=as_json,
    )
    warn_of_down(f'topic "{topic}"', down)


def update(
    topic: TopicArgument,
    retention_hours: ChangedRetentionOption = None,
    keep_unread: KeepOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change how long a topic shows its messages, or whether unread ones stay.
    What is hidden already stays hidden.
    """
    retention_ms = None if retention_hours is None else int(retention_hours * _HOUR_MS)
    administer(
        Admin,
        nameserver,
        lambda admin: admin.update_topic(topic, retention_ms=retention_ms, keep_unread=keep_unread),
    )
    texts: list[str] = []
    fields: dict[str, Any] = {"topic": topic}
    if retention_hours is not None:
        shown = f"for {retention_hours:g} hours" if retention_hours else "as long as the log holds them"
        texts.append(f"shows messages {shown}")
        fields["retention_ms"] = retention_ms
    if keep_unread is not None:
        texts.append(_UNREAD_KEPT if keep_unread else "lets retention delete what is unread")
        fields["keep_unread"] = keep_unread
    print_done(f'topic "{topic}" {" and ".join(texts)}', fields, as_json=as_json)


def list_topics(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """List all topics."""
    silent: Silent = {}
    topics = administer(Admin, nameserver, lambda admin: admin.topics(silent=silent))
    if as_json:
        print_json(with_silent([_as_dict(info) for info in topics], silent))
    elif topics:
        print_table(
            ("TOPIC", "QUEUES>", "TYPE", "RETENTION>"),
            [
                (info.name, info.queue_count, _TYPE_NAMES.get(info.message_type, "normal"), _retention(info))
                for info in topics
            ],
        )
    elif not silent:
        out.print("no topics yet. Create one: ledgermq topic create orders")
    warn_of_silent(silent)


def _retention(info: route_pb2.TopicInfo) -> str:
    shown = f"{info.retention_ms / _HOUR_MS:g} h" if info.retention_ms else "-"
    return f"{shown}, unread kept" if info.keep_unread else shown


def _as_dict(info: route_pb2.TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "queues": info.queue_count,
        "type": _TYPE_NAMES.get(info.message_type, "normal"),
        "retention_ms": info.retention_ms,
        "keep_unread": info.keep_unread,
    }


def describe(
    topic: TopicArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False
) -> None:
    """Show a topic's queues with their first and next offsets, and its holds."""
    silent: Silent = {}

    async def work(
        admin: Admin,
    ) -> tuple[route_pb2.TopicInfo, list[Any], list[tuple[str, admin_pb2.TopicProgress]], list[Hold]]:
        info, queues = await admin.describe_topic(topic, silent=silent)
        losses = await admin.topic_losses(topic, silent=silent)
        return info, queues, losses, await admin.holds(topic, silent=silent)

    info, queues, losses, holds = administer(Admin, nameserver, work)
    rows = [(q.broker_group, q.queue_id, each.begin_offset, each.end_offset) for q, each in queues]
    if as_json:
        names = ("broker_group", "queue_id", "begin_offset", "end_offset")
        offsets = [dict(zip(names, row, strict=True)) for row in rows]
        consumers = [
            {"group": each.group, "broker_group": where, "lost": each.lost, "parked": each.parked}
            for where, each in losses
        ]
        found = {"offsets": offsets, "consumers": consumers, "holds": [hold_fields(each) for each in holds]}
        print_json({**_as_dict(info), **found, "silent_groups": sorted(silent)})
    else:
        print_table(
            ("BROKER GROUP", "QUEUE>", "FIRST>", "NEXT>", "MESSAGES>"),
            [(group, queue_id, begin, end, end - begin) for group, queue_id, begin, end in rows],
        )
        if info.keep_unread:
            out.print(f"the topic {_UNREAD_KEPT}")
        for where, each in losses:
            out.print(escape(_loss_text(where, each)))
        for one in holds:
            out.print(escape(hold_text(one)))
    warn_of_silent(silent)


def _loss_text(broker_group: str, each: admin_pb2.TopicProgress) -> str:
    if not each.group:
        return (
            f"retention deleted {each.lost:,} messages in {broker_group}; "
            "no consumer group consumes the topic there"
        )
    texts = []
    if each.lost:
        texts.append(f"retention deleted {each.lost:,} messages before it had consumed them")
    if each.parked:
        texts.append(f"{each.parked:,} messages are parked for it (ledgermq group describe {each.group})")
    return f'consumer group "{each.group}" in {broker_group}: {", and ".join(texts)}'


def delete(
    topic: TopicArgument,
    yes: YesOption = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with all its messages."""
    delete_named(
        "topic",
        topic,
        "all its messages",
        nameserver,
        lambda admin: admin.describe_topic(topic, silent={}),
        lambda admin: admin.delete_topic(topic),
        yes=yes,
        as_json=as_json,
    )

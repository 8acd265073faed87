"""Commands `ledgermq topic …`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ledgermq.proto import route_pb2

from .admin import MESSAGE_TYPES, Admin
from .cli_down_groups import groups_down, warn_of_down
from .cli_output import (
    DEFAULT_NAMESERVER,
    MAX_HOURS,
    JsonOption,
    NameserverOption,
    confirm,
    out,
    print_json,
    print_table,
    run,
    warn_of_silent,
    with_silent,
)
from .every_group import Silent

_TYPE_NAMES = {number: name for name, number in MESSAGE_TYPES.items()}

_HOUR_MS = 3_600_000

RetentionOption = Annotated[
    float,
    typer.Option(
        "--retention-hours",
        min=0,
        max=MAX_HOURS,
        help="How long messages are shown; 0: as long as the log holds them.",
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    topic = typer.Typer(
        no_args_is_help=True, help="Create, list, describe, update and delete topics.", rich_markup_mode=None
    )
    topic.command("create")(create)
    topic.command("update")(update)
    topic.command("list")(list_topics)
    topic.command("describe")(describe)
    topic.command("delete")(delete)
    app.add_typer(topic, name="topic")


def create(
    topic: TopicArgument,
    queues: Annotated[
        int,
        typer.Option(
            "--queues", "-q", min=0, max=1024, help="Queues per broker group; 0: the group's default."
        ),
    ] = 0,
    kind: Annotated[str, typer.Option("--type", help=f"One of {', '.join(MESSAGE_TYPES)}.")] = "normal",
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed when the topic is there.")
    ] = False,
    retention_hours: RetentionOption = 0,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
) -> None:
    """Create a topic in every broker group."""

    async def work() -> tuple[int, list[str]]:
        async with Admin(nameserver) as admin:
            made = await admin.create_topic(
                topic,
                queues,
                message_type=kind,
                if_not_exists=if_not_exists,
                retention_ms=int(retention_hours * _HOUR_MS),
            )
            return made, await groups_down(admin)

    made, down = run(work())
    out.print(f'topic "{topic}" is there with {made} queues. Next: ledgermq send {topic} "hello"')
    warn_of_down(f'topic "{topic}"', down)


def update(
    topic: TopicArgument,
    retention_hours: RetentionOption,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
) -> None:
    """Change how long a topic shows its messages. What is hidden already stays hidden."""

    async def work() -> None:
        async with Admin(nameserver) as admin:
            await admin.update_topic(topic, retention_ms=int(retention_hours * _HOUR_MS))

    run(work())
    kept = f"for {retention_hours:g} hours" if retention_hours else "as long as the log holds them"
    out.print(f'topic "{topic}" shows messages {kept}')


def list_topics(nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False) -> None:
    """List all topics."""
    silent: Silent = {}

    async def work() -> list[route_pb2.TopicInfo]:
        async with Admin(nameserver) as admin:
            return await admin.topics(silent=silent)

    topics = run(work())
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
    return f"{info.retention_ms / _HOUR_MS:g} h" if info.retention_ms else "-"


def _as_dict(info: route_pb2.TopicInfo) -> dict[str, Any]:
    return {
        "topic": info.name,
        "topic_id": info.topic_id,
        "queues": info.queue_count,
        "type": _TYPE_NAMES.get(info.message_type, "normal"),
        "retention_ms": info.retention_ms,
    }


def describe(
    topic: TopicArgument, nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False
) -> None:
    """Show a topic's queues with their first and next offsets."""
    silent: Silent = {}

    async def work() -> tuple[route_pb2.TopicInfo, list[Any]]:
        async with Admin(nameserver) as admin:
            return await admin.describe_topic(topic, silent=silent)

    info, queues = run(work())
    rows = [(q.broker_group, q.queue_id, each.begin_offset, each.end_offset) for q, each in queues]
    if as_json:
        names = ("broker_group", "queue_id", "begin_offset", "end_offset")
        offsets = [dict(zip(names, row, strict=True)) for row in rows]
        print_json({**_as_dict(info), "offsets": offsets, "silent_groups": sorted(silent)})
    else:
        print_table(
            ("GROUP", "QUEUE>", "FIRST>", "NEXT>", "MESSAGES>"),
            [(group, queue_id, begin, end, end - begin) for group, queue_id, begin, end in rows],
        )
    warn_of_silent(silent)


def delete(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
) -> None:
    """Delete a topic with all its messages."""
    if not yes:
        confirm(f'Delete topic "{topic}" with all its messages?')

    async def work() -> None:
        async with Admin(nameserver) as admin:
            await admin.delete_topic(topic)

    run(work())
    out.print(f'topic "{topic}" is deleted')

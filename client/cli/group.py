"""Commands `ledgermq group …`: consumer groups and how far they are."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from ledgermq.proto import admin_pb2

from ..admin.admin import Admin
from ..admin.broker_groups import BrokerGroupAdmin
from ..cluster.every_group import Silent
from .broker_groups import progress_as_dict
from .output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    OneTopicOption,
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
from .times import local_time, position

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]

#: Progress of a consumer group in a queue: fields, with their headings in a table.
_QUEUE_COLUMNS: Final = {
    "topic": "TOPIC", "broker_group": "BROKER GROUP", "queue_id": "QUEUE>", "committed_offset": "COMMITTED>",
    "end_offset": "END>",
    "behind": "BEHIND>", "leased": "LEASED>", "parked": "PARKED>", "lost": "LOST>", "owner": "OWNER",
}  # fmt: skip


#: Maximum of parked messages in a table; `--json` has more.
_PARKED_SHOWN: Final = 20


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Look after consumer groups, and see how far they are.",
        rich_markup_mode=None,
    )
    group.command("create")(create)
    group.command("list")(list_consumer_groups)
    group.command("describe")(describe)
    group.command("lag")(lag)
    group.command("reset")(reset)
    group.command("release")(release)
    group.command("delete")(delete)
    app.add_typer(group, name="group")


def create(
    group: GroupArgument,
    start: Annotated[str, typer.Option("--from", help="Start: earliest, latest, or a time.")] = "earliest",
    fifo: Annotated[bool, typer.Option("--fifo", help="Deliver each queue in order.")] = False,
    max_attempts: Annotated[
        int | None,
        typer.Option("--max-attempts", min=1, max=2**31 - 1, help="Deliveries of a message. Default: 17."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed when the consumer group is there.")
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Create a consumer group."""
    at = position(start)

    async def work(admin: Admin) -> list[str]:
        await admin.create_group(
            group, start=at, fifo=fifo, max_attempts=max_attempts or 0, if_not_exists=if_not_exists
        )
        return await groups_down(admin)

    down = administer(Admin, nameserver, work)
    print_done(
        f'consumer group "{group}" is there. Next: ledgermq consume TOPIC --group {group}',
        {"group": group, "down_groups": down},
        as_json=as_json,
    )
    warn_of_down(f'consumer group "{group}"', down)


def list_consumer_groups(
    nameserver: NameserverOption = DEFAULT_NAMESERVER, as_json: JsonOption = False
) -> None:
    """List all consumer groups."""
    silent: Silent = {}
    groups = administer(Admin, nameserver, lambda admin: admin.consumer_groups(silent=silent))
    if as_json:
        print_json(with_silent([_as_dict(info) for info in groups], silent))
    elif groups:
        print_table(
            ("CONSUMER GROUP", "START", "FIFO", "CLIENTS>"),
            [(g.name, g.start_position, "yes" if g.fifo else "no", g.connected_clients) for g in groups],
        )
    elif not silent:
        out.print("no consumer groups yet. The first consumer makes one: ledgermq consume TOPIC --group NAME")
    warn_of_silent(silent)


def _as_dict(info: admin_pb2.ConsumerGroupInfo) -> dict[str, Any]:
    return {
        "group": info.name, "start": info.start_position, "fifo": info.fifo,
        "max_attempts": info.max_attempts, "clients": info.connected_clients,
    }  # fmt: skip


def describe(
    group: GroupArgument,
    topic: OneTopicOption = "",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show how far a consumer group is on every queue, who consumes it, who holds leases,
    and which messages are parked.
    """
    silent: Silent = {}

    async def work(
        admin: Admin,
    ) -> tuple[
        admin_pb2.ConsumerGroupInfo,
        list[tuple[str, admin_pb2.GroupQueueProgress]],
        list[tuple[str, admin_pb2.GroupMember]],
        list[tuple[str, admin_pb2.GetDeliveriesResponse]],
    ]:
        info, progress = await admin.describe_group(group, topic, silent=silent)
        members = await admin.group_members(group, silent=silent)
        out_there = any(each.leased or each.parked for _, each in progress)
        delivered = await admin.deliveries(group, topic, silent=silent) if out_there else []
        return info, progress, members, delivered

    info, progress, members, delivered = administer(Admin, nameserver, work)
    queues = [_queue_as_dict(where, each) for where, each in progress]
    if as_json:
        found = {
            "queues": queues,
            "members": [_member(*each) for each in members],
            "holders": [_holder(where, each) for where, told in delivered for each in told.holders],
            "parked": [_parked(where, each) for where, told in delivered for each in told.parked],
            "parked_count": sum(told.parked_count for _, told in delivered),
        }
        print_json({**_as_dict(info), **found, "silent_groups": sorted(silent)})
    else:
        _print_described(group, queues, members, silent)
        _print_delivered(group, delivered)
    warn_of_silent(silent)


def _print_described(
    group: str, queues: list[dict[str, Any]], members: list[tuple[str, admin_pb2.GroupMember]], silent: Silent
) -> None:
    if queues:
        _print_queues(queues, [name for name in _QUEUE_COLUMNS if members or name != "owner"])
    elif not silent:
        out.print(f'consumer group "{group}" has consumed nothing yet')
    if members:
        out.print()
        print_table(
            ("MEMBER", "BROKER GROUP", "QUEUES>", "TOPICS", "FILTER"),
            [(m.member_id, where, m.queues, ", ".join(m.topics), m.filter or "*") for where, m in members],
        )


def _member(broker_group: str, member: admin_pb2.GroupMember) -> dict[str, Any]:
    return {
        "member": member.member_id, "broker_group": broker_group, "queues": member.queues,
        "topics": list(member.topics),
        "filter": member.filter, "allocation": member.allocation or "sticky", "zone": member.zone,
        "joined_ms": member.joined_ms,
    }  # fmt: skip


def _holder(broker_group: str, each: admin_pb2.LeaseHolder) -> dict[str, Any]:
    return {
        "client": each.client_id, "topic": each.topic, "broker_group": broker_group, "leases": each.leases,
        "oldest_ms": each.oldest_ms, "by_session": each.by_session, "ended": each.ended,
    }  # fmt: skip


def _parked(broker_group: str, each: admin_pb2.ParkedMessage) -> dict[str, Any]:
    return {
        "topic": each.topic, "broker_group": broker_group, "queue_id": each.queue_id,
        "offset": each.queue_offset,
        "message_id": each.message_id, "attempts": each.attempts, "parked_ms": each.parked_ms,
        "reason": "given up" if each.reason == admin_pb2.PARK_FORWARDED else "attempts",
    }  # fmt: skip


def _print_delivered(group: str, delivered: list[tuple[str, admin_pb2.GetDeliveriesResponse]]) -> None:
    """Print who holds leases and what is parked."""
    holders = [(where, each) for where, told in delivered for each in told.holders]
    if holders:
        out.print()
        print_table(
            ("LEASED BY", "TOPIC", "BROKER GROUP", "MESSAGES>", "OLDEST", "UNTIL"),
            [(each.client_id or "(not known)", each.topic, where, each.leases, _when(each.oldest_ms),
              _until(each))
             for where, each in holders],
        )  # fmt: skip
    parked = [_parked(where, each) for where, told in delivered for each in told.parked]
    count = sum(told.parked_count for _, told in delivered)
    if parked:
        out.print()
        print_table(
            ("PARKED MESSAGE", "TOPIC", "BROKER GROUP", "QUEUE>", "OFFSET>", "ATTEMPTS>", "SINCE", "WHY"),
            [(each["message_id"] or "(not readable)", each["topic"], each["broker_group"], each["queue_id"],
              each["offset"], each["attempts"], _when(each["parked_ms"]), each["reason"])
             for each in parked[:_PARKED_SHOWN]],
        )  # fmt: skip
        more = f"{count - _PARKED_SHOWN:,} more are parked. " if count > _PARKED_SHOWN else ""
        out.print(
            f"{more}Parked messages failed for the last time: they are kept and not delivered. Again: "
            f"ledgermq group release {group} --all, or --message ID"
        )


def _when(timestamp_ms: int) -> str:
    return local_time(timestamp_ms, sep=" ", timespec="seconds") if timestamp_ms else "-"


def _until(each: admin_pb2.LeaseHolder) -> str:
    if each.ended:
        return "ended: delivered again with the next receive"
    return "the client leaves" if each.by_session else "its time is over"


def release(
    group: GroupArgument,
    topic: OneTopicOption = "",
    message: Annotated[
        str, typer.Option("--message", metavar="ID", help="Only the message with this id.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All that is parked.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Deliver parked messages of a consumer group again: they failed for the last time,
    and get all their attempts anew.
    """
    if bool(message) == everything:
        raise typer.BadParameter("say which: --message ID, or --all (with --topic: all of that topic)")

    count = administer(
        Admin, nameserver, lambda admin: admin.release_parked(group, topic, message_id=message)
    )
    if as_json:
        print_json({"group": group, "released": count})
    elif count:
        out.print(f'{count:,} messages are delivered again to consumer group "{group}"')
    else:
        out.print(f'nothing is parked for consumer group "{group}"')


def lag(
    group: Annotated[
        str, typer.Argument(metavar="[GROUP]", help="Only this consumer group. Default: all.")
    ] = "",
    topic: OneTopicOption = "",
    queues: Annotated[bool, typer.Option("--queues", help="A row for every queue.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show how many messages consumer groups have not finished, in every topic and broker group."""
    known = administer(BrokerGroupAdmin, nameserver, lambda admin: admin.lag(group, topic, queues=queues))
    found = [{"group": name, **_queue_as_dict(where, each)} for name, where, each in known.queues]
    if as_json:
        topics = [progress_as_dict(where, row) for where, row in known.rows]
        silent = {"silent_groups": sorted(known.silent)}
        print_json({"topics": topics, **({"queues": found} if queues else {}), **silent})
    elif queues:
        _print_queues(found, ["group", *_QUEUE_COLUMNS])
    elif known.rows or not known.silent:
        _print_lag(known.rows)
    warn_of_silent(known.silent)


def _print_lag(rows: list[tuple[str, admin_pb2.TopicProgress]]) -> None:
    if not rows:
        out.print("nothing is stored, and nothing was consumed")
        return
    print_table(
        ("CONSUMER GROUP", "TOPIC", "BROKER GROUP", "BEHIND>", "QUEUES>", "LEASED>", "PARKED>", "LOST>",
         "MEMBERS>"),
        [
            (row.group or "(none)", row.topic, where, row.behind, row.queues, row.leased, row.parked,
             row.lost, row.members)
            for where, row in sorted(rows, key=lambda each: (each[1].group, each[1].topic, each[0]))
        ],
    )  # fmt: skip


def _print_queues(queues: list[dict[str, Any]], names: list[str]) -> None:
    """Print these fields of queues that `_queue_as_dict` made."""
    headings = {"group": "CONSUMER GROUP", **_QUEUE_COLUMNS}
    print_table([headings[name] for name in names], [[each[name] for name in names] for each in queues])


def _queue_as_dict(broker_group: str, each: admin_pb2.GroupQueueProgress) -> dict[str, Any]:
    return {
        "topic": each.topic, "broker_group": broker_group, "queue_id": each.queue_id,
        "committed_offset": each.committed_offset, "end_offset": each.end_offset,
        "behind": each.end_offset - max(each.committed_offset, each.begin_offset), "leased": each.leased,
        "parked": each.parked, "lost": each.lost, "owner": each.owner,
    }  # fmt: skip


def reset(
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", help="The topic to move the consumer group on.")],
    to: Annotated[str, typer.Option("--to", help="earliest, latest, ms since the epoch, or a time.")],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Move a consumer group on a topic: it continues at the new place."""
    at = position(to)
    administer(Admin, nameserver, lambda admin: admin.reset_offsets(group, topic, at))
    text = f'consumer group "{group}" continues at {to} of topic "{topic}"'
    if at.isdecimal() and int(at) > time.time() * 1000:
        place = f'the end of topic "{topic}": nothing was stored at or after {to}'
        text = f'consumer group "{group}" continues at {place}'
    print_done(text, {"group": group, "topic": topic, "position": at}, as_json=as_json)


def delete(
    group: GroupArgument,
    yes: YesOption = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a consumer group with its offsets."""
    delete_named(
        "consumer group",
        group,
        "its offsets",
        nameserver,
        lambda admin: admin.describe_group(group, silent={}),
        lambda admin: admin.delete_group(group),
        yes=yes,
        as_json=as_json,
    )

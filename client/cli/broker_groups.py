"""`ledgermq cluster add-group|drain|undrain|remove-group|forget-group`: growing and shrinking a cluster.

Owns: the output, the wait for consumers, and the warnings and questions of `forget-group`. Must not: decide.
BrokerGroupAdmin, the brokers and the nameservers do.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto import route_pb2

from ..admin.broker_groups import AddedBrokerGroup, BrokerGroupAdmin, Left, LostBrokerGroup, reading_text
from ..cluster.topic_route import BrokerGroup
from ..durations import parse_duration
from ..errors import LedgerMQError, RouteError, shortened
from .output import (
    DEFAULT_NAMESERVER,
    BrokerGroupArgument,
    JsonOption,
    NameserverOption,
    YesOption,
    administer,
    confirm,
    err,
    out,
    print_done,
    print_error,
    print_json,
    print_table,
)

_POLL_S: Final = 0.5
_MODES: Final = {
    route_pb2.MODE_ACTIVE: "active",
    route_pb2.MODE_DRAINING: "draining",
    route_pb2.MODE_REMOVED: "removed",
}

ReorderingOption = Annotated[
    bool,
    typer.Option(
        "--allow-reordering",
        help="Although messages of ordered topics are not consumed, which later ones may overtake.",
    ),
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until consumers have everything.")]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", help="Longest time for --wait, e.g. 30s or 10m.", metavar="TIME")
]


def add_to(cluster: typer.Typer) -> None:
    """Add the commands to `ledgermq cluster`."""
    cluster.command("add-group")(add_group)
    cluster.command("drain")(drain)
    cluster.command("undrain")(undrain)
    cluster.command("remove-group")(remove_group)
    cluster.command("forget-group")(forget_group)


# --- add ----------------------------------------------------------------------------------------------------
def add_group(
    group: BrokerGroupArgument,
    from_group: Annotated[
        str,
        typer.Option("--from-group", help="Take them from this broker group alone. Default: all others."),
    ] = "",
    topics: Annotated[
        str, typer.Option("--topics", help="Only these topics, comma-separated. Default: all.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    allow_reordering: ReorderingOption = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> int:
    """Give a new broker group what the others have. That is topics and consumer groups. May be repeated.
    Exit code 1: conflicts.
    """
    wanted = [name.strip() for name in topics.split(",") if name.strip()]
    added = administer(
        BrokerGroupAdmin,
        nameserver,
        lambda admin: admin.add_group(
            group, source=from_group, topics=wanted, dry_run=dry_run, allow_reordering=allow_reordering
        ),
    )
    if as_json:
        print_json(_added_as_dict(added))
    else:
        _print_added(added)
    return 1 if added.conflicts else 0


def _added_as_dict(added: AddedBrokerGroup) -> dict[str, Any]:
    topics, consumer_groups = added.topics, added.consumer_groups
    return {
        "group": added.group, "dry_run": added.dry_run, "draining": added.draining,
        "topics_created": [info.name for info in topics.missing], "topics_existing": topics.existing,
        "consumer_groups_created": [info.name for info in consumer_groups.missing],
        "consumer_groups_existing": consumer_groups.existing, "conflicts": added.conflicts,
    }  # fmt: skip


def _print_added(added: AddedBrokerGroup) -> None:
    verb = "would create" if added.dry_run else "created"
    for what, found in (("topics", added.topics), ("consumer groups", added.consumer_groups)):
        names = ", ".join(info.name for info in found.missing) or "none"
        out.print(escape(f"{added.group}: {verb} {len(found.missing)} {what}: {names}"))
        if found.existing:
            out.print(escape(f"    {len(found.existing)} were there already: {', '.join(found.existing)}"))
    for text in added.conflicts:
        print_error(f"{text}. Nothing was changed there: delete the one that is wrong, or name --from-group")
    if added.draining:
        out.print(
            f"{added.group} is being drained and takes no messages. Next: "
            f"ledgermq cluster undrain {added.group}"
        )


# --- drain --------------------------------------------------------------------------------------------------
def drain(
    group: BrokerGroupArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = "10m",
    undo: Annotated[bool, typer.Option("--undo", help="Take it back, as cluster undrain does.")] = False,
    allow_reordering: ReorderingOption = False,
    even_the_last: Annotated[
        bool,
        typer.Option(
            "--even-the-last",
            help="Although no other broker group takes messages then, of all topics or of some.",
        ),
    ] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> int:
    """Let a broker group take no new messages; consumers go on.
    Exit code 1: not all was consumed in time, or it was taken back.
    """
    if undo:
        undrain(group, allow_reordering, "", nameserver, as_json)
        return 0
    seconds = parse_duration(timeout)
    answer = administer(
        BrokerGroupAdmin,
        nameserver,
        lambda admin: admin.drain(group, allow_reordering=allow_reordering, even_the_last=even_the_last),
    )
    if not as_json:
        out.print(
            f"{group} takes no new messages{'' if answer.changed else ' (it did not before either)'}. "
            f"Take it back: ledgermq cluster undrain {group}"
        )
    try:
        left = administer(
            BrokerGroupAdmin, nameserver, partial(_left, group, seconds if wait else 0.0, quiet=as_json)
        )
    except KeyboardInterrupt:
        print_error(f"{group} goes on being drained. Take it back: ledgermq cluster undrain {group}")
        raise
    if as_json:
        print_json(_drain_as_dict(group, answer, left))
    else:
        _print_left(group, left, in_time=seconds if wait else None)
    taken_back = left.mode == route_pb2.MODE_ACTIVE
    return 1 if taken_back or (wait and left.is_unfinished) else 0


def _drain_as_dict(group: str, answer: pb.SetBrokerGroupModeResponse, left: Left) -> dict[str, Any]:
    return {
        "group": group,
        "mode": _MODES[left.mode],
        "since_ms": answer.since_ms,
        "changed": answer.changed,
        "left": [progress_as_dict(group, row) for row in left.waiting],
        "nobody_consumes": {row.topic: row.behind for row in left.rows if not row.group},
        "parked": [{"group": row.group, "topic": row.topic, "parked": row.parked} for row in left.parked],
        "not_heard": list(left.unheard),
        "reading": [
            {"group": each.group, "topic": each.topic, "streams": each.streams, "behind": each.behind}
            for each in left.reading
        ],
    }


def progress_as_dict(broker_group: str, row: pb.TopicProgress) -> dict[str, Any]:
    """Return a row of progress for `--json`."""
    return {
        "group": row.group, "topic": row.topic, "broker_group": broker_group, "behind": row.behind,
        "queues": row.queues,
        "leased": row.leased, "lost": row.lost, "parked": row.parked, "members": row.members,
    }  # fmt: skip


async def _left(group: str, seconds: float, admin: BrokerGroupAdmin, *, quiet: bool) -> Left:
    """Return what is not consumed, as soon as consumers have all that they want, at the latest after so many
    seconds.

    Ends also when the broker group is drained no longer. Raises: RouteError: it is still not known at the
    end.
    """
    end, told, known = time.monotonic() + seconds, "", None
    while True:
        late = time.monotonic() >= end
        try:
            known = await _newest(admin, group, known)
            left = await admin.left(known)
        except LedgerMQError as error:
            if not error.retryable:
                raise
            if late:
                raise _not_told(group, error) from error
            text = f"an answer of {group}: {error.what}"
        else:
            if late or left.mode != route_pb2.MODE_DRAINING or not left.is_unfinished:
                return left
            text = _waiting_text(left)
        if text != told and not quiet:
            told = text
            out.print(escape(f"waiting for {text}"))
        await asyncio.sleep(_POLL_S)


async def _newest(admin: BrokerGroupAdmin, name: str, known: BrokerGroup | None) -> BrokerGroup:
    """Return the broker group with the nodes that it has now;
    with those that it had when no nameserver lists it any more.
    """
    try:
        return await admin.group(name)
    except LedgerMQError:
        if known is None:
            raise
        return known


def _not_told(group: str, error: LedgerMQError) -> RouteError:
    return RouteError(
        f"whether consumers have everything of {group} is not known: {error.what}",
        f"When it was last heard of, {group} was being drained",
        f"See: ledgermq cluster status. Go on waiting with: ledgermq cluster drain {group} --wait",
    )


def _waiting_text(left: Left) -> str:
    texts = [f"{row.group} on {row.topic}: {row.behind:,}" for row in left.waiting]
    texts += [reading_text(each) for each in left.reading]
    return ", ".join(texts + [f"an answer of {group}, who consumes there" for group in left.unheard])


def _print_left(group: str, left: Left, in_time: float | None) -> None:
    for row in left.rows:
        if not row.group:
            out.print(
                escape(
                    f'no consumer group consumes topic "{row.topic}": '
                    f"{row.behind:,} messages are in {group} alone"
                )
            )
    if left.waiting:
        print_table(
            ("CONSUMER GROUP", "TOPIC", "BEHIND>", "LEASED>", "MEMBERS>"),
            [(row.group, row.topic, row.behind, row.leased, row.members) for row in left.waiting],
        )
    for row in left.parked:
        out.print(
            escape(
                f"{_parked_text(row)}: release them (ledgermq group release {row.group} --all), or lose them"
            )
        )
    for each in left.reading:
        out.print(escape(f"{reading_text(each)}, and stores no progress in {group}"))
    if left.mode == route_pb2.MODE_ACTIVE:
        print_error(
            f"{group} was taken back meanwhile and takes messages. Drain it again: "
            f"ledgermq cluster drain {group} --wait"
        )
    elif left.mode == route_pb2.MODE_REMOVED:
        _print_removed(group, left)
    elif left.is_unfinished:
        for name in left.unheard:
            out.print(
                f"{name} did not say who consumes there: it has no leader, or does not answer. See: "
                "ledgermq cluster status"
            )
        late = "" if in_time is None else f"not everything was consumed within {in_time:g} s; "
        out.print(f"{late}{group} goes on being drained. Wait: ledgermq cluster drain {group} --wait")
    elif left.rows or left.parked:
        lost = " and ".join(
            ["what no consumer group consumes"] * bool(left.rows) + ["what is parked"] * bool(left.parked)
        )
        out.print(
            f"consumers have everything that they consume. Lost with the broker group is {lost}: see to it, "
            f"or say so. Next: ledgermq cluster remove-group {group} --force"
        )
    else:
        out.print(f"consumers have everything. Next: ledgermq cluster remove-group {group}")


def _parked_text(row: pb.TopicProgress) -> str:
    return f'{row.parked:,} messages of topic "{row.topic}" are parked for consumer group "{row.group}"'


def _print_removed(group: str, left: Left) -> None:
    if left.waiting:
        print_error(
            f"{group} was removed meanwhile, with messages that were not consumed. To consume them, take it "
            f"back: ledgermq cluster undrain {group} --node HOST:8082"
        )
    else:
        out.print(
            f"{group} was removed meanwhile; consumers have everything that they consume. Stop its nodes"
        )


def undrain(
    group: BrokerGroupArgument,
    allow_reordering: ReorderingOption = False,
    node: Annotated[
        str,
        typer.Option("--node", help="host:port of a node's log port, of a broker group that was removed."),
    ] = "",
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Let a drained or removed broker group take messages again."""
    changed = administer(
        BrokerGroupAdmin,
        nameserver,
        lambda admin: admin.undrain(group, allow_reordering=allow_reordering, node=node),
    ).changed
    text = f"{group} takes messages{'' if changed else ' (it did before, too)'}"
    print_done(text, {"group": group, "mode": "active", "changed": changed}, as_json=as_json)


# --- remove -------------------------------------------------------------------------------------------------
def remove_group(
    group: BrokerGroupArgument,
    force: Annotated[
        bool,
        typer.Option("--force", help="Although it takes messages, or holds some that were not consumed."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask (with --force).")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Take a drained broker group out of the cluster.
    Its nodes go on without serving clients until they are stopped.
    """

    async def lost(admin: BrokerGroupAdmin) -> list[str]:
        return _lost_texts(await admin.left(await admin.group(group)))

    async def work(admin: BrokerGroupAdmin) -> list[str]:
        known = await admin.group(group)
        await admin.remove_group(group, force=force)
        try:
            return _lost_texts(await admin.left(known)) if force else []
        except LedgerMQError:
            return []  # it is removed nevertheless

    told: list[str] = []
    shown = err if as_json else out
    if force:
        told = administer(BrokerGroupAdmin, nameserver, lost)
        for text in told or [f"{group} holds nothing that was not consumed"]:
            shown.print(escape(text))
        if not yes:
            confirm(f"Remove {group} nevertheless?")
    for text in administer(BrokerGroupAdmin, nameserver, work):
        if text not in told:  # it took messages until now
            shown.print(escape(text))
    print_done(
        f"{group} is removed: no nameserver lists it, and clients leave it. Stop its nodes now; "
        "their folders keep all data. "
        f"Until then it can be taken back: ledgermq cluster undrain {group} --node HOST:8082",
        {"group": group, "mode": "removed"},
        as_json=as_json,
    )


def _lost_texts(left: Left) -> list[str]:
    texts = [
        f'lost to consumers: {row.behind:,} messages of topic "{row.topic}" '
        + (
            f'that consumer group "{row.group}" has not consumed'
            if row.group
            else "that no consumer group has consumed"
        )
        for row in left.rows
    ]
    texts += [f"lost to consumers: {_parked_text(row)}" for row in left.parked]
    texts += [f"lost to a consumer that stores no progress: {reading_text(each)}" for each in left.reading]
    return texts + [
        f"{group} does not say who consumes there: those may lose messages, too" for group in left.unheard
    ]


def forget_group(
    group: BrokerGroupArgument,
    yes: YesOption = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> int:
    """Take a broker group that is lost for good off all lists. Refused while a node of it lives.

    What it holds is then no longer missed by listings, queries and changes. Exit code 1: a nameserver did not
    do it.
    """
    lost = administer(BrokerGroupAdmin, nameserver, lambda admin: admin.lost_group(group))
    (err if as_json else out).print(escape("\n".join(consequences(lost))))
    if not yes:
        confirm(f"Forget {group}?")
    forgotten = administer(BrokerGroupAdmin, nameserver, lambda admin: admin.forget_group(group))
    for address, error in sorted(forgotten.silent.items()):
        err.print(f"not done at the nameserver {address}: {error}", markup=False)
    if as_json:
        print_json(
            {"group": group, "nameservers": list(forgotten.nameservers), "silent": sorted(forgotten.silent)}
        )
    elif forgotten.nameservers:
        out.print(f"{group} is forgotten at {', '.join(forgotten.nameservers)}")
    if not forgotten.silent:
        return 0
    print_error(
        f"{len(forgotten.silent)} of {len(forgotten.silent) + len(forgotten.nameservers)} nameservers may "
        f"still remember {group}. It may be repeated: ledgermq cluster forget-group {group}. A nameserver "
        "that starts again remembers no broker group that is down"
    )
    return 1


def consequences(lost: LostBrokerGroup) -> list[str]:
    """Return in plain words what is lost with a broker group, and what is not."""
    gone = lost.gone
    heard = f"was heard last {gone.since[gone.name]}" if gone.since else "is down"
    nodes = ", ".join(node.node_id for node in gone.group.nodes) or "none that is known"
    held = f", of {len(gone.topics):,} topics: {shortened(gone.topics)}" if gone.topics else ""
    lines = [
        f"FORGETTING BROKER GROUP {gone.name}",
        f"* It {heard}. Its nodes ({nodes}) do not answer.",
        f"* Lost, unless one comes back: all messages that are stored there alone{held}; "
        "how far consumer groups are there.",
    ]
    if lost.alone:
        lines.append(
            f"* No other broker group has {shortened(lost.alone)}: as if deleted, until they are created "
            "again."
        )
    return [
        *lines,
        "* Listings, queries and lags are called complete without it, "
        "and topics and consumer groups can be changed again.",
        "* Producers that run, and nodes for official clients, keep its queues in the count for messages "
        "with a message group:",
        "  those that belong there fail until these are started again.",
        "* Nothing is deleted: a node of it that starts again is listed again, "
        "with what it holds and without those changes.",
        "",
    ]

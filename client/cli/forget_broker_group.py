"""`ledgermq cluster forget-group`: a broker group that is lost for good is no longer waited for.

Owns: what a person is told and asked before. Must not: decide whether the group is lost (GroupForgetting and the nameservers do).
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from ..admin.forget_broker_group import Forgotten, GroupForgetting, LostGroup
from ..errors import shortened
from .output import (
    DEFAULT_NAMESERVER,
    BrokerGroupArgument,
    JsonOption,
    NameserverOption,
    confirm,
    err,
    out,
    print_error,
    print_json,
    run,
)


def forget_group(
    group: BrokerGroupArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> int:
    """Take a broker group that is lost for good off all lists. Refused while a node of it lives.

    What it holds is then no longer missed by listings, queries and changes. Exit code 1: a nameserver did not do it.
    """

    async def look() -> LostGroup:
        async with GroupForgetting(nameserver) as admin:
            return await admin.lost_group(group)

    async def forget() -> Forgotten:
        async with GroupForgetting(nameserver) as admin:
            return await admin.forget_group(group)

    (err if as_json else out).print(escape("\n".join(consequences(run(look())))))
    if not yes:
        confirm(f"Forget {group}?")
    forgotten = run(forget())
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
        f"{len(forgotten.silent)} of {len(forgotten.silent) + len(forgotten.nameservers)} nameservers may still remember "
        f"{group}. It may be repeated: ledgermq cluster forget-group {group}. A nameserver that starts again remembers no "
        "group that is down"
    )
    return 1


def consequences(lost: LostGroup) -> list[str]:
    """Return in plain words what is lost with a group, and what is not."""
    gone = lost.gone
    heard = f"was heard last {gone.since[gone.name]}" if gone.since else "is down"
    nodes = ", ".join(node.node_id for node in gone.group.nodes) or "none that is known"
    held = f", of {len(gone.topics):,} topics: {shortened(gone.topics)}" if gone.topics else ""
    lines = [
        f"FORGETTING BROKER GROUP {gone.name}",
        f"* It {heard}. Its nodes ({nodes}) do not answer.",
        f"* Lost, unless one comes back: all messages that are stored there alone{held}; how far consumer groups are there.",
    ]
    if lost.alone:
        lines.append(
            f"* No other group has {shortened(lost.alone)}: as if deleted, until somebody creates them again."
        )
    return [
        *lines,
        "* Listings, queries and lags are called complete without it, and topics and consumer groups can be changed again.",
        "* Producers that run, and nodes for official clients, keep its queues in the count for messages with a message group:",
        "  those that belong there fail until these are started again.",
        "* Nothing is deleted: a node of it that starts again is listed again, with what it holds and without those changes.",
        "",
    ]

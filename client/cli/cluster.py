"""`ledgermq cluster status|leader|transfer|recover`: reports of the nodes, even without a nameserver.

The other `ledgermq cluster` commands are added here. Owns: the loops of `--watch` and `--wait`, and the
output.
Must not: judge (`status_report` does).

`ledgermq cluster recover` runs the tool for the folder of a stopped node on this terminal. The server package
reads the folder.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import grpc
import grpc.aio
import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.admin_pb2_grpc import AdminServiceStub

from ..admin import status_report
from ..admin.cluster_status import collect, groups_asked, log_address_of, until_healthy
from ..admin.status_report import BrokerGroupReport, BrokerGroupVerdict
from ..cluster.channels import open_channel
from ..durations import duration, parse_duration
from ..errors import BrokerUnreachableError, LedgerMQError, UsageError, error_of
from ..local.cluster import require_server
from ..local.processes import run_to_end
from . import broker_groups as cli_broker_groups
from .output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    NodeOption,
    out,
    print_done,
    print_error,
    print_json,
    run,
    text_table,
)
from .promote import promote


def recover(
    data: Annotated[Path, typer.Option("--data", help="Data folder of a stopped node that survived.")],
    show: Annotated[
        bool, typer.Option("--show", help="Only show what the folder holds; nothing is changed.")
    ] = False,
    clone_for: Annotated[
        str,
        typer.Option("--clone-for", metavar="NODE", help="Make this copy of a recovered folder into NODE's."),
    ] = "",
    yes_lose_data: Annotated[
        str,
        typer.Option(
            "--yes-lose-data", metavar="GROUP", help="The broker group's name, instead of the question."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> int:
    """Make a broker group work again without its lost majority.

    What only the lost nodes had is lost. First --show on every node that survived; then recover the best one,
    copy its folder to the other machines, and --clone-for on each copy. The runbook has the steps.
    """
    if show and (clone_for or yes_lose_data):
        raise UsageError("--show changes nothing", "It was given with an option that does", "Leave one out")
    if as_json and not (show or clone_for or yes_lose_data):
        raise UsageError(
            "--json asks no question",
            "It was not confirmed that data may be lost",
            "Look first: --show --json; then: --yes-lose-data GROUP --json",
        )
    require_server("recovering a broker group")
    command = [sys.executable, "-m", "ledgermq.broker.recover", "--data", str(data)]
    command += ["--show"] * show
    command += ["--clone-for", clone_for] if clone_for else []
    command += ["--yes-lose-data", yes_lose_data] if yes_lose_data else []
    return run_to_end([*command, *["--json"] * as_json])


_WITHOUT_LEADER = (BrokerGroupVerdict.NO_QUORUM, BrokerGroupVerdict.NO_ANSWER)
_COLOURS = {
    BrokerGroupVerdict.HEALTHY: "green",
    BrokerGroupVerdict.DEGRADED: "yellow",
    BrokerGroupVerdict.NO_QUORUM: "red",
    BrokerGroupVerdict.NO_ANSWER: "red",
}


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    cluster = typer.Typer(help="Look at a cluster and its leaders.", no_args_is_help=True)
    cluster.command("status")(status)
    cluster.command("leader")(leader)
    cluster.command("transfer")(transfer)
    cluster.command("recover")(recover)
    cli_broker_groups.add_to(cluster)
    cluster.command("promote")(promote)
    app.add_typer(cluster, name="cluster")


def status(
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    node: NodeOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second.")] = False,
    wait: Annotated[
        str, typer.Option("--wait", help="Wait this long for a healthy cluster, e.g. 30s or 2m.")
    ] = "",
) -> int:
    """Show every node. Exit code: 0 healthy, 1 degraded, 2 no quorum, 3 nothing answers."""
    seconds = parse_duration(wait) if wait else 0.0
    if watch and (as_json or wait):
        raise typer.BadParameter("--watch shows a screen until Ctrl-C; it goes without --json and --wait")
    if watch:
        return run(_watch(nameserver, node or []))
    reports, failure = run(until_healthy(nameserver, node or [], seconds))
    if as_json:
        print_json({"groups": [each.as_json() for each in reports], "error": str(failure or "")})
    else:
        _print(reports, failure)
    return status_report.exit_code(reports)


def leader(
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    node: NodeOption = None,
    group: Annotated[str, typer.Option("--group", help="Only this broker group. Default: all.")] = "",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the node id only, for scripts.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Print who leads each broker group. Exit code 2 when none does, 3 when nothing answers;
    the worst broker group decides.
    """
    reports, failure = run(collect(nameserver, node or []))
    wanted = [each for each in reports if group in ("", each.group)]
    if not wanted:
        known = ", ".join(each.group for each in reports) or "none"
        what = f'there is no answer of broker group "{group}"' if group else "no broker group answers"
        print_error(str(failure or f"{what} (known: {known}). See: ledgermq cluster status"))
        return 3
    if as_json:
        print_json([_leader_as_dict(each) for each in wanted])
        return max(int(each.verdict) if each.verdict in _WITHOUT_LEADER else 0 for each in wanted)
    return max(_print_leader(each, quiet=quiet, several=len(wanted) > 1) for each in wanted)


def _leader_as_dict(report: BrokerGroupReport) -> dict[str, object]:
    name, address = ("", "") if report.verdict in _WITHOUT_LEADER else (report.leader_id, _address(report))
    return {"group": report.group, "leader_id": name, "address": address, "term": report.term}


def _address(report: BrokerGroupReport) -> str:
    return next((row.address for row in report.rows if row.node_id == report.leader_id), "")


def _print_leader(report: BrokerGroupReport, *, quiet: bool, several: bool) -> int:
    if report.verdict in _WITHOUT_LEADER:
        print_error(f"broker group {report.group} has no leader. See: ledgermq cluster status")
        return int(report.verdict)
    line = report.leader_id if quiet else f"{report.leader_id}   {_address(report)}   term {report.term:,}"
    out.print(escape(f"{report.group}   {line}" if several and not quiet else line))
    return 0


def transfer(
    to_node: Annotated[str, typer.Argument(metavar="NODE", help="Node that shall lead, e.g. n2.")],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hand leadership to another node. Writes pause for a few milliseconds."""
    answer = run(_transfer(nameserver, node or [], to_node))
    if answer.HasField("refusal") and answer.refusal.code:
        raise error_of(answer.refusal)
    print_done(f"{answer.leader_id} leads", {"leader_id": answer.leader_id}, as_json=as_json)


async def _watch(nameserver: str, nodes: list[str]) -> int:
    """Show the state until Ctrl-C: in place on a terminal, else one table below the other."""
    if not out.is_terminal:
        while True:
            _print(*await collect(nameserver, nodes))
            await asyncio.sleep(1.0)
    with Live(console=out, auto_refresh=False, screen=True) as live:
        while True:
            reports, failure = await collect(nameserver, nodes)
            stamp = Text(f"{time.strftime('%H:%M:%S')}   Ctrl-C ends", style="dim")
            shown = [_render(each) for each in reports]
            if failure is not None:
                shown = [Group(Text(str(failure), style="red"))]
            live.update(Group(stamp, *shown), refresh=True)
            await asyncio.sleep(1.0)


async def _transfer(nameserver: str, nodes: list[str], to_node: str) -> pb.TransferLeadershipResponse:
    groups = await groups_asked(nameserver, nodes)
    members = [name for group in groups for name in group.members]
    meant = [each for each in groups if to_node in each.members]
    if len(meant) > 1:
        raise UsageError(
            f"there is a node {to_node} in each of {', '.join(each.group for each in meant)}",
            "Nothing was changed",
            "Ask a node of the broker group that is meant: --node HOST:8082",
        )
    if not meant:
        raise UsageError(f'there is no node "{to_node}"', f"The nodes are {', '.join(members)}")
    group = meant[0]
    answer = next(iter(group.answers.values()), None)
    if answer is None:
        raise BrokerUnreachableError(", ".join(group.members.values()), "no node of the broker group answers")
    address = log_address_of(answer, *nodes)
    async with open_channel(address) as channel:
        request = pb.TransferLeadershipRequest(to_node=to_node)
        try:
            result: pb.TransferLeadershipResponse = await AdminServiceStub(channel).TransferLeadership(
                request, timeout=10
            )
        except grpc.aio.AioRpcError as error:
            raise BrokerUnreachableError(address, error.details() or error.code().name) from error
    if result.refusal.code and to_node not in group.answers:
        raise LedgerMQError(
            f"{to_node} cannot take over: it does not answer; nothing was changed",
            f"The broker group says: {result.refusal.message}",
            f"Start it (ledgermq broker --node {to_node}, or ledgermq up), and wait until it is level: "
            "ledgermq cluster status --wait 30s",
        )
    return result


def _print(reports: list[BrokerGroupReport], failure: LedgerMQError | None) -> None:
    for each in reports:
        out.print(_render(each), soft_wrap=True)
    if failure is not None:
        print_error(str(failure))


def _log_begin(report: BrokerGroupReport) -> str:
    if not report.log_start_ms:
        return report.log_begin
    age_ms = max(int(time.time() * 1000) - report.log_start_ms, 0)
    return f"{report.log_begin}, oldest entry {duration(age_ms)} ago"


def _render(report: BrokerGroupReport) -> Group:
    head = Text(report.headline(), style="bold")
    head.highlight_words([report.verdict.text], style=_COLOURS[report.verdict])
    first, *lines = text_table(status_report.COLUMNS, [status_report.cells(row) for row in report.rows])
    notes = [Text(note) for note in report.notes]
    begin = [Text(_log_begin(report), style="dim")] if report.log_begin else []
    return Group(head, *begin, Text(first, style="bold"), *map(Text, lines), *notes)

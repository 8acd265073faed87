"""`ledgermq up`, `broker`, `nameserver`: start servers as processes.

Owns: the output of `up`, and its reaction when a node ends. Must not: import a server package.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

from ..admin.cluster_status import list_broker_groups, until_healthy
from ..errors import UsageError
from ..interrupts import EXIT_INTERRUPTED, without_interrupt
from ..local.cluster import LocalCluster, require_server
from ..local.plan import LocalPlan
from ..local.processes import ProcessEndedError, ServerProcess, signals_as_interrupt
from .output import DEFAULT_NAMESERVER, out, run, text_table

MAX_GROUPS = 16
_CLUSTER = "local"  # name of the cluster of a broker without another one
_REPLICATIONS = ("quorum", "async_master", "sync_master")
_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
_RESTART_SECONDS = 3.0
_QUICK_END_SECONDS = 10.0  # a node that ends within this time after a restart is not restarted again
_HEALTHY_SECONDS = 10.0
_WILL_NOT_START = (2, 3)  # exit codes of a broker: wrong settings, unusable folder or ports


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("up")(up)
    app.command("broker", context_settings=_PASS_ON)(broker)
    app.command("nameserver", context_settings=_PASS_ON)(nameserver)


def up(
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "--replicas", help="Nodes of each broker group: 1, 3 or 5. Default 3."),
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Folder for data and logs; made when missing.")] = Path(
        "ledgermq-data"
    ),
    groups: Annotated[
        int | None,
        typer.Option(
            "--groups", help="Broker groups, each a log of its own. Default: those of the folder, else 1."
        ),
    ] = None,
    replication: Annotated[
        str | None,
        typer.Option(
            "--replication",
            help="quorum; or the first node of a broker group is its master: async_master, sync_master. "
            "Default: that of the folder, else quorum.",
        ),
    ] = None,
    rejoin: Annotated[
        str,
        typer.Option("--rejoin", metavar="NODE", help="Let this node come back with an empty data folder."),
    ] = "",
    join: Annotated[
        str | None,
        typer.Option(
            "--join",
            metavar="HOST:PORT",
            help="Start only brokers, as further broker groups of the cluster with this nameserver.",
        ),
    ] = None,
) -> int:
    """Start a whole cluster on this machine: nameserver and brokers. Ctrl-C stops it (exit code 130;
    SIGTERM: 0).
    """
    _check(nodes, data, groups, replication)
    if join is not None and not join.strip():  # `--join "$UNSET"` would start a separate cluster
        raise UsageError(
            "--join is empty", "It takes the nameserver of a cluster", "Name it: ledgermq up --join HOST:PORT"
        )
    cluster = LocalCluster(data.resolve())
    if join:
        cluster.joins = (join, *run(_known_by(join)))
    with signals_as_interrupt():
        try:
            plan = cluster.prepare(nodes, groups, replication=replication, rejoin=rejoin)
            _start(cluster, plan, data, rejoin)
            _watch(cluster)
        except ProcessEndedError as failure:
            if hint := _rejoin_hint(failure.name, str(failure), data):
                out.print(escape(hint))
            raise
        except KeyboardInterrupt as interrupt:
            told = signal.SIGTERM in interrupt.args
            out.print("\nstopping ...")
        finally:
            with without_interrupt():
                killed = cluster.stop()
    _print_stopped(killed, data)
    return 0 if told else EXIT_INTERRUPTED


def broker(context: typer.Context) -> None:
    """Run one broker node. All its flags: ledgermq broker --help."""
    require_server()
    _become("ledgermq.broker", context.args)


def nameserver(context: typer.Context) -> None:
    """Run one nameserver. All its flags: ledgermq nameserver --help."""
    _become("ledgermq.nameserver", context.args)


def _check(nodes: int | None, data: Path, groups: int | None, replication: str | None) -> None:
    """Look at the options of `up` before anything is made. Raises: UsageError."""
    if replication not in (None, *_REPLICATIONS):
        raise UsageError(
            f"there is no replication {replication}", "", f"Choose one of {', '.join(_REPLICATIONS)}"
        )
    with_slaves = replication in _REPLICATIONS[1:]
    if nodes is not None and nodes not in (1, 3, 5) and not (with_slaves and nodes == 2):
        raise UsageError(f"a broker group has 1, 3 or 5 nodes, not {nodes}", "", "Start three: ledgermq up")
    if replication == "sync_master" and nodes == 1:
        raise UsageError(
            "a master needs at least one slave, which confirms its messages",
            "Nothing was made",
            "Start two nodes or more: ledgermq up --replication sync_master --nodes 2",
        )
    if groups is not None and not 1 <= groups <= MAX_GROUPS:
        raise UsageError(
            f"a cluster on one machine has 1 to {MAX_GROUPS} broker groups, not {groups}",
            "",
            "Start two: ledgermq up --groups 2",
        )
    if data == Path():  # `--data "$UNSET"` would write into the current folder
        raise UsageError(
            "--data is empty or names the current folder",
            "It takes a folder for nothing but the data",
            "Name one: ledgermq up --data DIR",
        )


async def _known_by(nameserver: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the broker groups and nodes of a cluster that local brokers can join. Raises: LedgerMQError."""
    listed = await list_broker_groups(nameserver)
    if others := sorted({route.cluster for route in listed.groups} - {_CLUSTER}):
        name = others[0]
        raise UsageError(
            f"the cluster at {nameserver} is named {name}, and the brokers of ledgermq up belong to one "
            f"named {_CLUSTER}",
            "Clients there would not find them. Nothing was made",
            f"Start them one by one: ledgermq broker --cluster {name} --nameservers {nameserver} (all "
            "flags: --help)",
        )
    nodes = frozenset(node.node_id for route in listed.groups for node in route.nodes)
    return frozenset(route.group for route in listed.groups), nodes


def _start(cluster: LocalCluster, plan: LocalPlan, data: Path, rejoin: str) -> None:
    """Start everything, and say where it is. `data`: as the user named it. Raises: ProcessEndedError."""
    what = "" if plan.joins else "a nameserver and "
    out.print(f"starting {what}{_brokers(plan)}, data in {escape(str(data))} ...")
    cluster.start(
        rejoin=rejoin,
        on_ready=lambda name: out.print(f"  {name} is ready"),
        on_wait=lambda name, doing: out.print(escape(f"  {name} is not ready yet: {doing}")),
    )
    run(until_healthy(plan.nameserver, [], _HEALTHY_SECONDS))  # so that what comes next just works
    _print_cluster(cluster, plan)


def _become(module: str, arguments: list[str]) -> None:
    """Replace this process, so that signals reach the server itself."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _brokers(plan: LocalPlan) -> str:
    count = len(plan.nodes)
    brokers = "1 broker" if count == 1 else f"{count} brokers"
    return brokers if len(plan.groups) == 1 else f"{brokers} in {len(plan.groups)} broker groups"


def _print_cluster(cluster: LocalCluster, plan: LocalPlan) -> None:
    several = len(plan.groups) > 1
    rows = [
        (*[group] * several, name, str(cluster.nodes[name].pid), f"127.0.0.1:{p.messaging}",
         f"127.0.0.1:{p.log}", f"127.0.0.1:{p.raft}", f"127.0.0.1:{p.http}")
        for group, nodes in plan.groups.items()
        for name, p in nodes.items()
    ]  # fmt: skip
    heads = (*["BROKER GROUP"] * several, "NODE", "PID>", "OFFICIAL CLIENTS", "LOG, ADMIN", "RAFT", "HTTP")
    out.print(f"\nnameserver   {plan.nameserver}")
    for line in text_table(heads, rows):
        out.print(escape(line))
    if cluster.added:
        out.print(
            f"\nNew: {', '.join(cluster.added)}. Topics that were there before have no queues in it yet; "
            f"it gets them by: ledgermq cluster add-group {cluster.added[0]}"
        )
    if plan.joins:
        out.print(f"\nPart of the cluster at {plan.joins}. It gets the topics of the others by:")
        for group in plan.groups:
            out.print(f"  ledgermq cluster add-group {group}")
        out.print(f"Before it goes for good: ledgermq cluster drain {next(iter(plan.groups))} --wait")
    out.print("\nNext, in another terminal:")
    if plan.nameserver != DEFAULT_NAMESERVER:
        out.print(f"  export LEDGERMQ_NAMESERVER={plan.nameserver}")
    program = escape(sys.argv[0] if os.sep in sys.argv[0] else "ledgermq")
    out.print(f'  {program} send orders "hello"')
    out.print(f"  {program} consume orders --group billing --count 1")
    out.print(f"  {program} cluster status")
    first = next(iter(plan.nodes))
    out.print(f"  kill -9 {cluster.nodes[first].pid}                # {after_a_kill(first, plan)}")
    out.print("Ctrl-C stops everything. Logs: " + escape(str(cluster.folder / "logs")))


def after_a_kill(name: str, plan: LocalPlan) -> str:
    """Return what becomes of a broker group when its first node is killed."""
    if plan.nodes_per_group == 1:
        return f"{name} goes; it is restarted here"
    if plan.replication == "quorum" and plan.nodes_per_group == 2:  # as a restore makes it
        return (
            f"{name} goes, and writes wait until it is back: one of two is no majority (it is restarted here)"
        )
    if plan.replication == "quorum":
        return f"{name} goes, the broker group stays; it is restarted here"
    return (
        f"{name} goes; if it is the master, messages can be read and none be stored until it is back (it is "
        "restarted here), or another node is promoted: ledgermq cluster promote NODE"
    )


def _rejoin_hint(name: str, said: str, data: Path) -> str:
    """Return how a local cluster does what a node's last words advise, or nothing."""
    if "ledgermq broker --rejoin" not in said:
        return ""
    command = f"ledgermq up --data {data} --rejoin {name}"
    return f"{name} shall fetch everything from the others? Here that is: {command}"


def _print_stopped(killed: list[str], data: Path) -> None:
    if killed:
        out.print(
            f"{', '.join(killed)} did not stop in time and was killed; nothing acknowledged is lost by that."
        )
    out.print(
        f"stopped. The data are in {escape(str(data))}; start again: ledgermq up --data {escape(str(data))}"
    )


def _watch(cluster: LocalCluster) -> NoReturn:
    """Until Ctrl-C: start again what was killed, report what cannot start."""
    everything: list[ServerProcess] = list(cluster.nodes.values())
    if cluster.nameserver is not None:
        everything.append(cluster.nameserver)
    given_up: set[str] = set()
    restarted: dict[str, float] = {}
    while len(given_up) < len(everything):
        for process in everything:
            code = process.exit_code
            if code is None or process.name in given_up:
                continue
            quick = time.monotonic() - restarted.get(process.name, -_QUICK_END_SECONDS) < _QUICK_END_SECONDS
            if code in _WILL_NOT_START or (quick and code >= 0):  # someone may kill it any number of times
                out.print(
                    f"{process.name} ended with code {code} and stays down:\n{escape(process.log_tail(5))}"
                )
                if hint := _rejoin_hint(process.name, process.log_tail(5), cluster.folder):
                    out.print(escape(hint))
                given_up.add(process.name)
                continue
            how = f"signal {-code}" if code < 0 else f"code {code}"
            out.print(f"{process.name} ended ({how}); it is started again in {_RESTART_SECONDS:g} s")
            time.sleep(_RESTART_SECONDS)
            process.start()
            restarted[process.name] = time.monotonic()
            out.print(f"{process.name} is started again, pid {process.pid}")
        time.sleep(0.2)
    raise UsageError("no process is left", "All ended; see above", f"The logs: {cluster.folder / 'logs'}")

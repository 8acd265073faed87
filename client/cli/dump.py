"""`ledgermq dump` and `ledgermq check`: copies of the nodes' logs, and the Spark job that compares them.

Owns: the choice of nodes and folders, and what is never replaced without being asked. Must not: read the
content of the files.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape

from ledgermq.proto.digest_dump import edge_blocks, read_node_digests
from ledgermq.proto.dump_manifest import MANIFEST, DumpManifest, decode_manifest
from ledgermq.proto.dumped_log import UnusableDumpError
from ledgermq.proto.errors import LayoutError

from ..admin.cluster_status import KnownNode, ask, known_nodes
from ..admin.dump import DumpResult, dump_node, fetch_ranges, folder_name
from ..admin.status_report import size
from ..errors import LedgerMQError, MissingExtraError, OffsetOutOfRangeError, RefusedError, UsageError
from ..local.cluster import require_server
from ..local.processes import run_to_end
from .output import (
    DEFAULT_NAMESERVER,
    JsonOption,
    NameserverOption,
    NodeOption,
    err,
    out,
    print_error,
    print_json,
    run,
)

_CHECK_MODULES = ("pyspark", "pyarrow", "pandas")
#: How often digests are taken before giving up, when retention deletes what they are about meanwhile.
TRIES: Final = 5


RereadOption = Annotated[
    bool,
    typer.Option(
        "--reread",
        help="Digests: the nodes read their logs now, which finds damage since they were last scrubbed.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    app.command("dump")(dump)
    app.command("check")(check)


def dump(
    to: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder to write; one sub-folder per node, in one per broker group if there are several.",
        ),
    ],
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    node: NodeOption = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Dump the data folder of a node that is not running instead."),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace the dump that DIR holds (it is removed first). Else it is refused."
        ),
    ] = False,
    digests: Annotated[
        bool,
        typer.Option(
            "--digests",
            help="Take digests of the logs' blocks instead of the logs: megabytes, for ledgermq check only.",
        ),
    ] = False,
    reread: RereadOption = False,
    as_json: JsonOption = False,
) -> int:
    """Copy every node's log as it stands on disk. Up to its commit point; then: ledgermq check DIR."""
    _refuse_data_folder(to)
    if data is not None:
        return _dump_offline(data, to, overwrite, as_json, digests=digests)
    if reread and not digests:
        raise UsageError(
            "--reread is for digests: a dump of the log is read anyway", "Nothing was dumped", "Leave it out"
        )
    folders, missing = run(
        _dump_all(nameserver, node or [], to, overwrite, as_json, digests=digests, reread=reread)
    )
    if as_json:
        print_json({"dumps": [_summary(folder) for folder in folders], "missing": missing})
    if missing:
        print_error(
            f"there is no dump of {', '.join(missing)}, which does not answer. The check will call the rest "
            "incomplete. See: ledgermq cluster status"
        )
        return 1
    if not as_json:
        out.print(escape(f"Next: ledgermq check {to}"))
    return 0


def check(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="What ledgermq dump wrote. With --live a new folder for digests, default check-<time>.",
        ),
    ] = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    live: Annotated[
        str,
        typer.Option(
            "--live",
            metavar="NAMESERVER",
            help="Take the digests of the running nodes that it knows, check them, and fetch what differs.",
        ),
    ] = "",
    reread: RereadOption = False,
    report: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report. Default: DIR/report.")
    ] = None,
    local: Annotated[int | None, typer.Option("--local", help="Cores to use. Default: all.")] = None,
    master: Annotated[
        str, typer.Option("--master", help="A Spark cluster: spark://host:7077, sc://host:15002, ...")
    ] = "",
    strict: Annotated[bool, typer.Option("--strict", help="Notes count as faults, too.")] = False,
    duplicates: Annotated[
        bool,
        typer.Option("--duplicates", help="Whole dumps: name message ids that a topic has more than once."),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compare the nodes' logs on Spark. Exit code: 0 consistent, 1 inconsistent, 2 unusable, 3 incomplete."""
    if live and duplicates:
        raise UsageError(
            "--live takes digests, which hold no messages",
            "Nothing was checked",
            "Search whole dumps for duplicates: ledgermq dump DIR && ledgermq check DIR --duplicates",
        )
    if live:
        require_spark("ledgermq check", master)
        folder = folder or Path(datetime.now(UTC).strftime("check-%Y%m%d-%H%M%S"))
        _refuse_data_folder(folder)
        _, missing = run(
            _dump_all(live, [], folder, overwrite=False, quiet=True, digests=True, reread=reread)
        )
        for name in missing:
            err.print(f"{name} does not answer: there are no digests of it", markup=False)
    if folder is None:
        raise UsageError(
            "no dumps are named", "Nothing was checked", "Name them: ledgermq check DIR, or --live NAMESERVER"
        )
    if not folder.is_dir():
        print_error(f"there is no folder {folder}. Nothing was checked. Make one: ledgermq dump {folder}")
        return 2
    require_spark("ledgermq check", master)
    command = [sys.executable, "-m", "ledgermq.spark_jobs.verify", str(folder)]
    command += ["--nameserver", live or nameserver]
    command += ["--out", str(report)] if report is not None else []
    command += ["--local", str(local)] if local is not None else []
    command += ["--master", master] if master else []
    command += ["--strict"] * strict + ["--duplicates"] * duplicates + ["--json"] * as_json
    try:
        return run_to_end(command)
    except KeyboardInterrupt:
        err.print("interrupted: nothing can be said about the dumps")
        raise


def require_spark(command: str, master: str = "") -> None:
    """Raises: MissingExtraError, LedgerMQError (no Java, which only Spark Connect does without)."""
    for module in _CHECK_MODULES:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(command, "spark", module)
    if master.startswith("sc://"):
        return
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise LedgerMQError(
            f"{command} needs Java 17 or newer for Spark, and there is no java on the PATH",
            "",
            "Install it: sudo apt-get install -y openjdk-17-jre-headless",
        )


def _refuse_data_folder(folder: Path) -> None:
    """Nothing may be written among the files of a node. Raises: UsageError."""
    for name in ("identity", "commitlog"):
        if (folder / name).exists():
            raise _wrong_folder(f"{folder} looks like the data folder of a node (it holds {name})")


def _wrong_folder(what: str) -> UsageError:
    return UsageError(
        what, "Nothing was written to it", "Name another folder for the dump: ledgermq dump DIR"
    )


def _dump_offline(data: Path, to: Path, overwrite: bool, as_json: bool, *, digests: bool) -> int:
    require_server("dumping a data folder")
    command = [sys.executable, "-m", "ledgermq.broker.backup.stream", "--data", str(data), "--out", str(to)]
    command += ["--overwrite"] * overwrite + ["--digests"] * digests + ["--json"] * as_json
    return run_to_end(command)


def _summary(folder: Path) -> dict[str, object]:
    """Return for programs what a dump holds; of one that a newer version wrote, only where it is."""
    manifest = _manifest(folder)
    return {**({} if manifest is None else manifest.summary()), "folder": str(folder)}


def _manifest(folder: Path) -> DumpManifest | None:
    """Return what a dump says of itself. None: this version cannot read it."""
    with suppress(LayoutError):
        return decode_manifest((folder / MANIFEST).read_bytes())
    return None


async def _dump_all(
    nameserver: str,
    nodes: list[str],
    to: Path,
    overwrite: bool,
    quiet: bool,
    *,
    digests: bool,
    reread: bool = False,
) -> tuple[list[Path], list[str]]:
    """Dump all nodes, one after the other; return their folders, and the names of those that could not be
    reached.

    Several broker groups get a folder each. Raises: LedgerMQError (no node is known), UsageError (the folder
    holds a dump, or one of another shape), and what `dump_node` raises.
    """
    targets = await known_nodes(nameserver, nodes)
    if not targets:
        raise LedgerMQError(
            "no node has an address for this network", "Nothing was dumped", "See: ledgermq cluster status"
        )
    several = len({target.group for target in targets}) > 1
    _refuse_other_shape(to, targets, several=several)
    folders = [to / folder_name(target.group) if several else to for target in targets]
    if not overwrite:
        _refuse_older(folders, targets)
    missing, here = [], []
    for target, folder in zip(targets, folders, strict=True):
        shown = f"{target.group} {target.node_id}" if several else target.node_id
        if await ask(target.address) is None:
            missing.append(shown)
            _refuse_mixture(folder / folder_name(target.node_id), shown)
        else:
            here.append((target, folder, shown))
    if digests:
        await _take_digests(here, quiet=quiet, reread=reread)
    else:
        await _take_dumps(here, quiet=quiet)
    return [folder / target.node_id for target, folder, _ in here], missing


_Here = list[tuple[KnownNode, Path, str]]


async def _take_digests(here: _Here, *, quiet: bool, reread: bool) -> None:
    """Take digests of nodes, again while retention deletes meanwhile what they are about.

    Raises: what `dump_node` and `fetch_ranges` raise.
    """
    for tries in range(1, TRIES + 1):
        try:
            await _take_dumps(here, quiet=quiet, digests=True, reread=reread)
            await _fetch_edges([(target, folder) for target, folder, _ in here])
            return
        except RefusedError as error:
            if not (error.retryable or isinstance(error, OffsetOutOfRangeError)) or tries == TRIES:
                raise
            err.print(
                "retention deleted a part of a log meanwhile: "
                f"taking all digests again ({tries + 1} of {TRIES})",
                markup=False,
            )


async def _take_dumps(here: _Here, *, quiet: bool, digests: bool = False, reread: bool = False) -> None:
    for target, folder, shown in here:
        done = await _dump_shown(target, folder, digests=digests, reread=reread)
        if not quiet:
            out.print(
                escape(f"{shown}   {size(done.bytes)} in {done.files} files -> {folder / target.node_id}")
            )


async def _fetch_edges(taken: list[tuple[KnownNode, Path]]) -> None:
    """Fetch the blocks in which any node's log begins or ends: digests of their parts cannot be compared.

    The nodes write meanwhile, so every log ends elsewhere. Raises: what `fetch_ranges` raises, LedgerMQError.
    """
    by_group: dict[str, list[tuple[KnownNode, Path]]] = {}
    for target, folder in taken:
        by_group.setdefault(target.group, []).append((target, folder))
    for nodes in by_group.values():
        try:
            dumps = [
                (target, folder, read_node_digests(path, decode_manifest((path / MANIFEST).read_bytes())))
                for target, folder in nodes
                for path in [folder / target.node_id]
            ]
        except (UnusableDumpError, LayoutError) as error:
            raise LedgerMQError(str(error)) from None
        edges = edge_blocks([dump.manifest for _, _, dump in dumps])
        for target, folder, dump in dumps:
            if ranges := dump.wanted(edges):
                await fetch_ranges(target.node_id, target.address, folder, ranges)


def _refuse_other_shape(to: Path, targets: list[KnownNode], *, several: bool) -> None:
    """An older dump of another shape in the folder would be checked with this one. Raises: UsageError."""
    nodes = [to / target.node_id for target in targets]
    groups = [to / target.group / target.node_id for target in targets]
    for folder in nodes if several else groups:
        if (folder / MANIFEST).exists():
            shape = "one broker group" if several else "several broker groups"
            raise _wrong_folder(f"{to} holds a dump of {shape} already ({folder})")


def _refuse_older(folders: list[Path], targets: list[KnownNode]) -> None:
    """Never replace a backup unasked. Raises: UsageError."""
    for folder, target in zip(folders, targets, strict=True):
        path = folder / folder_name(target.node_id)
        if (path / MANIFEST).exists():
            raise UsageError(
                f"{path} holds a dump already",
                "Nothing was changed",
                "Name another folder, or replace it: ledgermq dump DIR --overwrite",
            )


def _refuse_mixture(path: Path, shown: str) -> None:
    """The check would compare the older dump of a node that does not answer with the others' new ones.
    Raises: UsageError.
    """
    if (path / MANIFEST).exists():
        raise UsageError(
            f"{shown} does not answer, and {path} holds an older dump of it",
            "It would be compared with the new dumps of the others",
            "Name another folder: ledgermq dump DIR, or start the node first",
        )


async def _dump_shown(target: KnownNode, to: Path, *, digests: bool, reread: bool) -> DumpResult:
    """Dump one node with a line of progress on a terminal."""
    with err.status(f"{target.node_id} ...") as status:

        def show(done: int, total: int) -> None:
            status.update(f"{target.node_id}  {size(done)} of {size(total)}")

        done = await dump_node(target.node_id, target.address, to, show, digests=digests, reread=reread)
    manifest = _manifest(to / target.node_id)
    if manifest is not None and not digests and not manifest.is_restorable:
        err.print(
            f"{target.node_id}: its dump can be checked and exported, but not restored: the beginning of "
            "its log was deleted, and it could not write the state that stands for it (its log says why)",
            markup=False,
        )
    return done

"""`ledgermq demo`: prepares and runs the demo, and reports its result.

Owns: the demo's folder, the error report, the exit code. Must not: leave a process behind in any case.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..demo.demo_cluster import DemoCluster, LocalDemoCluster
from ..demo.display import DemoDisplay
from ..demo.run import Demo, DemoFailedError, DemoPlan, versions
from ..errors import LedgerMQError, UsageError
from ..interrupts import EXIT_INTERRUPTED, without_interrupt
from ..local.processes import signals_as_interrupt
from .output import out, print_error

_MARK = "demo.json"
_MAX_STORE_BYTES = "64GiB"


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command("demo")(demo)


def demo(
    nodes: Annotated[int, typer.Option("--nodes", help="Brokers: 3 or 5.")] = 3,
    kills: Annotated[int, typer.Option("--kills", help="How often the leader is killed.")] = 1,
    messages: Annotated[int, typer.Option("--messages", help="How many are sent, at least.")] = 200_000,
    docker: Annotated[bool, typer.Option("--docker", help="In containers instead of processes.")] = False,
    data: Annotated[Path, typer.Option("--data", help="Folder of the demo; emptied first.")] = Path(
        "build/demo"
    ),
) -> int:
    """Kill the leader under load, and prove that nothing is lost.
    200,000 messages go to three brokers meanwhile.
    """
    if nodes not in (3, 5):
        raise UsageError(f"the demo needs a broker group that survives a loss: 3 or 5 nodes, not {nodes}")
    if docker and nodes != 3:
        raise UsageError("the demo in containers has 3 brokers", "", "Leave NODES away: make demo DOCKER=1")
    if kills < 0 or messages < 1_000:
        raise UsageError("KILLS must be at least 0 and MESSAGES at least 1000")
    plan = DemoPlan(nodes, kills, messages, data.resolve())
    _make_folder(plan.folder)
    again = f"make demo NODES={nodes} KILLS={kills} MESSAGES={messages}" + (" DOCKER=1" if docker else "")
    with signals_as_interrupt(), DemoDisplay(out) as display:
        return _run(plan, display, again, docker=docker)


def _run(plan: DemoPlan, display: DemoDisplay, again: str, *, docker: bool) -> int:
    # On a nearly full disk brokers delete and refuse messages, which is not what this shows. Processes and
    # containers inherit it.
    os.environ.setdefault("LEDGERMQ_MAX_STORE_BYTES", _MAX_STORE_BYTES)
    kind = "containers" if docker else "brokers"
    display.title(f"LedgerMQ demo   {plan.nodes} {kind}, Spark", f"data: {_shown(plan.folder)}")
    cluster: DemoCluster | None = None
    run: Demo | None = None
    try:
        display.begin("looking at the machine ...")
        cluster = _cluster(plan, docker=docker)
        display.done(f"{versions()}, {_java()}, {cluster.ports()}")
        run = Demo(plan, cluster, display)
        _run_loop(run)
        display.line(run.result(), style="bold green")
        display.line(f"Next: {_shown(Path(sys.argv[0]))} up    report: {_shown(run.report)}")
        return 0
    except KeyboardInterrupt:
        display.line("\nstopped; no process is left.")
        return EXIT_INTERRUPTED
    except (LedgerMQError, OSError) as failure:
        _tell_failure(display, failure, cluster, run, again, plan.folder)
        return 1
    finally:
        if cluster is not None:
            with without_interrupt():  # everything is stopped, even on another Ctrl-C
                cluster.stop()


def _run_loop(run: Demo) -> None:
    """Run the steps; Ctrl-C cancels them where they are."""
    asyncio.run(run.run())


def _cluster(plan: DemoPlan, *, docker: bool) -> DemoCluster:
    if docker:
        from ..demo.docker import DockerDemoCluster

        return DockerDemoCluster(plan.folder)
    return LocalDemoCluster(plan.folder / "cluster", plan.nodes)


def _tell_failure(
    display: DemoDisplay,
    failure: Exception,
    cluster: DemoCluster | None,
    run: Demo | None,
    again: str,
    folder: Path,
) -> None:
    """Say which step failed and how, what the node in question last logged, and how to see it again."""
    display.line(f"FAILED at {display.step_name}", style="bold red")
    print_error(str(failure))
    node = failure.node if isinstance(failure, DemoFailedError) else ""
    if not node and run is not None and run.striker is not None:
        node = run.striker.strikes.last_victim
    if cluster is not None:
        for name in [node] if node else list(cluster.nodes)[:1]:
            display.line(f"last log lines of {name}:\n{cluster.log_tail(name)}")
    display.line(
        f"Everything is kept in {_shown(folder)} (logs: {_shown(folder)}/cluster/logs). Again: {again}"
    )


def _make_folder(folder: Path) -> None:
    """Empty the demo's own folder; refuse to empty any other. Raises: UsageError."""
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise UsageError(
            f"{folder} holds something that is not of the demo",
            "Nothing was changed",
            "Choose another --data",
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _MARK).write_text(json.dumps({"format": 1, "pid": os.getpid()}) + "\n")


def _java() -> str:
    """Return `Java 17`. Raises: UsageError when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise UsageError(
            "there is no Java; Spark needs 17 or newer", "", "See what is missing: make preflight"
        )
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    return f"Java {found[1] if found else '?'}"


def _shown(path: Path) -> str:
    """Return a path as short as possible."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)

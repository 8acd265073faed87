"""Last three steps of the demo: dump every node, compare the dumps with Spark, test the check itself.

Owns: running the check as a process, reading its report, damaging a copy. Must not: print, touch the nodes'
own data.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..admin.dump import DumpResult, dump_node
from ..errors import LedgerMQError
from .demo_cluster import DemoCluster

EXIT_CONSISTENT = 0
EXIT_INCONSISTENT = 1


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of the Spark check."""

    exit_code: int
    verdict: str
    found: tuple[str, ...]  # one line per error
    report: Path
    output: str


async def dump_all(cluster: DemoCluster, folder: Path) -> list[DumpResult]:
    """Dump every node, one after the other. Raises: LedgerMQError."""
    return [await dump_node(name, cluster.log_address(name), folder) for name in cluster.nodes]


async def check(folder: Path, out: Path) -> CheckResult:
    """Check the dumps in `folder`; the report goes to `out`. Raises: LedgerMQError (the check cannot run)."""
    command = [sys.executable, "-m", "ledgermq.spark_jobs.verify", str(folder), "--out", str(out)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    try:
        text, _ = await process.communicate()
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGTERM)  # including the JVM
        await process.wait()
        raise
    output = text.decode(errors="replace")
    report = out / "report.json"
    if process.returncode not in (EXIT_CONSISTENT, EXIT_INCONSISTENT) or not report.exists():
        last = "\n".join(output.splitlines()[-15:])
        raise LedgerMQError(f"the check ended with exit code {process.returncode}:\n{last}")
    said: dict[str, Any] = json.loads(report.read_text())
    found = tuple(each["line"] for each in said["findings"] if each["severity"] == "error")
    return CheckResult(process.returncode or 0, said["verdict"], found, out / "report.html", output)


def damaged_copy(folder: Path, to: Path, node: str) -> tuple[Path, int]:
    """Copy a dump, and flip one byte in the middle of one node's log. Return the file and the position.

    Files of the other nodes are hard links; nothing writes to them.
    """
    shutil.rmtree(to, ignore_errors=True)
    for name in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        copy = shutil.copy2 if name == node else os.link
        shutil.copytree(folder / name, to / name, copy_function=copy)
    segments = sorted((to / node / "commitlog").iterdir())
    sizes = [_written_size(path) for path in segments]
    target = segments[sizes.index(max(sizes))]
    position = max(sizes) // 2
    with target.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
    return target, position


def _written_size(path: Path) -> int:
    """Return where the trailing zeros of a preallocated segment begin, to within 64 KiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while size > 0:
            start = max(0, size - 65_536)
            file.seek(start)
            if file.read(size - start).strip(b"\0"):
                return size
            size = start
    return 0

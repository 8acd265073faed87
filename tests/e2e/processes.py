"""Processes of a test and what they leave behind.

Only processes whose command line names the test's folder count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .conftest import ROOT

#: Brokers judge their own logs: on a nearly full disk they would delete and refuse messages.
MAX_STORE_BYTES = "64GiB"
LEDGERMQ = [sys.executable, "-m", "ledgermq.client.cli"]


def environment(**extra: str) -> dict[str, str]:
    """Return an environment without settings of the person who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "COLUMNS": "160", "LEDGERMQ_MAX_STORE_BYTES": MAX_STORE_BYTES, **extra}


def run(arguments: list[str], *, timeout: float = 240, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run `ledgermq ARGUMENTS` to its end."""
    return execute([*LEDGERMQ, *arguments], ROOT, timeout=timeout, **extra)


def execute(
    command: list[str], folder: Path, *, timeout: float = 240, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end."""
    return subprocess.run(
        command,
        cwd=folder, env=environment(**extra), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def output_of(command: list[str], folder: Path, *, timeout: float = 240, **extra: str) -> str:
    """Run a command that must succeed; return what it printed."""
    done = execute(command, folder, timeout=timeout, **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of living processes that name the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder) in line and state != "Z":
            found.append(line)
    return found


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Poll until `condition()`; fail with `what` when the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"did not happen within {seconds:g} s: {what}"
        time.sleep(0.05)

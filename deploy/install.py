"""Make `.venv` and install LedgerMQ with all its extras, at the versions of constraints.txt. Run by `make setup`.

Shows what it does: the step, what is downloaded, and on long steps the time that passed. The output of pip is kept
in build/setup.log, and its end is printed when a step fails. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = ROOT / "build" / "setup.log"
BEAT_SECONDS = 15.0  # a sign of life this often where there is no terminal

#: What a step tells and runs. Spark comes last: it is the one large download.
STEPS: tuple[tuple[str, list[str]], ...] = (
    ("packages: client, server and development tools (about 145 MB)", [".[server,dev]"]),
    ("Spark: a 456 MB download once, then a minute of unpacking", [".[spark]"]),
)


def main() -> int:
    """Run all steps; return the exit code."""
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    total = len(STEPS) + 1
    python = VENV / "bin" / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not _run(f"[1/{total}] .venv with Python {version}", [sys.executable, "-m", "venv", str(VENV)]):
        return 1
    for number, (title, packages) in enumerate(STEPS, start=2):
        command = [str(python), "-m", "pip", "install", "--progress-bar", "off", "--editable", *packages]
        if not _run(f"[{number}/{total}] {title}", command):
            return 1
    return 0


def _run(title: str, command: list[str]) -> bool:
    """Run one step under its title with a clock; on failure print the end of the log. Return success."""
    started = beat = time.monotonic()
    terminal = sys.stdout.isatty()
    _say(f"setup {title} ...")
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=_environment()
        )
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if terminal:
                sys.stdout.write(f"\r  {now - started:4.0f} s  {_last_line()[:90]:<90}")
                sys.stdout.flush()
            elif now - beat >= BEAT_SECONDS:
                beat = now
                _say(f"  {now - started:4.0f} s  {_last_line()[:110]}")
    if terminal:
        sys.stdout.write("\r" + " " * 100 + "\r")
    if process.returncode == 0:
        _say(f"  done in {time.monotonic() - started:.1f} s")
        return True
    tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-25:])
    sys.stderr.write(f"{tail}\nsetup failed: {title}. The whole log: {LOG}. Try again: make setup\n")
    return False


def _environment() -> dict[str, str]:
    """Pin the packages and also what builds them; two names, because newer versions of pip split them."""
    constraints = str(ROOT / "constraints.txt")
    return {**os.environ, "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}


def _last_line() -> str:
    with LOG.open("rb") as log:
        log.seek(max(0, LOG.stat().st_size - 2000))
        lines = log.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup stopped. Go on: make setup\n")
        sys.exit(130)

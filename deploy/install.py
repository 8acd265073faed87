"""Create `.venv` and install LedgerMQ into it: `make setup`, `make spark` and `make docs`.

    python deploy/install.py            the client, the server, and what the tests need
    python deploy/install.py spark      Spark, into the same environment
    python deploy/install.py docs       the tools of the documentation site, into the same environment
    python deploy/install.py lowest     .venv/lowest: the lower bounds of the client's dependencies
                                        (`make lowest`)

Shows the current step, the downloads, and the elapsed time of long steps. pip's output goes to
build/setup.log, and its end is printed if a step fails. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = ROOT / "build" / "setup.log"
BEAT_SECONDS = 15.0  # interval of the progress line without a terminal

#: The compiler of proto/*.proto has its own environment, because its dependencies conflict with those of the
#: tests. Its code refuses older runtimes: with an old compiler, applications keep their versions of grpcio
#: and protobuf.
COMPILER: tuple[str, ...] = (
    "grpcio-tools==1.72.2",
    "grpcio==1.72.2",
    "protobuf==6.30.2",
    "setuptools==80.9.0",
)
_DEVELOPMENT = "packages: client, server and development tools (about 145 MB)"


@dataclass(frozen=True)
class Step:
    """An environment, created if missing, and what pip installs into it."""

    title: str
    environment: Path
    packages: tuple[str, ...]
    constraints: Path | None = ROOT / "constraints.txt"


def steps(what: str) -> list[Step]:
    """Return the steps of one of the commands above. Raises: SystemExit (another one)."""
    if what == "setup":
        return [
            Step(_DEVELOPMENT, VENV, ("--editable", ".[server,dev]")),
            Step("the compiler of proto/*.proto (4 MB)", VENV / "protoc", COMPILER, None),
        ]
    if what == "spark":
        return [
            Step(
                "Spark: a 456 MB download once, then a minute of unpacking", VENV, ("--editable", ".[spark]")
            )
        ]
    if what == "docs":
        return [Step("the documentation tools (12 MB)", VENV, ("--editable", ".[docs]"))]
    if what == "lowest":
        lowest = ROOT / "build" / "lowest.txt"
        lowest.write_text("\n".join(lowest_constraints()) + "\n")
        title = "the lower bounds of the client's dependencies"
        # Without the official client, which excludes some of them.
        packages = ("--editable", ".[server,bench]", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
        return [Step(title, VENV / "lowest", packages, lowest)]
    raise SystemExit(f"there is no installation {what!r}, only setup, spark, docs and lowest")


def lowest_constraints() -> list[str]:
    """Return constraints.txt with the lower bounds of the base install in place of its versions."""
    import tomllib  # missing in the Pythons that the preflight refuses

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {}
    for requirement in project["dependencies"]:
        name, _, rest = requirement.partition(">=")
        bounds[name] = rest.partition(",")[0]
    free = {*bounds, "matplotlib", "contourpy"}  # the pinned versions for plots need a newer numpy
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pinned = [line for line in pins if line.partition("==")[0] not in free]
    return pinned + [f"{name}=={version}" for name, version in bounds.items()]


def main(arguments: list[str]) -> int:
    """Run all steps. Returns the exit code."""
    what = arguments[0] if arguments else "setup"
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    todo = steps(what)
    for number, step in enumerate(todo, start=1):
        python = step.environment / "bin" / "python"
        make = [sys.executable, "-m", "venv", str(step.environment)]
        install = [str(python), "-m", "pip", "install", "--progress-bar", "off", *step.packages]
        commands = [install] if python.exists() else [make, install]
        if not _run(f"[{number}/{len(todo)}] {step.title}", commands, step.constraints, what):
            return 1
    return 0


def _run(title: str, commands: list[list[str]], constraints: Path | None, what: str) -> bool:
    """Run one step under its title with a clock. On failure print the end of the log. Returns success."""
    started = time.monotonic()
    _say(f"setup {title} ...")
    if all(_run_one(command, constraints, started) for command in commands):
        _say(f"  done in {time.monotonic() - started:.1f} s")
        return True
    tail = "\n".join(LOG.read_text(errors="replace").splitlines()[-25:])
    sys.stderr.write(f"{tail}\nsetup failed: {title}. The whole log: {LOG}. Try again: make {what}\n")
    return False


def _run_one(command: list[str], constraints: Path | None, started: float) -> bool:
    beat = time.monotonic()
    terminal = sys.stdout.isatty()
    with LOG.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=_environment(constraints)
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
    return process.returncode == 0


def _environment(constraints: Path | None) -> dict[str, str]:
    """Pin the packages and also their build requirements; two names, because newer versions of pip split
    them.
    """
    if constraints is None:
        return dict(os.environ)
    return {**os.environ, "PIP_CONSTRAINT": str(constraints), "PIP_BUILD_CONSTRAINT": str(constraints)}


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
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup stopped. Go on: the same command again\n")
        sys.exit(130)

"""Run h2spec, a conformance test of HTTP/2, against a server of `rpc`: `make h2spec`.

On asyncio and on uvloop. Exit code 0: all cases passed; 1: not all; 2: h2spec could not be built. Go builds
it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from .peers import run, serving

_VERSION: Final = "2.2.1"
_PROGRAM: Final = "github.com/summerwind/h2spec/cmd/h2spec"
#: h2spec has no go.mod: this one names the versions of what it needs.
_MODULE: Final = f"""\
module h2spec.invalid/build

go 1.21

require (
	github.com/fatih/color v1.16.0
	github.com/spf13/cobra v1.8.0
	github.com/summerwind/h2spec v{_VERSION}+incompatible
	golang.org/x/net v0.30.0
)
"""
FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / f"h2spec-{_VERSION}"
SUITES: Final = ("generic", "http2", "hpack")
#: Time in seconds that Go may take to fetch and build it, and that h2spec may take for a suite.
_BUILD_S: Final = 300.0
_SUITE_S: Final = 100.0
_SUMMARY: Final = re.compile(r"^(\d+) tests, (\d+) passed, ", re.MULTILINE)


class CannotBuildError(Exception):
    """What is missing for h2spec, and what to do."""


def counts_of(output: str) -> tuple[int, int] | None:
    """Return how many cases ran, and how many of them passed; None: h2spec did not get to its end."""
    found = _SUMMARY.search(output)
    return (int(found[1]), int(found[2])) if found is not None else None


def build() -> Path:
    """Return the program h2spec, which is built if it is not there yet. Raises: CannotBuildError."""
    program = FOLDER / "h2spec"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise CannotBuildError("h2spec is built by Go, which is not here: install it from https://go.dev/dl/")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "go.mod").write_text(_MODULE)
    command = [go, "build", "-mod=mod", "-o", str(program), _PROGRAM]
    try:
        subprocess.run(command, cwd=FOLDER, check=True, timeout=_BUILD_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotBuildError(
            "Go did not build h2spec, see above: it fetches modules through GOPROXY, so see to the network "
            "and run it again"
        ) from error
    return program


async def run_suites(program: Path, loop: str) -> bool:
    """Run all suites against one server, and print their counts. Returns whether all cases passed."""
    is_good = True
    async with serving("wire") as (_, address, _service):
        for suite in SUITES:
            output = await _output_of(
                [str(program), suite, "-h", "127.0.0.1", "-p", address.rpartition(":")[2]]
            )
            counts = counts_of(output)
            if counts is None or counts[0] == 0 or counts[1] < counts[0]:
                is_good = False
                print(output)
            passed = "no result" if counts is None else f"{counts[1]} of {counts[0]}"
            print(f"{loop:8} {suite:8} {passed}", flush=True)
    return is_good


async def _output_of(command: list[str]) -> str:
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(_SUITE_S):
            output, _ = await child.communicate()
    except TimeoutError:
        return f"h2spec did not end within {_SUITE_S:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    return output.decode("utf-8", "replace")


def main() -> int:
    """Return the exit code."""
    try:
        program = build()
    except CannotBuildError as error:
        print(error, file=sys.stderr)
        return 2
    logging.getLogger("ledgermq.rpc").setLevel(logging.CRITICAL)  # each case that ends a connection is logged
    results: list[bool] = []

    async def suites(loop: str) -> None:
        results.append(await run_suites(program, loop))

    for on_uvloop, loop in ((False, "asyncio"), (True, "uvloop")):
        run(partial(suites, loop), on_uvloop=on_uvloop)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

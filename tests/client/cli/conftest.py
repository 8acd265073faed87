"""Runs command lines in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ledgermq.client.cli import run_cli


class CommandLine:
    """Runs command lines, and takes what they print.

    `line` is split at blanks; `more` are further arguments, taken as they are.
    """

    def __init__(self, capture: pytest.CaptureFixture[str], *first: str) -> None:
        """`first`: arguments that every command line begins with."""
        self._capture = capture
        self._first = first

    def __call__(self, line: str, *more: str) -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr."""
        code = run_cli([*self._first, *line.split(), *more])
        printed = self._capture.readouterr()
        return code, printed.out, printed.err

    def out(self, line: str, *more: str, code: int = 0) -> str:
        """Check the exit code, and return stdout."""
        found, out, err = self(line, *more)
        assert found == code, err
        return out

    def err(self, line: str, *more: str, code: int = 1) -> str:
        """Check the exit code, and return stderr."""
        found, out, err = self(line, *more)
        assert found == code, out
        return err

    def json(self, line: str, *more: str) -> Any:
        """Return what `--json` prints, decoded."""
        return json.loads(self.out(line, *more, "--json"))


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """A command line without a cluster."""
    return CommandLine(capsys)


@pytest.fixture
def ledgermq(cluster: object, command_line: CommandLine) -> CommandLine:
    """A command line for the module's cluster, whose address is in the environment."""
    return command_line

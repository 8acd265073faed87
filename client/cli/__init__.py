"""Entry point `ledgermq`. Must not: import slow modules before Ctrl-C is handled."""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from ..interrupts import EXIT_INTERRUPTED, leave_on_interrupt
from .standard_streams import open_standard_streams


def main(arguments: list[str] | None = None) -> None:
    """Run one command line and exit: 0, 1 (failed), 2 (usage), 130 (Ctrl-C);
    commands may exit with codes of their own.
    """
    leave_on_interrupt()
    try:
        open_standard_streams()
        code = run_cli(sys.argv[1:] if arguments is None else arguments)
        leave_on_interrupt()  # only the end of the process remains
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    _end(code)


def _end(code: int) -> NoReturn:
    """End the process without the interpreter's own end,
    whose first step gives Ctrl-C back to the system (code -2, not 130).
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone; its error was reported
            stream.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a Ctrl-C up to here still counts
    os._exit(EXIT_INTERRUPTED if signal.SIGINT in signal.sigpending() else code)


def run_cli(arguments: list[str]) -> int:
    """Run one command line and return its exit code. No exception leaves, unless LEDGERMQ_DEBUG=1."""
    for module in ("typer", "rich"):
        if importlib.util.find_spec(module) is None:
            from ..errors import MissingExtraError

            sys.stderr.write(f"error: {MissingExtraError('the command ledgermq', 'cli', module)}\n")
            return 1
    from .command_line import run_command_line

    return run_command_line(arguments)

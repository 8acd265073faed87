"""Standard streams as the caller of a command left them. Must not: import slow modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def open_standard_streams() -> None:
    """Put /dev/null where the caller has closed stdin, stdout or stderr:
    their numbers must not go to sockets.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # for the life of the process


def close_output() -> None:
    """Throw away what is still to be written to stdout, because it is not read any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

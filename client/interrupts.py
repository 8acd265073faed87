"""Ctrl-C handling: while modules are loaded, and in short sections that must not be interrupted.

Must not: import slow modules.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

EXIT_INTERRUPTED: Final = 130


def leave(_number: int = 0, _frame: object = None) -> NoReturn:
    """Exit at once without output. For the time while modules are loaded and nothing needs a clean end."""
    os._exit(EXIT_INTERRUPTED)


def leave_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, unless the caller of the process ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def raise_on_interrupt() -> None:
    """Restore KeyboardInterrupt on Ctrl-C: from now on a clean end may be needed."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def without_interrupt() -> Iterator[None]:
    """Run a short section that must not be interrupted. Ctrl-C takes effect at its end.

    Raises: KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt

"""Ctrl-C at a moment when nothing can be left half done, and at one when a traceback would be the only answer.

Must not: import anything that takes long.
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
    """End at once and say nothing. For the time in which modules are loaded, and nothing is begun that must be ended."""
    os._exit(EXIT_INTERRUPTED)


def leave_on_interrupt() -> None:
    """Let Ctrl-C end the process at once from now on, unless its caller wants it to be ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def raise_on_interrupt() -> None:
    """Let Ctrl-C be KeyboardInterrupt again: from now on there may be something to end."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def without_interrupt() -> Iterator[None]:
    """Finish what is short and cannot be left in the middle; a Ctrl-C in it counts at its end. Raises: KeyboardInterrupt."""
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

"""Server processes: children of the CLI, with start, watch and orderly stop.

Owns: child processes and their log files. Must not: import servers; they are started as `python -m
ledgermq.…`.
Invariant: however the parent ends, the children end: by `stop_all`, or by the kernel if the parent is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import LedgerMQError
from ..interrupts import without_interrupt

_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02


class ProcessEndedError(LedgerMQError):
    """A server ended while it was needed."""

    def __init__(self, name: str, code: int, log_path: Path, tail: str, too: str = "") -> None:
        """`too`: names of other processes that ended as well."""
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        others = f"; {too} ended, too" if too else ""
        super().__init__(f"{name} ended ({how}){others}:\n{tail}\n", "", f"The whole log: {log_path}")
        self.name = name
        self.code = code


@dataclass
class ServerProcess:
    """One child process. `arguments` follow the Python interpreter, and are kept for a restart."""

    name: str
    arguments: Sequence[str]
    log_path: Path
    popen: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _log_begin: int = field(default=0, repr=False)  # where this run begins in the log file, bytes

    def start(self, *extra: str) -> None:
        """Start it in its own session. Ctrl-C then reaches only the parent, which stops all in order."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_begin = log.tell()
            self.popen = subprocess.Popen(
                [*_die_with_parent(), sys.executable, *self.arguments, *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid if self.popen is not None else 0

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self.popen.poll() if self.popen is not None else 0

    @property
    def running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal; ignored if the process has ended."""
        if self.running and self.popen is not None:
            self.popen.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and reap."""
        self.signal(signal.SIGKILL)
        if self.popen is not None:
            self.popen.wait()

    def wait(self, seconds: float) -> bool:
        """Return whether it ended within this time."""
        if self.popen is None:
            return True
        try:
            self.popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self, lines: int = 12) -> str:
        """Return the last log lines of this run."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(self._log_begin, self.log_path.stat().st_size - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])


def require_running(processes: Iterable[ServerProcess]) -> None:
    """Check that all run. Raises: ProcessEndedError, with the log tail of the first that has ended."""
    ended = [(process, code) for process in processes if (code := process.exit_code) is not None]
    if ended:
        first, code = ended[0]
        too = ", ".join(process.name for process, _ in ended[1:])
        raise ProcessEndedError(first.name, code, first.log_path, first.log_tail(), too)


def stop_all(processes: Iterable[ServerProcess], seconds: float = _STOP_SECONDS) -> list[str]:
    """Send SIGTERM to all at once, SIGKILL after `seconds`. Return the names of those that were killed."""
    alive = [process for process in processes if process.running]
    for process in alive:
        process.signal(signal.SIGCONT)  # a stopped process handles no other signal
        process.signal(signal.SIGTERM)
    end = time.monotonic() + seconds
    killed = []
    for process in alive:
        if not process.wait(max(0.0, end - time.monotonic())):
            process.kill()
            killed.append(process.name)
    return killed


def run_to_end(command: Sequence[str]) -> int:
    """Run a program to its end, and return its exit code.

    Ctrl-C and SIGTERM end it with all that it started (a JVM).

    Raises: KeyboardInterrupt.
    """
    with signals_as_interrupt():
        # own session: its process group holds exactly the processes to be ended
        with without_interrupt():
            child = subprocess.Popen([*_die_with_parent(), *command], start_new_session=True)
        try:
            return child.wait()
        finally:
            with without_interrupt():
                _end_group(child)


def _end_group(leader: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS) -> None:
    """Send SIGTERM to what is left of a child's process group, SIGKILL after `seconds`."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):  # the process group is empty
        os.killpg(leader.pid, signal.SIGTERM)
        while time.monotonic() < end:
            leader.poll()  # a dead child belongs to the process group until it is reaped
            os.killpg(leader.pid, 0)
            time.sleep(_POLL_SECONDS)
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C: KeyboardInterrupt in the main thread, with the signal number."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    handled = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with_parent() -> list[str]:
    """Return a command prefix that lets the kernel end the child when the parent is killed (util-linux)."""
    if sys.platform != "linux":
        return []
    tool = shutil.which("setpriv")
    return [tool, "--pdeathsig", "TERM"] if tool else []

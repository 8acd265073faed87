"""Fork server for the nodes of tests: a process that has imported what nodes import, and forks.

Imports take two thirds of a second of CPU, most of the cost of a node's start, and the suite starts a
thousand nodes. The fork shares only the interpreter with its imports. Everything else is the node's own:
process, arguments, environment, files, signals, and how it ends. (tests/e2e and test_bad_input.py show the
normal start with `python -m ledgermq.broker`.)
There are three such processes, each with its own hash seed, and neighbouring nodes come from different ones.
So state that depends on the order of a set would differ between the nodes of a broker group.

    python -m tests.integration.nursery

It reads requests, one JSON document per line, and answers "started PID" and "ended PID CODE".
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from ledgermq.client.cli.grpc_settings import load_grpc

_COUNT = 3
_START_TIMEOUT = 60.0
#: What a node imports, also later than at its start.
_IMPORTED = (
    "ledgermq.broker.__main__",
    "ledgermq.broker.find_master",
    "ledgermq.broker.admin.promotion",
    "ledgermq.broker.node",
    "ledgermq.nameserver.__main__",
    "uvloop",
)


@dataclass(frozen=True)
class Birth:
    """What becomes of a fork: `python -m MODULE ARGUMENTS`, with its output at the end of a file."""

    module: str
    arguments: list[str]
    log: str
    folder: str
    environment: dict[str, str]


class Child:
    """A process that a nursery forked; to be waited for and signalled as a subprocess.Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None  # the exit code, or the signal that ended it, negative
        self._ended = threading.Event()

    def has_ended(self, code: int) -> None:
        """Take note of how it ended."""
        self.returncode = code
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises: subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended: its number may be another process's by then."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """One forking process, as a test sees it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._started: SimpleQueue[Child] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._one_by_one = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="nursery", daemon=True)
        self._reader.start()
        atexit.register(self._close)

    def start(self, birth: Birth) -> Child:
        """Fork a process, which runs when this returns."""
        assert self._popen.stdin is not None
        with self._one_by_one:
            self._popen.stdin.write(json.dumps(asdict(birth)) + "\n")
            self._popen.stdin.flush()
            return self._started.get(timeout=_START_TIMEOUT)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            word, pid, *code = line.split()
            if word == "started":
                child = self._children[int(pid)] = Child(int(pid))
                self._started.put(child)
            else:
                self._children.pop(int(pid)).has_ended(int(code[0]))

    def _close(self) -> None:
        """Let it end, and kill what it forked and still runs."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.wait()
        self._reader.join()
        self._popen.stdout.close()


@functools.cache
def _nurseries() -> Iterator[Nursery]:
    return itertools.cycle([Nursery() for _ in range(_COUNT)])


def start(arguments: Sequence[str], log: Path) -> Child:
    """Run `python ARGUMENTS`, which are `-m MODULE …`, in the folder and the environment of this process."""
    option, module, *rest = arguments
    assert option == "-m"
    return next(_nurseries()).start(Birth(module, rest, str(log), str(Path.cwd()), dict(os.environ)))


# --- the forking process ----------------------------------------------------------------------------------


def _fork_on_demand() -> Birth:
    """Fork for every request; return in the fork. End the process when no more requests can come."""
    children: dict[int, int] = {}  # descriptor of a process → its pid
    requests = b""
    while True:
        for descriptor in select.select([0, *children], [], [])[0]:
            if descriptor:
                _tell_end(children.pop(descriptor), descriptor)
                continue
            read = os.read(0, 1 << 20)
            if not read:
                for pid in children.values():
                    os.kill(pid, signal.SIGKILL)
                raise SystemExit(0)
            *lines, requests = (requests + read).split(b"\n")
            for line in lines:
                pid = os.fork()
                if not pid:
                    for other in children:
                        os.close(other)
                    return Birth(**json.loads(line))
                children[os.pidfd_open(pid)] = pid
                os.write(1, b"started %d\n" % pid)


def _tell_end(pid: int, descriptor: int) -> None:
    status = os.waitpid(pid, 0)[1]
    os.close(descriptor)
    os.write(1, b"ended %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _become(birth: Birth) -> None:
    """Be what was asked for."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(birth.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor, wanted in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, wanted)
    os.close(nothing)
    os.close(log)
    os.chdir(birth.folder)
    os.environ.clear()
    os.environ.update(birth.environment)
    sys.argv = [birth.module, *birth.arguments]
    sys.modules.pop(f"{birth.module}.__main__", None)  # it is run, not imported
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runpy.run_module(birth.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    # Ctrl-C is for the tests, which end what they started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_grpc()  # with the settings of the nodes, which find it loaded
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _become(_fork_on_demand())

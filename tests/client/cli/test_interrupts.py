"""Ctrl-C ends every command at once: exit code 130, no traceback, nothing left running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ledgermq import client
from ledgermq.client.cli import output as cli_output
from ledgermq.client.cli.command_line import COMMANDS, build_app, load
from ledgermq.client.event_loop import new_event_loop
from ledgermq.client.interrupts import (
    EXIT_INTERRUPTED,
    leave_on_interrupt,
    raise_on_interrupt,
    without_interrupt,
)
from ledgermq.client.local.processes import run_to_end

from ..fakes import FakeCluster
from ..served import served

#: Every command, with what it needs to begin its work. "N": the nameserver. Servers are asked to stop in
#: other tests.
ARGUMENTS = {
    "topic create": "t", "topic update": "t --retention-hours 5", "topic list": "", "topic describe": "t",
    "topic delete": "t --yes", "topic hold": "t --name n --offset earliest", "topic release": "t --name n",
    "group create": "g", "group list": "", "group describe": "g", "group lag": "g",
    "group release": "g --all", "group reset": "g --topic t --to earliest --yes",
    "group delete": "g --yes", "send": "t x --count 100000",
    "consume": "t -g g", "message get": "x", "message query": "t --key k", "message trace": "x",
    "cluster status": "--watch", "cluster leader": "", "cluster transfer": "n2",
    "cluster add-group": "g1", "cluster drain": "g0 --wait", "cluster undrain": "g0",
    "cluster remove-group": "g0 --yes", "cluster forget-group": "g0 --yes", "cluster promote": "n2 --yes",
    "bench": "--seconds 1", "admin clean": "--yes", "spark sql": "SELECT", "spark shell": "",
    "spark analyze": "t",
    "spark archive": "orders --to lake", "spark restore": "lake --topic orders",
}  # fmt: skip
LOCAL = {
    "restore": "{} --data {}/new", "message export": "{} --topic t", "up": "--data {}/up",
    "dump": "{}/dump", "check": "{}", "demo": "--data {}/demo", "cluster recover": "--data {}",
}  # fmt: skip
SERVERS = {"broker", "nameserver"}
#: As the entry point does; before its first line the interpreter itself answers. Says when the exit code was
#: decided.
BEGUN = """
import os, signal, sys, time
from ledgermq.client.cli import main
from ledgermq.client.interrupts import leave_on_interrupt
leave_on_interrupt()
block = signal.pthread_sigmask
def decide(*mask):
    os.write(2, b"decided %d\\n" % time.monotonic_ns())
    return block(*mask)
signal.pthread_sigmask = decide
print("begun", file=sys.stderr, flush=True)
main()
"""


def leaves(group: Any, path: str = "") -> dict[str, Any]:
    """Return all commands of the tree, by name."""
    found: dict[str, Any] = {}
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        full = f"{path} {name}".strip()
        found |= leaves(command, full) if hasattr(command, "commands") else {full: command}
    return found


def interrupted(arguments: list[str], after: float) -> tuple[int, str, bool]:
    """Run a command and send SIGINT `after` s. Return its exit code, its stderr, and whether it ended before
    that.
    """
    with subprocess.Popen(
        [sys.executable, "-c", BEGUN, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == "begun\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(after)
        sent = time.monotonic_ns()
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    decided = re.search(r"^decided (\d+)\n", said, re.MULTILINE)
    ended = decided is not None and int(decided[1]) < sent
    return process.returncode, said.replace(decided[0], "") if decided else said, ended


def test_ctrl_c_ends_every_command_at_any_moment_without_a_traceback(tmp_path: Path) -> None:
    moments = (0.0, 0.05, 0.3, 0.6)
    assert leaves(typer.main.get_command(build_app())).keys() == {*ARGUMENTS, *LOCAL, *SERVERS}
    with served(FakeCluster) as running:
        runs = [[*name.split(), *given.split(), "-n", running.address] for name, given in ARGUMENTS.items()]
        runs += [
            [*name.split(), *given.replace("{}", str(tmp_path)).split()] for name, given in LOCAL.items()
        ]
        plan = [(each, moments[number % len(moments)]) for number, each in enumerate(runs)]
        plan += [
            (runs[list(ARGUMENTS).index(name)], at)
            for name in ("consume", "cluster status")
            for at in moments
        ]
        for arguments, after in plan:
            code, said, ended = interrupted(arguments, after)
            assert ended or code == EXIT_INTERRUPTED, (arguments, after, code, said)
            assert not any(word in said for word in ("Traceback", "Exception", "Warning")), (
                arguments,
                after,
                said,
            )


@pytest.mark.parametrize("module", ["ledgermq.broker", "ledgermq.nameserver"])
def test_ctrl_c_ends_a_server_that_is_being_loaded(module: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", module], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:  # what it says of its imports
            if "asyncio" in line:
                break
        time.sleep(0)
        said = ""
        while process.poll() is None and f"{module}.config" not in said:
            said += process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said += process.stderr.read()
    assert process.returncode in (EXIT_INTERRUPTED, 0) and "Traceback" not in said


def test_the_help_is_there_before_anything_heavy_is_loaded() -> None:
    code = (
        "import sys; from ledgermq.client.cli import run_cli; assert run_cli(['--help']) == 0; "
        "print(sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: ledgermq" in done.stdout and "'typer'" in done.stderr
    for heavy in ("grpc", "numpy", "rich", "pyspark", "google", "asyncio", "pydantic"):
        assert f"'{heavy}'" not in done.stderr, heavy


@pytest.mark.parametrize("module", COMMANDS)
def test_the_list_of_commands_says_what_the_commands_say(module: str) -> None:
    loaded = load(module)
    assert list(loaded) == list(COMMANDS[module])
    for name, text in COMMANDS[module].items():
        assert loaded[name].get_short_help_str(200) == text


def test_an_interrupt_in_what_must_be_finished_counts_at_its_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), without_interrupt():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_ignores_ctrl_c_is_not_ended_by_it() -> None:
    """nohup, and what a script runs in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        leave_on_interrupt()
        raise_on_interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_a_loop_is_made_or_closed_ends_the_command_in_order(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    made = new_event_loop

    def interrupted_loop() -> Any:
        signal.raise_signal(signal.SIGINT)
        return made()

    async def work() -> None:
        raise AssertionError("it is not begun")

    monkeypatch.setattr(cli_output, "new_event_loop", interrupted_loop)
    with pytest.raises(KeyboardInterrupt):
        cli_output.run(work())
    assert not recwarn.list, "no coroutine was never awaited"


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    """Spark's JVM ignores Ctrl-C, and is not a child of ours."""
    note = tmp_path / "pid"
    jvm = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    start = (
        f"import subprocess, sys, pathlib, time; child = subprocess.Popen([sys.executable, '-c', {jvm!r}]);"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid)); time.sleep(600)"
    )

    def interrupt() -> None:
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_to_end([sys.executable, "-c", start])
    thread.join()
    stat = Path(f"/proc/{note.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_every_public_name_of_the_client_is_found() -> None:
    assert client._HOMES.keys() < set(client.__all__)
    assert client.__version__ == version("ledgermq")
    for name in set(client.__all__) - {"__version__"}:
        assert getattr(client, name).__name__ == name and name in dir(client)
    with pytest.raises(AttributeError, match="has no attribute 'Producr'"):
        getattr(client, "Producr")  # noqa: B009


def test_ctrl_c_counts_when_an_error_is_on_its_way_through_an_end_that_no_cancellation_stops() -> None:
    async def fails() -> None:
        try:
            raise ValueError("refused")
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        cli_output.run(fails())

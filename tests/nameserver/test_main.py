"""`python -m ledgermq.nameserver`: the ready line, the signals, one line per failure, the exit codes."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from ledgermq.nameserver import __main__ as program
from ledgermq.nameserver.config import NameserverConfig
from ledgermq.nameserver.service import NameServer


class Ready(io.StringIO):
    """A stdout that tells when something was flushed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    def flush(self) -> None:
        self.told.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_ready_with_its_addresses_and_a_signal_ends_it(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Ready()
    monkeypatch.setattr(sys, "stdout", ready)
    listeners = {"default": "127.0.0.1:0", "external": "127.0.0.1:0"}
    running = asyncio.create_task(program.serve(NameserverConfig(listeners)))
    await ready.told.wait()
    os.kill(os.getpid(), number)
    await running
    word, first, second = ready.getvalue().split()
    assert (word, first.partition(":")[0]) == ("ready", "nameserver=127.0.0.1")
    assert second.startswith("external=127.0.0.1:")


async def test_a_cancelled_server_gives_its_ports_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Ready()
    monkeypatch.setattr(sys, "stdout", ready)
    running = asyncio.create_task(program.serve(NameserverConfig({"default": "127.0.0.1:0"})))
    await ready.told.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    again = NameServer({"default": ready.getvalue().split("=")[1].strip()}, 10_000)
    await again.start()
    await again.stop(0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bind", "nowhere"], "the form is host:port"),
        (["--bind", "127.0.0.1:²"], "the form is host:port"),
        (["--listener", "external"], "the form is name=host:port"),
        (["--expiry-ms", "soon"], "a whole number of milliseconds"),
        (["--expiry-ms", "1"], "below 2000"),
        (["--log-level", "loud"], "one of debug, info, warning, error"),
        (["--config", "missing.toml"], "cannot be read: No such file"),
        (["--config", "wrong.toml"], "is not valid TOML"),
        (["--config", "binary.toml"], "is not valid TOML"),
        (["--config", "unknown.toml"], 'did you mean "bind"'),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.toml").write_text("bind = ")
    Path("binary.toml").write_bytes(b"\xff\xfe")
    Path("unknown.toml").write_text('bnd = "127.0.0.1:1"')
    assert program.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: the nameserver will not start: setting ")
    assert printed.err.count("\n") == 1
    assert words in printed.err
    assert "ledgermq nameserver --help" in printed.err


def test_the_help_says_that_the_environment_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--help"])
    assert "LEDGERMQ_NAMESERVER_BIND" in capsys.readouterr().out


def test_settings_come_from_file_environment_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nameserver.toml"
    file.write_text('bind = "127.0.0.1:1"\nexpiry_ms = 3000\nlog_level = "error"\n')
    monkeypatch.setenv("LEDGERMQ_NAMESERVER_EXPIRY_MS", "4000")
    config = program.load_config(["--config", str(file), "--log-level", "debug"])
    assert config == NameserverConfig({"default": "127.0.0.1:1"}, 4000, "debug")


def test_a_busy_port_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)  # leave pytest's handlers alone

    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        assert program.main(["--bind", address]) == 1
    assert f"cannot listen on {address}" in capfd.readouterr().err

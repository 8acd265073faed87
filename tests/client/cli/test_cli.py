"""The frame of the command line: one line per failure, the right exit code, never a traceback."""

from __future__ import annotations

import errno

import pytest

from ledgermq.client.cli import dump as cli_dump
from ledgermq.client.cli import run_cli
from ledgermq.client.cli import send_consume as cli_messages
from ledgermq.client.cli.output import print_table

NOBODY = ["--nameserver", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tpic"], 2, "Did you mean 'topic'?"),
        (["topic", "lst"], 2, "Did you mean 'list'?"),
        (["topic", "create", "orders", "--queus", "4"], 2, "--queues"),
        (["topic", "create"], 2, "ledgermq topic create --help"),
        (["send", "orders"], 2, "give BODY"),
        (["send", "orders", "x", "--size", "5"], 2, "not both"),
        (["send", "orders", "x", "--file", __file__], 2, "not two of them"),
        (["send", "orders", "--file", __file__, "--rate", "5"], 2, "--rate N < FILE"),
        (["send", "orders", "--file", __file__, "--count", "2"], 2, "--count goes with BODY or --size"),
        (["send", "orders", "--file", "nowhere.txt"], 2, "nowhere.txt"),
        (["send", "orders", "--size", "99999999"], 1, "the limit is 4,194,304"),
        (["send", "orders", "x", "--timeout", "inf"], 2, "--timeout"),
        (["consume", "orders", "-g", "g", "--timeout", "inf"], 2, "--timeout"),
        (["topic", "create", "orders", "--retention-hours", "inf"], 2, "--retention-hours"),
        (["admin", "clean", "--older-than-hours", "inf"], 2, "--older-than-hours"),
        (["up", "--data", ""], 1, "Name one: ledgermq up --data DIR"),
        (["up", "--data", "d", "--join", ""], 1, "--join is empty"),
        (["up", "--data", "d", "--join", " "], 1, "Name it: ledgermq up --join HOST:PORT"),
        (
            ["up", "--data", "d", "--replication", "sync_master", "--nodes", "1"],
            1,
            "a master needs at least one slave, which confirms its messages. Nothing was made. "
            "Start two nodes or more: ledgermq up --replication "
            "sync_master --nodes 2",
        ),
        (["topic", "list", "--nameserver", "nowhere"], 2, "host:port"),
        (
            ["cluster", "status", "-n", "http://127.0.0.1:9876"],
            2,
            "the form is host:port, for example 127.0.0.1:9876.",
        ),
        (["send", "orders", "hi", "-n", "::1:9876"], 2, "an IPv6 address in brackets"),
        (["group", "reset", "g", "--topic", "t", "--to", "soon"], 2, "earliest"),
        (
            ["group", "reset", "g", "--topic", "t", "--to", "99999999"],
            2,
            "ms since 1970, of 12 to 14 digits, not an",
        ),
        (["group", "create", "g", "--from", "9" * 20], 2, "ms since 1970, of 12 to 14 digits, not an offset"),
        (["consume", "t", "-g", "g", "--from", "0"], 2, "the other forms are earliest, latest"),
        (["consume", "t", "-g", "g", "--tag", "a && b"], 2, "'&&' joins no tags. Name tags joined by ||"),
        (["consume", "t", "-g", "g", "--tag", "a | b"], 2, "'|' joins no tags"),
        (["consume", "t", "-g", "g", "--tag", " || "], 2, "it names no tag"),
        (["topic", "list", "-n", "127.0.0.1:99999"], 2, "99999 is no port, ports are 1 to 65535"),
        (["cluster", "status", "-n", "127.0.0.1:99999"], 2, "99999 is no port, ports are 1 to 65535"),
        (["cluster", "status", "--node", "foo"], 2, "the form is host:port, for example 127.0.0.1:8082"),
        (["cluster", "transfer", "n2", "--node", "a:1", "--node", "a:0"], 2, "0 is no port"),
        (["topic", "create", "a b", *NOBODY], 1, "is not a valid topic name"),
        (["topic", "list", *NOBODY], 1, "Start one: ledgermq up"),
        (["send", "orders", "hi", *NOBODY], 1, "Start one: ledgermq up"),
        (["consume", "orders", "--group", "g", *NOBODY], 1, "Start one: ledgermq up"),
    ],
)
def test_a_failure_is_one_line_with_its_exit_code(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli([]) == 0
    assert "topic" in capsys.readouterr().out


def test_a_body_cannot_change_the_terminal() -> None:
    assert cli_messages.printable("ü\t\x1b[2J\x07\u202e".encode() + b"\xff") == "ü\t\\x1b[2J\\x07\\u202e\\xff"


def test_a_table_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("TOPIC", "QUEUES>"), [("t" * 127, 4)])
    assert "t" * 127 + "       4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/dumps/n1"),
            "error: /dumps/n1: the disk is full. Make room there",
        ),
        (OSError(errno.EIO, "Input/output error"), "error: Input/output error. See the whole trace"),
    ],
)
def test_what_the_system_says_is_told_without_its_number(
    failure: OSError, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(cli_dump, "_refuse_data_folder", fail)
    assert run_cli(["dump", "d"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(words) and "Errno" not in said

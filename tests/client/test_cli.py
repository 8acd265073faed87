"""The frame of the command line: one line per failure, the right exit code, never a traceback."""

from __future__ import annotations

import pytest

from ledgermq.client.cli import run_cli

NOBODY = ["--nameserver", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tpic"], 2, "Did you mean 'topic'?"),
        (["topic", "lst"], 2, "Did you mean 'list'?"),
        (["topic", "create", "orders", "--queus", "4"], 2, "--queues"),
        (["topic", "create"], 2, "ledgermq topic create --help"),
        (["send", "orders"], 2, "give BODY"),
        (["topic", "list", "--nameserver", "nowhere"], 2, "host:port"),
        (["group", "reset", "g", "--topic", "t", "--to", "soon"], 2, "earliest"),
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

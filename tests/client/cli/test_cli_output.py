"""What every command prints: nothing from outside moves the cursor, forges a line or changes the terminal."""

from __future__ import annotations

import json

import pytest

from ledgermq.client.cli.output import err, out, print_error, print_json, print_json_line, print_table


def test_foreign_text_is_shown_with_escapes_wherever_a_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    foreign = "id\x1b[2J\u202e"
    out.print(foreign, markup=False)
    err.print(foreign, markup=False)
    print_error(foreign)
    print_table(["id", "n>"], [(foreign + "\nforged", 7)])
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err and "\u202e" not in shown.out + shown.err
    assert shown.out.splitlines()[0] == "id\\x1b[2J\\u202e"
    assert "\\u202e\\x0aforged" in shown.out, "a cell stays on its line"


def test_json_holds_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"id": "a\x9b\u202e"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"id": "a\x9b\u202e"} and "\u202e" not in shown
    print_json_line({"body": "a\x9b\u202e"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"body": "a\x9b\u202e"} and "\x9b" not in shown and shown.count("\n") == 1

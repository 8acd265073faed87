"""Text from outside: what reaches a log, a terminal or a page has no power over it."""

from __future__ import annotations

import json
import random

import pytest

from ledgermq.proto.foreign_text import safe_json, safe_lines, safe_text


@pytest.mark.parametrize(
    "text", ["", "order-4711", "Bestellung für Zoë", "订单", "a b", "\\x1b stays as it is typed"]
)
def test_printable_text_comes_back_as_it_is(text: str) -> None:
    assert safe_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nERROR forged line", "a\\x0aERROR forged line"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\r\tb\x00\x7f", "a\\x0d\\x09b\\x00\\x7f"),
        (
            "\x85\x9b31m",
            "\\x85\\x9b31m",
        ),  # C1: a line's end, and what begins an escape sequence in eight bits
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\u202egpj.exe\u2066", "\\u202egpj.exe\\u2066"),
        ("pay\u200bload\ufeff", "pay\\u200bload\\ufeff"),
        ("\ud83d alone", "\\ud83d alone"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_what_has_power_over_a_terminal_or_a_log_is_escaped(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_bytes_are_read_as_utf_8_and_others_are_shown() -> None:
    assert safe_text("für\n".encode() + b"\xff\xfe") == "für\\x0a\\xff\\xfe"


def test_a_long_text_is_cut_to_the_limit_and_says_so() -> None:
    assert safe_text("abcdef", 6) == "abcdef"
    assert safe_text("abcdefg", 6) == "abcde…"
    assert safe_text("x" * 10_000_000, 3) == "xx…"
    assert safe_text(b"\xf0\x9f\x98\x80" * 10, 3) == "😀😀…"


def test_no_escape_is_cut_in_half() -> None:
    assert safe_text("ab\n\n", 8) == "ab\\x0a…"
    assert safe_text("\u2028", 5) == "…"


def test_any_text_becomes_one_printable_line_within_the_limit_and_stays_so() -> None:
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(
            chr(chance.choice((chance.randrange(0x110000), chance.randrange(0x300)))) for _ in range(30)
        )
        limit = chance.randrange(1, 80)
        shown = safe_text(text, limit)
        assert shown.isprintable()
        assert len(shown) <= limit
        assert safe_text(shown, limit) == shown
        shown.encode()


def test_a_whole_text_keeps_its_lines_and_nothing_else_that_cannot_be_printed() -> None:
    assert safe_lines("a\n\tü\x1b[2J\u202e\x9b") == "a\n\tü\\x1b[2J\\u202e\\x9b"


@pytest.mark.parametrize("text", ["plain", 'a\x9b31m\u202e\x7f\n"', "\U000e0001", "\ud800"])
def test_a_json_document_shows_the_same_without_what_cannot_be_printed(text: str) -> None:
    shown = safe_json(json.dumps({"a": text}, indent=1, ensure_ascii=False))
    assert json.loads(shown) == {"a": text}
    assert all(line.isprintable() for line in shown.split("\n"))

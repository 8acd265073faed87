"""Conversion of text from outside so that it is safe in log lines, terminals, pages and errors. Pure.

The result has only printable characters on one line: no control characters, line separators, bidi overrides,
invisible characters or lone surrogates. Each of them becomes an escape (`\\x1b`, `\\u202e`), so readers see
that it was there.
"""

from __future__ import annotations

from typing import Final

#: Enough to recognize an id, a reason or a name. The longest id that brokers accept is not cut.
DEFAULT_LIMIT: Final = 255
_CUT: Final = "…"


def safe_text(value: str | bytes, limit: int = DEFAULT_LIMIT) -> str:
    """Return `value` on one line of at most `limit` (>= 1) printable characters. Cut text ends with "…".

    Bytes are decoded as UTF-8; invalid ones become `\\xff`. Work and memory are bounded by `limit`, whatever
    the size. Text that is already safe is returned unchanged.
    """
    if isinstance(value, bytes):
        # A character has at most four bytes, so one that is cut in half is beyond the limit.
        value = value[: 4 * limit + 4].decode("utf-8", "backslashreplace")
    if len(value) <= limit and value.isprintable():
        return value
    shown: list[str] = []
    size = 0
    for character in value[: limit + 1]:
        escaped = character if character.isprintable() else _escaped(ord(character))
        size += len(escaped)
        shown.append(escaped)
        if size > limit:
            return _cut(shown, limit)
    return "".join(shown)


def safe_lines(value: str) -> str:
    """Return a text with its line breaks and tabs.

    Everything else that is not printable becomes an escape.
    """
    if value.isprintable():
        return value
    return "".join(each if each.isprintable() or each in "\n\t" else _escaped(ord(each)) for each in value)


def safe_json(text: str) -> str:
    """Return an equal JSON document with escapes for characters that are not printable."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(each if each.isprintable() or each == "\n" else _json_escaped(each) for each in text)


def _json_escaped(character: str) -> str:
    raw = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, len(raw), 2))


def _cut(shown: list[str], limit: int) -> str:
    """Remove whole characters and escapes from the end until the ellipsis fits."""
    size = sum(map(len, shown))
    while shown and size > limit - len(_CUT):
        size -= len(shown.pop())
    return "".join(shown) + _CUT


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

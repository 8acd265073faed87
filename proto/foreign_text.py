"""Makes text from outside safe to show: in a log line, on a terminal, on a page, in an error. Pure.

What it returns has only printable characters on one line: no control characters, line separators, bidi overrides,
invisible characters or lone surrogates. Each is shown as an escape (`\\x1b`, `\\u202e`), so a reader sees that it was there.
"""

from __future__ import annotations

from typing import Final

#: Enough to recognize an id, a reason or a name; the longest id that brokers accept is shown whole.
DEFAULT_LIMIT: Final = 255
_CUT: Final = "…"


def safe_text(value: str | bytes, limit: int = DEFAULT_LIMIT) -> str:
    """Return `value` on one line of at most `limit` (>= 1) printable characters; a cut text ends with "…".

    Bytes are read as UTF-8; those that are not are shown as `\\xff`. Work and memory are bounded by `limit`, whatever the size.
    Text that is safe already comes back as it is.
    """
    if isinstance(value, bytes):
        # A character has at most four bytes; one that is cut in half lies behind the limit.
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
    """Return a whole text with its line breaks and tabs; everything else that cannot be printed is shown as an escape."""
    if value.isprintable():
        return value
    return "".join(each if each.isprintable() or each in "\n\t" else _escaped(ord(each)) for each in value)


def safe_json(text: str) -> str:
    """Return a JSON document that shows the same, with escapes for what cannot be printed."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(each if each.isprintable() or each == "\n" else _json_escaped(each) for each in text)


def _json_escaped(character: str) -> str:
    raw = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, len(raw), 2))


def _cut(shown: list[str], limit: int) -> str:
    """Take whole characters and escapes off the end until the mark of the cut fits."""
    size = sum(map(len, shown))
    while shown and size > limit - len(_CUT):
        size -= len(shown.pop())
    return "".join(shown) + _CUT


def _escaped(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

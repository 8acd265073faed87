"""What every report page does with texts, and how it writes numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("jinja2", reason="the [spark] extra is not installed")
from ledgermq.spark_jobs.page_templates import _environment, human_bytes, utc_text


def test_foreign_text_is_escaped_and_has_no_character_that_cannot_be_seen() -> None:
    template = _environment().from_string(
        "<b>{{ text }}</b>{% macro m() %}a\n{{ text }}{% endmacro %}{{ m() }}"
    )
    page = template.render(text="<i>\x1b[2J\u202e\n")
    shown = "&lt;i&gt;\\x1b[2J\\u202e\n"
    assert page == f"<b>{shown}</b>a\n{shown}"


def test_sizes_and_times_are_written_for_people() -> None:
    assert [human_bytes(n) for n in (5, 1536, 64 << 20, 3 << 30)] == ["5 B", "1.5 KiB", "64 MiB", "3 GiB"]
    assert utc_text(1_750_000_000_000) == "2025-06-15 15:06:40 UTC"
    assert utc_text(0) == ""

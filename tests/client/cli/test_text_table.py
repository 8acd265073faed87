"""Tables for people."""

from __future__ import annotations

from ledgermq.client.cli.output import text_table


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    lines = text_table(
        ("NODE", "BYTES>", ""), [("n1", "18", "catching up"), ("a-long-name", "1,000,000", "")]
    )
    assert lines == [
        "NODE             BYTES",
        "n1                  18  catching up",
        "a-long-name  1,000,000",
    ]

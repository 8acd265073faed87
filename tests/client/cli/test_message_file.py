"""Lines and rows of files become messages; what cannot be read says why."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.cli.message_file import messages_of
from ledgermq.client.errors import UsageError
from ledgermq.client.message import Message
from ledgermq.client.produce.many import Item

pyarrow: Any = pytest.importorskip("pyarrow")  # not among what the command line needs
parquet: Any = pytest.importorskip("pyarrow.parquet")

BODIES = pyarrow.table({"body": [b"one", b"two", bytes(3)]})
FULL = pyarrow.table(
    {"body": [b"one", b"two"], "tag": ["a", None], "keys": [["k", "l"], None], "message_group": [None, "m"]}
)


def read(path: Path) -> tuple[list[Item], list[int]]:
    blank: list[int] = []

    async def everything() -> list[Item]:
        return [each async for each in messages_of(path, "t", blank.append)]

    return asyncio.run(everything()), blank


def write(table: Any, path: Path) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
        return path
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return path


def test_lines_are_bodies_and_blank_ones_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n\n{"a": 2}\nlast')
    assert read(path) == ([b'{"a": 1}', b'{"a": 2}', b"last"], [1])


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "ROWS.Feather"])
def test_rows_are_bodies_or_messages(tmp_path: Path, name: str) -> None:
    assert read(write(BODIES, tmp_path / name))[0] == [b"one", b"two", bytes(3)]
    rows, _ = read(write(FULL, tmp_path / name))
    assert all(isinstance(row, Message) for row in rows)
    told = [(m.topic, m.body, m.tag, tuple(m.keys), m.message_group) for m in rows if isinstance(m, Message)]
    assert told == [("t", b"one", "a", ("k", "l"), ""), ("t", b"two", "", (), "m")]


def test_many_rows_come_in_their_order(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(10_000)]
    path = write(pyarrow.table({"body": bodies}), tmp_path / "rows.parquet")
    assert read(path)[0] == bodies


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.txt"])
def test_what_cannot_be_read_says_why(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} cannot be read"):
        read(tmp_path / name)
    if not name.endswith(".txt"):
        (tmp_path / name).write_bytes(b"no table at all, but long enough for a footer")
        with pytest.raises(UsageError, match=rf"{name} cannot be read"):
            read(tmp_path / name)


def test_columns_without_a_meaning_are_named(tmp_path: Path) -> None:
    path = write(pyarrow.table({"body": [b"x"], "price": [1]}), tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match=r"columns body, price.*Select and rename"):
        read(path)


def test_a_line_above_the_limit_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"short\n" + bytes(5 << 20))
    with pytest.raises(UsageError, match=r"line 2 of .*long\.txt has more than 4,194,304 bytes"):
        read(path)


def test_tables_need_arrow_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(BODIES, tmp_path / "rows.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"rows\.parquet needs Arrow.*pip install pyarrow"):
        read(path)

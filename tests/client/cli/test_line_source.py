"""Lines of stdin become messages as they come."""

from __future__ import annotations

import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.cli.line_source import LineCutter, lines_of
from ledgermq.client.errors import UsageError


def cut(*chunks: bytes, limit: int = 100) -> list[bytes]:
    cutter = LineCutter(limit)
    return [line for chunk in (*chunks, b"") for line in cutter.feed(chunk)]


@given(st.lists(st.binary(max_size=20)))
def test_lines_are_those_of_the_whole_input_wherever_the_chunks_end(chunks: list[bytes]) -> None:
    filled = [chunk for chunk in chunks if chunk]
    assert cut(*filled, limit=1000) == [line for line in b"".join(filled).split(b"\n") if line]


def test_a_line_above_the_limit_names_its_number_and_what_became_of_the_others() -> None:
    assert cut(b"1234\n1234", limit=4) == [b"1234", b"1234"]
    for chunks in ((b"one\n\n12345\n",), (b"one\n", b"\n123", b"45")):
        with pytest.raises(UsageError, match=r"line 3 of stdin has more than 4 bytes.*before it were sent"):
            cut(*chunks, limit=4)


def test_a_line_without_an_end_takes_no_more_memory_than_the_limit() -> None:
    cutter = LineCutter(10)
    with pytest.raises(UsageError):
        for _ in range(100):
            assert not list(cutter.feed(b"xxxx"))
    assert len(cutter._rest) <= 14


async def test_a_line_is_there_before_the_input_ends() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb", buffering=0) as sink:
        lines = lines_of(source, 100)
        sink.write(b"one\ntw")
        assert await anext(lines) == b"one"
        sink.write(b"o\n")
        assert await anext(lines) == b"two"
        sink.close()
        assert [line async for line in lines] == []


async def test_no_more_is_read_than_is_taken() -> None:
    class Endless(io.RawIOBase):
        reads = 0

        def read(self, size: int = -1) -> bytes:
            self.reads += 1
            return b"x\n" * (size // 2)

    source = Endless()
    lines = lines_of(source, 100)
    for _ in range(10):
        assert await anext(lines) == b"x"
    assert source.reads == 1

"""Numbers of protobuf, read and written without message objects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.proto import log_pb2
from ledgermq.proto.errors import CorruptError
from ledgermq.proto.varint import read_varint, varint


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_numbers_are_those_of_protobuf(value: int) -> None:
    raw = varint(value)
    assert log_pb2.ProduceRequest.FromString(b"\x08" + raw).request_id == value
    assert read_varint(b"\xff" + raw + b"\xff", 1) == (value, 1 + len(raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b"\xff" * 9,
        b"\xff" * 9 + b"\x02",  # 65 bits
        b"\x80" * 10 + b"\x01",  # 11 bytes
        b"\x80" * (256 << 10),
    ],
)
def test_what_is_no_number_of_64_bits_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptError):
        read_varint(raw, 0)


class _CountedBytes(bytes):
    reads = 0

    def __getitem__(self, place: Any) -> Any:
        type(self).reads += 1
        return super().__getitem__(place)


def test_a_number_without_an_end_costs_ten_steps() -> None:
    with pytest.raises(CorruptError):
        read_varint(_CountedBytes(b"\x80" * (256 << 10)), 0)
    assert _CountedBytes.reads == 10

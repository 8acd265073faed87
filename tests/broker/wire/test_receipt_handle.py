"""Receipt handles."""

from __future__ import annotations

import base64

import pytest
from crc32c import crc32c

from ledgermq.broker.errors import InvalidReceiptHandleError
from ledgermq.broker.wire.receipt_handle import ReceiptHandle, parse_handle

HANDLE = ReceiptHandle("g0", 7, 3, 2, 1 << 40, 99, 2)


def test_a_handle_is_read_as_it_was_written() -> None:
    assert parse_handle(HANDLE.encode()) == HANDLE


def test_a_handle_with_any_character_changed_is_refused() -> None:
    text = HANDLE.encode()
    for position in range(len(text) - 1):
        other = "A" if text[position] != "A" else "B"
        with pytest.raises(InvalidReceiptHandleError):
            parse_handle(text[:position] + other + text[position + 1 :])


@pytest.mark.parametrize("text", ["", "x", "not a handle", "ü" * 60, "AAAA" * 20])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptHandleError):
        parse_handle(text)


def test_a_handle_of_another_version_is_refused() -> None:
    raw = bytearray(base64.urlsafe_b64decode(HANDLE.encode() + "=="))[:-4]
    raw[0] = 9
    text = base64.urlsafe_b64encode(bytes(raw) + crc32c(bytes(raw)).to_bytes(4, "little")).decode()
    with pytest.raises(InvalidReceiptHandleError, match="version 9"):
        parse_handle(text)

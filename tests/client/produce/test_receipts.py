"""Receipts of a batch are those that would have been made at once."""

from __future__ import annotations

import pytest

from ledgermq.client.message import MessageQueue, SendReceipt
from ledgermq.client.produce.receipts import ReceiptRange, Receipts

QUEUE = MessageQueue("orders", "g0", 3)


def ids(start: int, stop: int) -> list[str]:
    return [f"id-{number}" for number in range(start, stop)]


def one(number: int, offset: int) -> SendReceipt:
    return SendReceipt(f"id-{number}", *QUEUE, offset, False)


MADE = [*(one(number, 10 + number) for number in range(4)), one(7, 90), one(8, 91), one(0, 50), one(1, 51)]
LAZY = Receipts(
    [ReceiptRange(ids, QUEUE, 10, 4, False), one(7, 90), one(8, 91), ReceiptRange(ids, QUEUE, 50, 2, False)]
)


def test_every_way_to_look_at_them_shows_the_same() -> None:
    assert list(LAZY) == MADE and len(LAZY) == len(MADE)
    assert [LAZY[place] for place in range(-8, 8)] == [MADE[place] for place in range(-8, 8)]
    assert LAZY[2:7:2] == MADE[2:7:2] and LAZY[::-1] == MADE[::-1]
    assert LAZY == MADE and not LAZY != MADE  # noqa: SIM202 (both operators)
    assert [other == LAZY for other in (MADE[:-1], [*MADE[:-1], MADE[0]], tuple(MADE), 7)] == [False] * 4
    assert MADE[5] in LAZY and LAZY.index(MADE[5]) == 5


def test_a_place_outside_the_batch_is_an_error() -> None:
    with pytest.raises(IndexError, match="there is no receipt 8; the batch has 8"):
        LAZY[8]
    assert list(Receipts([])) == []

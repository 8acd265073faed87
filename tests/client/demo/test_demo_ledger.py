"""The books of the demo: every way in which a broker could cheat must show."""

from __future__ import annotations

import pytest

from ledgermq.client.demo.ledger import ReceiveBook, SendBook, balance, body_of, number_of


def sent(count: int, queues: int = 2) -> SendBook:
    """Return the book of `count` messages, acknowledged in turn on `queues` queues."""
    book = SendBook()
    for _ in range(count):
        number = book.on_sent(now=float(len(book.sent_at)))
        book.on_acknowledged(number, number % queues, number // queues, duplicate=False, now=number + 0.5)
    return book


def received(book: SendBook, numbers: list[int]) -> ReceiveBook:
    """Return the book of deliveries of these messages at the positions that were acknowledged."""
    result = ReceiveBook()
    for number in numbers:
        queue_id, offset = book.acknowledged[number]
        result.on_message(queue_id, offset, body_of(number, 64))
    return result


def test_everything_back_in_order_balances() -> None:
    book = sent(10)
    assert balance(book, received(book, list(range(10)))).is_good


def test_a_message_that_does_not_come_back_is_missing() -> None:
    book = sent(10)
    result = balance(book, received(book, [0, 1, 2, 3, 4, 6, 7, 8, 9]))
    assert result.missing == [5]
    assert "1 messages acknowledged but missing: 5" in result.problems()


def test_a_message_at_two_positions_is_stored_twice() -> None:
    book = sent(4)
    back = received(book, [0, 1, 2, 3])
    back.on_message(0, 2, body_of(3, 64))
    assert balance(book, back).stored_twice == [3]


def test_a_second_delivery_of_the_same_position_is_a_redelivery_and_fine() -> None:
    book = sent(4)
    back = received(book, [0, 1, 0, 1, 2, 3])
    assert balance(book, back).is_good
    assert back.redelivered == 2


def test_older_numbers_at_higher_offsets_are_out_of_order() -> None:
    book = sent(4, queues=1)
    book.acknowledged[2], book.acknowledged[3] = book.acknowledged[3], book.acknowledged[2]
    assert balance(book, received(book, [0, 1, 3, 2])).out_of_order == [2]


def test_a_message_found_elsewhere_than_acknowledged_is_misplaced() -> None:
    book = sent(2)
    back = received(book, [0])
    back.on_message(0, 9, body_of(1, 64))
    assert balance(book, back).misplaced == [1]


def test_a_message_of_unknown_outcome_may_be_there() -> None:
    book = sent(2)
    book.on_failed(book.on_sent(9.0), "timeout")
    back = received(book, [0, 1])
    back.on_message(0, 1, body_of(2, 64))
    result = balance(book, back)
    assert result.is_good
    assert result.unacknowledged == 1


def test_foreign_bytes_are_not_a_message() -> None:
    with pytest.raises(ValueError, match="never sent"):
        number_of(body_of(7, 64)[:-1] + b"?")
    back = ReceiveBook()
    back.on_message(0, 0, b"other")
    assert not balance(SendBook(), back).is_good


def test_the_write_gap_is_the_longest_silence_from_the_last_acknowledgement_before_the_kill() -> None:
    book = SendBook()
    for now in (1.0, 1.1, 1.2, 1.9, 2.0):
        book.on_acknowledged(book.on_sent(now), 0, 0, duplicate=False, now=now)
    assert book.longest_gap(since=1.25) == pytest.approx(0.7)
    assert book.longest_gap(since=1.95) == pytest.approx(0.1)

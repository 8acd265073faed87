"""Receipts of many messages, made when they are looked at.

A batch is stored as a few runs of consecutive messages. What its messages have in common is kept once per
run; a receipt for each of them would cost more than their encoding, and most are never looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from operator import eq
from typing import Final, overload

from ..message import MessageQueue, SendReceipt

#: Makes a SendReceipt of its six fields without a Python-level call.
_RECEIPT: Final = partial(tuple.__new__, SendReceipt)


def receipts(
    message_ids: Iterable[str], queue: MessageQueue, base_offset: int, count: int, duplicate: bool
) -> Iterator[SendReceipt]:
    """Yield the receipts of `count` consecutive messages."""
    topic, broker_group, queue_id = queue
    offsets = range(base_offset, base_offset + count)
    rows = zip(message_ids, repeat(topic), repeat(broker_group), repeat(queue_id), offsets, repeat(duplicate))
    return map(_RECEIPT, rows)


class _Lazy(Sequence[SendReceipt]):
    """Read-only sequence, equal to a list of the same receipts."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # like that of a list

    @overload
    def __getitem__(self, index: int) -> SendReceipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendReceipt]: ...

    def __getitem__(self, index: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(index, slice):
            return [self._at(place) for place in range(len(self))[index]]
        try:
            return self._at(range(len(self))[index])
        except IndexError:
            raise IndexError(f"there is no receipt {index}; the batch has {len(self)}") from None

    def _at(self, place: int) -> SendReceipt:
        """Return one receipt; `place` is not negative."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Lazy | list):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __repr__(self) -> str:
        return f"<{len(self):,} receipts>"


class ReceiptRange(_Lazy):
    """Receipts of consecutive messages in one queue. `ids(start, stop)` returns the ids of some of them."""

    __slots__ = ("_base_offset", "_count", "_duplicate", "_ids", "_queue")

    def __init__(
        self,
        ids: Callable[[int, int], list[str]],
        queue: MessageQueue,
        base_offset: int,
        count: int,
        duplicate: bool,
    ) -> None:
        self._ids = ids
        self._queue = queue
        self._base_offset = base_offset
        self._count = count
        self._duplicate = duplicate

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SendReceipt]:
        return receipts(
            self._ids(0, self._count), self._queue, self._base_offset, self._count, self._duplicate
        )

    def _at(self, place: int) -> SendReceipt:
        (message_id,) = self._ids(place, place + 1)
        return SendReceipt(message_id, *self._queue, self._base_offset + place, self._duplicate)


class Receipts(_Lazy):
    """Receipts of a batch, in the order of its messages."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, results: Iterable[SendReceipt | ReceiptRange]) -> None:
        self._parts: list[Sequence[SendReceipt]] = []
        single: list[SendReceipt] = []
        for result in results:
            if isinstance(result, ReceiptRange):
                self._parts.append(result)
                single = []
            else:
                if not single:
                    self._parts.append(single)
                single.append(result)
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[SendReceipt]:
        return chain.from_iterable(self._parts)

    def _at(self, place: int) -> SendReceipt:
        number = bisect_right(self._ends, place)
        part = self._parts[number]
        return part[place - (self._ends[number] - len(part))]

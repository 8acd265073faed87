"""SentBatch: which messages of one call wait for which results.

Owns: the order, and the positions of what failed. Must not: send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import copy
from typing import Any, cast

from ..errors import LedgerMQError
from ..message import SendReceipt
from .receipts import ReceiptRange, Receipts


class SentBatch:
    """Futures of consecutive messages, in order. Each stands for one message or more."""

    __slots__ = ("_counts", "_futures", "count", "first")

    def __init__(self, first: int = 0) -> None:
        """`first`: position of its first message in the caller's iterable."""
        self.first = first
        self.count = 0  # messages so far
        self._futures: list[asyncio.Future[Any]] = []
        self._counts: list[int] = []

    def add(self, future: asyncio.Future[Any], count: int = 1) -> None:
        """Add the next `count` messages. The result is a SendReceipt, or a ReceiptRange of all of them."""
        self._futures.append(future)
        self._counts.append(count)
        self.count += count

    def fail(self, error: BaseException, count: int = 1) -> None:
        """Add messages that could not be put."""
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        self.add(future, count)

    @property
    def is_decided(self) -> bool:
        """True when every message is stored or has failed."""
        return all(future.done() for future in self._futures)

    async def receipts(self) -> Receipts:
        """Wait for all results.

        Raises: the error of the first message that failed; its `failed_messages` are the positions of all.
        """
        results = await asyncio.gather(*self._futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                if isinstance(result, LedgerMQError):
                    mine = copy(result)  # callers that waited for the same thing share the error
                    mine.failed_messages = tuple(self._failed(results))
                    raise mine from result.__cause__
                raise result
        return Receipts(cast("list[SendReceipt | ReceiptRange]", results))

    def _failed(self, results: list[Any]) -> Iterator[range]:
        """Yield the positions of the messages that failed, neighbours together."""
        begin = end = position = self.first
        for result, count in zip(results, self._counts, strict=True):
            if isinstance(result, BaseException):
                if position != end:
                    if end > begin:
                        yield range(begin, end)
                    begin = position
                end = position + count
            position += count
        if end > begin:
            yield range(begin, end)

"""Tickets: the callers that wait for the records of a section, and how they get their results.

Owns: the futures of a producer's callers, the making of receipts. Must not: know how records are sent.
A cancelled future is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Final

from ..message import MessageQueue, SendReceipt
from .lanes import Section
from .plain_run import PlainRun
from .send_window import SendWindow

#: Makes a SendReceipt of its six fields without a Python-level call.
_RECEIPT: Final = partial(tuple.__new__, SendReceipt)


def receipts(
    message_ids: Iterable[str], queue: MessageQueue, base_offset: int, count: int, duplicate: bool
) -> list[SendReceipt]:
    """Return the receipts of `count` consecutive messages."""
    topic, group, queue_id = queue
    offsets = range(base_offset, base_offset + count)
    rows = zip(message_ids, repeat(topic), repeat(group), repeat(queue_id), offsets, repeat(duplicate))
    return list(map(_RECEIPT, rows))


class OneMessage:
    """A single message whose id is known."""

    __slots__ = ("future", "message_id")

    def __init__(self, future: asyncio.Future[SendReceipt], message_id: str) -> None:
        self.future = future
        self.message_id = message_id

    def deliver(self, queue: MessageQueue, base_offset: int, duplicate: bool) -> int:
        if not self.future.done():
            self.future.set_result(SendReceipt(self.message_id, *queue, base_offset, duplicate))
        return 1

    def fail(self, error: Callable[[], Exception]) -> None:
        if not self.future.done():
            self.future.set_exception(error())


class EachOfRun:
    """The messages of a run, each with its own caller. `futures` has one per body of the run."""

    __slots__ = ("futures", "run")

    def __init__(self, run: PlainRun) -> None:
        self.run = run
        self.futures: list[asyncio.Future[SendReceipt]] = []

    def deliver(self, queue: MessageQueue, base_offset: int, duplicate: bool) -> int:
        count = len(self.futures)
        made = receipts(self.run.message_ids(), queue, base_offset, count, duplicate)
        for future, receipt in zip(self.futures, made, strict=True):
            if not future.done():
                future.set_result(receipt)
        return count

    def fail(self, error: Callable[[], Exception]) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error())


class WholeRun:
    """The messages of a run with one common caller."""

    __slots__ = ("count", "future", "run")

    def __init__(self, run: PlainRun, future: asyncio.Future[list[SendReceipt]]) -> None:
        self.run = run
        self.count = len(run.bodies)
        self.future = future

    def deliver(self, queue: MessageQueue, base_offset: int, duplicate: bool) -> int:
        if not self.future.done():
            made = receipts(self.run.message_ids(), queue, base_offset, self.count, duplicate)
            self.future.set_result(made)
        return self.count

    def fail(self, error: Callable[[], Exception]) -> None:
        if not self.future.done():
            self.future.set_exception(error())


class OpenRun:
    """Fast path for the next plain message of a topic. The caller counts `left` (bytes) down.

    It ends when it is no longer its section's `run` (another record followed, or the section was closed),
    when the section is full, when a body of another kind or another millisecond comes, and when the outbox
    drops it.
    """

    __slots__ = (
        "bodies",
        "born_ns",
        "futures",
        "largest",
        "left",
        "run",
        "section",
        "smallest",
        "surplus",
        "until_ns",
        "window",
    )

    def __init__(
        self,
        window: SendWindow,
        section: Section,
        run: PlainRun,
        ticket: EachOfRun,
        largest: int,
        most: int,
    ) -> None:
        """`largest`: largest body that the broker groups accept, bytes. `most`: bytes to put here at most."""
        self.window = window
        self.section = section
        self.run = run
        self.bodies = run.bodies
        self.futures = ticket.futures
        self.smallest = run.smallest
        self.largest = min(run.largest, largest)
        self.surplus = run.body_offset + 7  # plus body, rounded down to a multiple of 8: record size
        self.born_ns = run.born_ms * 1_000_000
        self.until_ns = self.born_ns + 1_000_000
        self.left = min(window.growth(section), most)

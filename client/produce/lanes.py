"""The queues of a broker group as one producer sees them: what waits there, and what is open.

Must not: decide what is sent when (that is `send_window`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ledgermq.proto.entry import Buffer
from ledgermq.proto.record import SECTION_HEADER_SIZE

from ..message import MessageQueue
from .plain_run import PlainRun


@dataclass(slots=True, eq=False)
class Section:
    """Records of one queue that travel together. `tickets` are the caller's handles: one per record, or per run."""

    lane: Lane
    deadline: int  # ms of the caller's clock: that of its first message
    opened: int
    fifo: bool = False
    records: list[Buffer | PlainRun] = field(default_factory=list)  # once numbered: the body of `data`
    run: PlainRun | None = None  # the last one of `records`, while it may grow
    tickets: list[Any] = field(default_factory=list)
    count: int = 0  # records
    size: int = SECTION_HEADER_SIZE
    closed: bool = False  # takes no more messages
    data: bytearray | None = None  # header and body, once numbered
    sequence: int = -1
    session: int = 0  # producer id it is numbered for
    attempts: int = 0
    in_flight: bool = False
    may_be_stored: bool = False
    given_up: bool = False
    refused: str = ""  # what the group said when it last refused it

    @property
    def body_size(self) -> int:
        """Bytes of its records."""
        return self.size - SECTION_HEADER_SIZE

    def close(self) -> None:
        """Take no more messages."""
        self.closed, self.run = True, None


@dataclass(slots=True, eq=False)
class Lane:
    """One queue of the group, from this producer's side."""

    queue: MessageQueue
    topic_id: int
    session: int  # producer id; changes when the numbering starts anew
    next_sequence: int = 0
    waiting: deque[Section] = field(default_factory=deque)  # not numbered yet; the last one takes messages
    unacked: deque[Section] = field(default_factory=deque)  # numbered, in order
    resend: bool = False  # unacked sections must go again, once none is in flight
    renumber: bool = False  # a sequence is missing for good: the numbering starts anew

    @property
    def in_flight(self) -> bool:
        return any(section.in_flight for section in self.unacked)


def forget_number(section: Section) -> None:
    """Let a section that is certainly not stored get another sequence."""
    section.data = None
    section.sequence = -1

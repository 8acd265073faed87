"""Lanes: the queues of a broker group as one producer sees them, with their waiting and open sections.

Must not: decide what is sent when (`send_window` does).
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
    """Records of one queue that are sent together. A section is open until it is acknowledged or given up.

    `tickets` are the callers' handles: one per record, or one per run.
    """

    lane: Lane
    deadline: int  # ms of the caller's clock: the deadline of its first message
    opened: int  # ms of the caller's clock
    fifo: bool = False  # must stay in its queue: has a message group, or its send chose the queue
    records: list[Buffer | PlainRun] = field(default_factory=list)  # once numbered: only the body of `data`
    run: PlainRun | None = None  # the last one of `records`, while it may still grow
    tickets: list[Any] = field(default_factory=list)
    count: int = 0  # records
    size: int = SECTION_HEADER_SIZE  # header and records, bytes
    closed: bool = False  # takes no more messages
    data: bytearray | None = None  # header and body once numbered; resent unchanged
    sequence: int = -1  # sequence of the first record; -1: not numbered
    session: int = 0  # producer id under which it is numbered
    attempts: int = 0  # sends so far
    in_flight: bool = False  # part of a request without an answer
    may_be_stored: bool = False  # invariant: while set, neither renumbered nor moved
    given_up: bool = False  # its callers have their error; it waits for the answer of its request
    refused: str = ""  # text of the broker's latest refusal

    @property
    def body_size(self) -> int:
        """Size of its records, bytes."""
        return self.size - SECTION_HEADER_SIZE

    def close(self) -> None:
        """Accept no more messages."""
        self.closed, self.run = True, None


@dataclass(slots=True, eq=False)
class Lane:
    """One queue of the broker group, from this producer's side."""

    queue: MessageQueue
    topic_id: int  # of this incarnation of the topic
    session: int  # producer id; changes when the numbering starts anew
    next_sequence: int = 0  # sequence of the next record to be numbered in this session
    waiting: deque[Section] = field(default_factory=deque)  # not numbered; the last one takes messages
    unacked: deque[Section] = field(default_factory=deque)  # numbered and open, in order of their sequences
    resend: bool = False  # send the unacked sections again, once none is in flight
    renumber: bool = False  # a sequence is missing for good: the numbering must start anew

    @property
    def in_flight(self) -> bool:
        return any(section.in_flight for section in self.unacked)


def forget_number(section: Section) -> None:
    """Prepare a section that is certainly not stored for a new sequence."""
    section.data = None
    section.sequence = -1

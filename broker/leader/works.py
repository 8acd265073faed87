"""Producer works of the append pipeline: sections of LogService streams, messages of SendMessage calls.

The leader's view recognises retries. A retry whose first copy is undecided waits for the turn of that copy.
Owns: one request and its future.   Must not: encode answers.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from ..state.effects import Effects
from ..state.topics import Topic
from ..wire.native import ProducedSection
from ..wire.official import OutgoingRecord
from .leader_view import Turn, Verdict
from .pipeline import Flight, settle, settle_error
from .records import PlacedRecord


@dataclass(slots=True)
class SectionOutcome:
    """Outcome of one section; see Admission."""

    verdict: Verdict
    base_offset: int
    count: int  # records
    expected_sequence: int = 0  # set with SEQUENCE_GAP


class _ProducerWork:
    """Work that waits for its own turn and those of first copies, until all are decided or one is lost."""

    filters = False

    def __init__(self, size: int, section_bound: int) -> None:
        self.size = size
        self.section_bound = section_bound
        self.essential = False
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.timestamp = 0  # log time of the entry, ms
        self.index = 0  # of the entry; 0: all of it was stored before
        self.committed_at = 0.0  # monotonic seconds
        self._undecided = 1  # turns to wait for

    def wait_for(self, turn: Turn, own: Flight) -> None:
        """Wait for the turn that holds a first copy."""
        flight = turn.token
        assert isinstance(flight, Flight)
        if flight is not own:
            self._undecided += 1
            flight.when_decided(self._on_decided)

    def on_committed(self, flight: Flight) -> None:
        self.timestamp = flight.timestamp
        self.index = flight.turn.index
        self.committed_at = time.monotonic()
        self._on_decided(None)

    def on_applied(self, flight: Flight, effects: Effects) -> None:
        """Do nothing: producers are answered at commit."""

    def fail(self, error: Exception) -> None:
        settle_error(self.future, error)

    def _on_decided(self, error: Exception | None) -> None:
        if error is not None:
            self.fail(error)
            return
        self._undecided -= 1
        if not self._undecided:
            settle(self.future, self.result())

    def result(self) -> object:
        raise NotImplementedError


class ProduceWork(_ProducerWork):
    """Sections of one ProduceRequest. The future's result is one SectionOutcome per section."""

    def __init__(self, sections: list[ProducedSection]) -> None:
        super().__init__(sum(each.header.total_size for each in sections), len(sections))
        self._sections = sections
        self._outcomes: list[SectionOutcome] = []

    def place(self, flight: Flight, now: int) -> None:
        for section in self._sections:
            admission = flight.turn.add_records(section.header_bytes, section.body, section.header)
            self._outcomes.append(
                SectionOutcome(
                    admission.verdict,
                    admission.base_offset,
                    section.header.count,
                    admission.expected_sequence,
                )
            )
            if admission.verdict is Verdict.PENDING and admission.turn is not None:
                self.wait_for(admission.turn, flight)
        self._sections = []

    def result(self) -> list[SectionOutcome]:
        return self._outcomes


@dataclass(slots=True)
class SentMessage:
    """Place of a sent message."""

    queue_id: int
    offset: int
    verdict: Verdict  # other than ACCEPTED or DUPLICATE: the message is not stored


class SendWork(_ProducerWork):
    """Messages of one SendMessage call. The future's result is one SentMessage per message."""

    def __init__(self, topic: Topic, messages: list[tuple[OutgoingRecord, str]]) -> None:
        size = sum(len(record.rest_run) + len(record.system_run) + 160 for record, _ in messages)
        super().__init__(size, len(messages))
        self._topic = topic
        self._messages = messages
        self._placed: list[PlacedRecord] = []

    def place(self, flight: Flight, now: int) -> None:
        topic_id = self._topic.topic_id
        for record, message_group in self._messages:
            known = flight.records.view.find_message(topic_id, record.message_id)
            if known is not None:
                self._placed.append(PlacedRecord(known.queue_id, known.offset, Verdict.DUPLICATE))
                if known.turn is not None:
                    self.wait_for(known.turn, flight)
                continue
            same = flight.records.find(topic_id, record.message_id)
            self._placed.append(same or flight.records.add(self._topic, record, message_group))
        self._messages = []

    def result(self) -> list[SentMessage]:
        return [SentMessage(each.queue_id, each.offset, each.verdict) for each in self._placed]

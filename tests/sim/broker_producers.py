"""Producers of the simulated brokers: streams with sequences, messages with ids.

They resend the same bytes, to any node, until they know the outcome. Sometimes they give up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ledgermq.broker.leader.leader_view import Verdict
from ledgermq.broker.wire.official import OutgoingRecord
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, encode_record, encode_section

from .broker_client import Client
from .broker_life import Answer
from .invariants import demand

if TYPE_CHECKING:
    from .broker_world import BrokerWorld

TAGS = (0, 11, 12, 13)
_STORED = (Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.PENDING)
_NO_TOPIC = (Verdict.TOPIC_GONE, Verdict.QUEUE_NOT_FOUND)


@dataclass(slots=True)
class Batch:
    """Messages of one call, kept until their outcome is known."""

    body: object  # what is sent
    values: list[list[bytes]]  # message ids, by section
    is_unknown: bool = False  # some attempt got no answer, or no definite one


class Producer(Client):
    """Sends one call after the other. `is_finished`: nothing is in flight."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self.number = self.rng.getrandbits(60) | 1
        self.batch: Batch | None = None
        self._count = 0

    @property
    def is_finished(self) -> bool:
        return self.batch is None

    @property
    def may_go_on(self) -> bool:
        """Return whether to continue. At the end of a run only batches in flight are continued."""
        return not self.world.is_quiet and (self.batch is not None or not self.world.is_draining)

    def new_id(self) -> bytes:
        """Return the id of a new message."""
        self._count += 1
        return struct.pack("<QQ", self.number, self._count)

    def on_failed(self, batch: Batch, answer: Answer) -> None:
        """Handle a refusal or an unknown outcome: retry or give up."""
        batch.is_unknown |= answer.status != "refused"
        if batch is self.batch and self.rng.random() < 0.03:
            self.give_up(batch)
        self.soon()

    def give_up(self, batch: Batch) -> None:
        """Forget a batch. If it was refused every time it must not be stored."""
        self.batch = None
        if not batch.is_unknown:
            for value in (value for values in batch.values for value in values):
                self.world.refused[value] = None


class StreamProducer(Producer):
    """One stream into one queue; sequences count its records. One call of some sections at a time."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._key: tuple[int, int] | None = None
        self._epoch = 0
        self._sequence = 0
        self._is_labelled = self.rng.random() < 0.5

    def step(self) -> None:
        if self.batch is None and not self._make_batch():
            self.soon()
            return
        batch, key = self.batch, self._key
        assert batch is not None
        assert key is not None

        def late(answer: Answer, newest: bool) -> None:
            self._check(batch, key, True, answer, newest)

        self.ask("produce", batch.body, partial(self._on_answer, batch, key), late)

    def _make_batch(self) -> bool:
        rng, world = self.rng, self.world
        if self._key is None or self._key not in world.model.queues or rng.random() < 0.02:
            topic = self.a_topic()
            if topic is None:
                return False
            self._key = (topic.topic_id, rng.randrange(topic.queues))
            self.number = rng.getrandbits(60) | 1
            self._epoch = self._sequence = self._count = 0
        elif rng.random() < 0.02:
            self._epoch, self._sequence = self._epoch + rng.randint(1, 3), 0
        producer = 0 if rng.random() < 0.1 else self.number  # 0: a retry is not recognised
        sections, values = [], []
        sequence = self._sequence
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            ids = [self.new_id() for _ in range(rng.choice((1, 1, 2, 5)))]
            sections.append(self._section(self._key, ids, producer, sequence))
            values.append(ids)
            sequence += len(ids)
        self.batch = Batch((b"".join(sections), len(sections)), values, is_unknown=False)
        self._is_plain = not producer
        return True

    def _section(self, key: tuple[int, int], ids: list[bytes], producer: int, sequence: int) -> bytes:
        records: list[bytes] = []
        distance = SECTION_HEADER_SIZE
        for value in ids:
            body = value + bytes(self.rng.choice((0, 40, 200)) if self._is_labelled else 24)
            record = encode_record(
                b"", body,
                section_distance=distance, body_offset_in_rest=0, body_size=len(body), message_id=value,
                born_timestamp=0,
                tag_hash=self.rng.choice(TAGS) if self._is_labelled else 0,
                key_hashes=(7,) if self._is_labelled else (),
            )  # fmt: skip
            records.append(record)
            distance += len(record)
        section = encode_section(
            SectionKind.RECORDS, records, len(records), topic_id=key[0], queue_id=key[1],
            producer_id=producer, producer_epoch=self._epoch if producer else 0,
            base_sequence=sequence if producer else 0,
        )  # fmt: skip
        return bytes(section)

    def _on_answer(self, batch: Batch, key: tuple[int, int], answer: Answer, newest: bool) -> None:
        if answer.status != "ok":
            if self._is_plain and answer.status == "unknown":
                self.batch = None  # a retry might store it twice
                self.soon()
                return
            self.on_failed(batch, answer)
            if self.batch is None and batch.is_unknown:
                self._epoch, self._sequence = self._epoch + 1, 0
            return
        verdicts = self._check(batch, key, False, answer, newest)
        if Verdict.DRAINING in verdicts:  # earlier sections of the call were stored
            self.on_failed(batch, Answer("refused"))
            if self.batch is None and batch.is_unknown:
                self._epoch, self._sequence = self._epoch + 1, 0
            return
        if any(verdict in _NO_TOPIC for verdict in verdicts):
            self._key = self.batch = None
        elif all(verdict in _STORED for verdict in verdicts):
            self._sequence += 0 if self._is_plain else sum(map(len, batch.values))
            self.batch = None
        else:
            batch.is_unknown = True
            if self.world.model.streams_before >= 0:  # it was forgotten: start anew, without resending it
                self._epoch, self._sequence, self.batch = self._epoch + 1, 0, None
        self.soon()

    def _check(
        self, batch: Batch, key: tuple[int, int], is_late: bool, answer: Answer, newest: bool
    ) -> list[Verdict]:
        """Check the results of the sections. `is_late`: the producer may have moved on meanwhile."""
        if answer.status != "ok":
            return []
        for outcome, values in zip(answer.value, batch.values, strict=True):
            if outcome.verdict in _STORED and outcome.base_offset >= 0:
                for place, value in enumerate(values):
                    self.world.on_acked(value, (*key, outcome.base_offset + place))
            elif outcome.verdict not in (*_NO_TOPIC, Verdict.DRAINING) and newest and not is_late:
                demand(
                    self.world.model.streams_before >= 0,
                    f"B1: {outcome} for the next batch of stream {self.number} epoch {self._epoch}",
                )
        return [outcome.verdict for outcome in answer.value]


class MessageSender(Producer):
    """Messages with ids, some of them with a message group that keeps their order."""

    def __init__(self, world: BrokerWorld) -> None:
        super().__init__(world)
        self._topic = 0

    def step(self) -> None:
        if self.batch is None:
            topic = self.a_topic()
            if topic is None:
                self.soon()
                return
            self._topic = topic.topic_id
            messages = [self._message(self.new_id()) for _ in range(self.rng.randint(1, 3))]
            self.batch = Batch((self._topic, messages), [[record.message_id] for record, _ in messages])
        batch = self.batch
        late = partial(self._check, batch, self._topic)
        self.ask("send", batch.body, partial(self._on_answer, batch, self._topic), late)

    def _message(self, value: bytes) -> tuple[OutgoingRecord, str]:
        body = value + bytes(self.rng.choice((0, 100)))
        record = OutgoingRecord(b"", body, 0, len(body), value, 0, self.rng.choice(TAGS), (), 0)
        return record, self.rng.choice(("", "", "a", "b"))

    def _on_answer(self, batch: Batch, topic: int, answer: Answer, newest: bool) -> None:
        if answer.status == "ok" and any(sent.verdict is Verdict.DRAINING for sent in answer.value):
            self._check(batch, topic, answer, newest)
            self.on_failed(batch, Answer("refused"))
        elif answer.status == "ok":
            self._check(batch, topic, answer, newest)
            self.batch = None
            self.soon()
        elif topic not in self.world.model.topics:
            self.batch = None
            self.soon()
        else:
            self.on_failed(batch, answer)

    def _check(self, batch: Batch, topic: int, answer: Answer, _newest: bool) -> None:
        if answer.status == "ok":
            for sent, (value,) in zip(answer.value, batch.values, strict=True):
                if sent.verdict in _STORED:
                    self.world.on_acked(value, (topic, sent.queue_id, sent.offset))

"""Row packer: columns of messages become requests of encoded sections.

Owns: the records that wait until a request is full, the choice of queues within a broker group, and the
sequence of the sections. Must not: send.
Pure except for the source of ids. Memory: one request, and the rows that it is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, put_section_header

from ..produce.encoding import RecordEncoder
from ..produce.message_ids import MessageIdSource
from ..produce.plain_run import PlainRun
from ..produce.queue_selection import queue_of_group

#: Bytes of the sections of a request, unless one message is larger; and its messages.
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_REQUEST_COUNT: Final = 4096


class Row(NamedTuple):
    """A message to be written."""

    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] | None = None
    message_group: str = ""

    @property
    def is_plain(self) -> bool:
        return not (self.tag or self.keys or self.properties or self.message_group)


@dataclass(frozen=True, slots=True, eq=False)
class PackedRequest:
    """Sections that are sent together. Their sequences follow one another."""

    sections: tuple[bytearray, ...]
    first: int  # sequence of the first message
    count: int  # messages


@dataclass(frozen=True, slots=True)
class PartAddress:
    """Where the sections of an attempt go, and what identifies them (BeginBatchResponse)."""

    topic_id: int
    queue_count: int
    producer_id: int
    producer_epoch: int


@dataclass(slots=True, eq=False)
class _Waiting:
    """Records of one queue. `run` is the last one of `parts` while it may still grow."""

    parts: list[bytes | PlainRun] = field(default_factory=list)
    run: PlainRun | None = None
    size: int = SECTION_HEADER_SIZE
    count: int = 0


class RowPacker:
    """Packs the rows of one attempt at a part."""

    def __init__(
        self,
        encoder: RecordEncoder,
        address: PartAddress,
        ids: MessageIdSource,
        *,
        first: int,
        queue: int = 0,
        one_queue: bool = False,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        """`first`: sequence of the first message. `queue`: where messages without a message group begin;
        `one_queue`: and stay.
        """
        self.next = first  # sequence of the next message
        self._encoder = encoder
        self._address = address
        self._ids = ids
        self._queue = queue % address.queue_count  # of messages without a message group, in this request
        self._step = 0 if one_queue else 1
        self._limit = min(MAX_REQUEST_BYTES, max_request_bytes)
        self._waiting: dict[int, _Waiting] = {}
        self._size = self._count = 0  # of all that wait

    def bodies(self, bodies: Sequence[bytes], born_ms: int) -> Iterator[PackedRequest]:
        """Add messages that have a body only; yield the requests that they fill."""
        encoder = self._encoder
        for body in bodies:
            if not encoder.is_plain(body):
                yield from self.row(Row(body), born_ms)
                continue
            waiting = self._of(self._queue)
            run = waiting.run
            if run is None or not run.fits(encoder, len(body), born_ms):
                run = self._new_run(waiting, len(body), born_ms)
            size = run.record_size(len(body))
            if self._is_full(size):
                yield self._cut()
                waiting = self._of(self._queue)
                run = self._new_run(waiting, len(body), born_ms)
            run.bodies.append(body)
            self._grew(waiting, size)

    def row(self, row: Row, born_ms: int) -> Iterator[PackedRequest]:
        """Add one message; yield the request that is full without it."""
        queue = self._queue
        if row.message_group:
            queue = queue_of_group(row.message_group, self._address.queue_count)
        record = self._encode(row, self._of(queue), born_ms)
        if self._is_full(len(record)):
            yield self._cut()
            queue = queue if row.message_group else self._queue
            record = self._encode(row, self._of(queue), born_ms)
        waiting = self._of(queue)
        waiting.parts.append(record)
        waiting.run = None
        self._grew(waiting, len(record))

    def rest(self) -> Iterator[PackedRequest]:
        """Yield what is left."""
        if self._count:
            yield self._cut()

    def _of(self, queue: int) -> _Waiting:
        waiting = self._waiting.get(queue)
        if waiting is None:
            waiting = self._waiting[queue] = _Waiting()
        return waiting

    def _new_run(self, waiting: _Waiting, body_size: int, born_ms: int) -> PlainRun:
        run = PlainRun(self._encoder, waiting.size, body_size, born_ms, self._ids)
        waiting.parts.append(run)
        waiting.run = run
        return run

    def _encode(self, row: Row, waiting: _Waiting, born_ms: int) -> bytes:
        return self._encoder.encode(
            waiting.size, row.body, self._ids.next(born_ms), born_ms,
            row.tag, row.keys, row.properties, row.message_group,
        )  # fmt: skip

    def _is_full(self, more: int) -> bool:
        """Tell whether what waits must be sent before a record of `more` bytes is added."""
        headers = SECTION_HEADER_SIZE * (len(self._waiting) + 1)
        return self._count > 0 and (
            self._size + headers + more > self._limit or self._count >= MAX_REQUEST_COUNT
        )

    def _grew(self, waiting: _Waiting, size: int) -> None:
        waiting.size += size
        waiting.count += 1
        self._size += size
        self._count += 1

    def _cut(self) -> PackedRequest:
        """Return what waits as a request, and go on with the next queue."""
        first, sections, address = self.next, [], self._address
        for queue, waiting in self._waiting.items():
            if not waiting.count:
                continue
            data = bytearray(waiting.size)
            body, at = memoryview(data)[SECTION_HEADER_SIZE:], 0
            for part in waiting.parts:
                if isinstance(part, PlainRun):
                    at += part.write(body[at:]) if part.bodies else 0
                else:
                    body[at : at + len(part)] = part
                    at += len(part)
            assert at == len(body), "the size counts every record"
            put_section_header(
                data, SectionKind.RECORDS, waiting.count,
                topic_id=address.topic_id, queue_id=queue, producer_id=address.producer_id,
                producer_epoch=address.producer_epoch, base_sequence=self.next,
            )  # fmt: skip
            self.next += waiting.count
            sections.append(data)
        self._waiting, self._size, self._count = {}, 0, 0
        self._queue = (self._queue + self._step) % address.queue_count
        return PackedRequest(tuple(sections), first, self.next - first)

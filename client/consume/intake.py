"""Intake: builds the fetch requests of a consumer to one broker group, and takes the answers. Pure.

Owns: the queues that are read, and the next offset to fetch of each. Must not: do I/O, read clocks, keep
records (subclasses do).
Invariant: when a queue was moved (its generation changed), answers to earlier requests are ignored for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ledgermq.proto import log_pb2
from ledgermq.proto import route_pb2 as pb

from ..message import MessageQueue

#: Bytes per request, over all queues of a broker group.
FETCH_BYTES: Final = 4 * 1024 * 1024
#: Queues per request: brokers accept no more. With more queues, long polls are short and requests alternate.
MAX_POSITIONS: Final = 4096
_CROWDED_WAIT_MS: Final = 200


@dataclass(slots=True, eq=False)
class AssignedQueue:
    """A queue that this consumer reads. Offsets are queue offsets. Invariant: position <= fetch_offset."""

    queue: MessageQueue
    topic_id: int  # of the incarnation of the topic that is read
    position: int  # next offset to hand out
    fetch_offset: int  # next offset to fetch
    generation: int = 0  # changes when the queue is moved: answers to earlier requests are ignored
    parked: bool = False  # was refused, and is left out of requests for a while
    end_offset: int = 0  # end of the queue as last known
    sought: bool = False  # moved to `fetch_offset` by its user: no broker has confirmed this offset yet
    beyond: bool = False  # a broker has said that it lies beyond the end

    @property
    def key(self) -> tuple[int, int]:
        """Topic id and queue id, as used in requests."""
        return self.topic_id, self.queue.queue_id


Q = TypeVar("Q", bound=AssignedQueue)


@dataclass(frozen=True, slots=True)
class OutOfRange(Generic[Q]):
    """The broker does not have the requested offset; it has [begin, end)."""

    assigned: Q
    begin: int
    end: int


#: A refused queue with the reason.
Refused = tuple[Q, pb.Refusal] | OutOfRange[Q]


class Intake(ABC, Generic[Q]):
    """The queues of one broker group that are read."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], Q] = {}
        self._turn = 0

    def assign(self, assigned: Q) -> None:
        """Read a queue from its `fetch_offset` on."""
        self._queues[assigned.key] = assigned

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another request may be sent."""

    @property
    @abstractmethod
    def has_messages(self) -> bool:
        """Whether there is something to hand out."""

    @abstractmethod
    def _wanted(self) -> Sequence[Q]:
        """Return the queues to fetch now."""

    @abstractmethod
    def _most_bytes(self, wanted: Sequence[Q]) -> int:
        """Return how many bytes to request for them."""

    @abstractmethod
    def _take(self, assigned: Q, found: log_pb2.FetchedQueue) -> None:
        """Store the sections of a queue, and advance its `fetch_offset`. Raises: CorruptMessageError."""

    def next_request(self, max_wait_ms: int) -> tuple[log_pb2.FetchRequest, dict[tuple[int, int], int]]:
        """Return the next request, and the generation of each queue in it (for `on_response`).

        The first queue rotates, so that one full queue does not starve the others.
        """
        queues, step = self._wanted(), 1
        if len(queues) > MAX_POSITIONS:
            step, max_wait_ms = MAX_POSITIONS, min(max_wait_ms, _CROWDED_WAIT_MS)
        request = log_pb2.FetchRequest(max_bytes=self._most_bytes(queues), max_wait_ms=max_wait_ms)
        self._turn = (self._turn + step) % max(len(queues), 1)
        asked = {}
        for assigned in (*queues[self._turn :], *queues[: self._turn])[:MAX_POSITIONS]:
            topic_id, queue_id = assigned.key
            request.positions.add(topic_id=topic_id, queue_id=queue_id, offset=assigned.fetch_offset)
            asked[assigned.key] = assigned.generation
        return request, asked

    def on_response(
        self, response: log_pb2.FetchResponse, asked: dict[tuple[int, int], int]
    ) -> list[Refused[Q]]:
        """Take an answer; return the refused queues.

        Raises: CorruptMessageError (a checksum is wrong; nothing after it is taken).
        """
        refused: list[Refused[Q]] = []
        for found in response.queues:
            key = (found.topic_id, found.queue_id)
            assigned = self._queues.get(key)
            if assigned is None or asked.get(key) != assigned.generation:
                continue
            if not found.HasField("refusal"):
                self._take(assigned, found)
            elif found.refusal.code == pb.OFFSET_OUT_OF_RANGE:
                refused.append(OutOfRange(assigned, found.begin_offset, found.end_offset))
            else:
                refused.append((assigned, found.refusal))
        return refused

"""What a consumer asks one broker group for, and how it takes the answers in. Pure.

Owns: the queues that are read, the next offset to ask for of each. Must not: do I/O, read clocks; keep records (whoever derives
from `Intake` does).
Invariant: what was asked before a queue was moved (its generation changed) is not taken in afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from ledgermq.proto import log_pb2
from ledgermq.proto import route_pb2 as pb

from ..message import MessageQueue

#: Bytes asked for at once, over all queues of a group.
FETCH_BYTES: Final = 4 * 1024 * 1024
#: Queues of one request: brokers take no more. Who reads more than that asks for others soon.
MAX_POSITIONS: Final = 4096
_CROWDED_WAIT_MS: Final = 200


@dataclass(slots=True, eq=False)
class AssignedQueue:
    """A queue that this consumer reads. Offsets are queue offsets."""

    queue: MessageQueue
    topic_id: int
    position: int  # next offset to hand out
    fetch_offset: int  # next offset to ask for
    generation: int = 0  # changes when it is moved: answers to older questions are dropped
    parked: bool = False  # it was refused, and is asked for again later
    end_offset: int = 0  # of the queue, when it was last heard of
    sought: bool = False  # moved to `fetch_offset` by its user: no broker has said yet that this exists
    beyond: bool = False  # a broker has said that it does not: it lies beyond the end

    @property
    def key(self) -> tuple[int, int]:
        """Topic id and queue id: what brokers call it."""
        return self.topic_id, self.queue.queue_id


Q = TypeVar("Q", bound=AssignedQueue)


@dataclass(frozen=True, slots=True)
class OutOfRange(Generic[Q]):
    """The broker does not have the offset that was asked for: it has [begin, end)."""

    assigned: Q
    begin: int
    end: int


#: A queue that was refused, and why.
Refused = tuple[Q, pb.Refusal] | OutOfRange[Q]


class Intake(ABC, Generic[Q]):
    """The queues of one broker group that are read."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], Q] = {}
        self._turn = 0

    @property
    def queues(self) -> list[Q]:
        return list(self._queues.values())

    def assign(self, assigned: Q) -> None:
        """Read a queue from its `fetch_offset`."""
        self._queues[assigned.key] = assigned

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Another fetch may be sent."""

    @property
    @abstractmethod
    def has_messages(self) -> bool:
        """Something can be handed out."""

    @abstractmethod
    def _wanted(self) -> Sequence[Q]:
        """Return the queues to ask for now."""

    @abstractmethod
    def _most_bytes(self, wanted: Sequence[Q]) -> int:
        """Return how many bytes of them to ask for."""

    @abstractmethod
    def _take(self, assigned: Q, found: log_pb2.FetchedQueue) -> None:
        """Keep the sections of a queue, and move its `fetch_offset`. Raises: CorruptMessageError."""

    def next_request(self, max_wait_ms: int) -> tuple[log_pb2.FetchRequest, dict[tuple[int, int], int]]:
        """Return the next request and the generation of each queue in it (for `on_response`).

        Queues take turns at the front, so that one full queue does not starve the others.
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
        """Take an answer in; return the queues that were refused.

        Raises: CorruptMessageError (a checksum does not fit; nothing behind it is taken).
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

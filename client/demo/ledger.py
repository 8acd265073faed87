"""Books of the demo: what was sent, acknowledged and received. They must balance.

Owns: the content of the demo's messages, and the comparison. Pure: times are seconds of any monotonic clock.
A message is a number. Its body carries the number, so that a received message is recognised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

_NUMBER = struct.Struct("<Q")
_FILLER = bytes(range(32, 127)) * 4
_GAP_RESOLUTION = 0.0005
_LATENCIES_KEPT = 20_000


def body_of(number: int, size: int) -> bytes:
    """Return the body of message `number`: the number, then filler up to `size` bytes."""
    return _NUMBER.pack(number) + _FILLER[: size - _NUMBER.size]


def number_of(body: bytes) -> int:
    """Return the number in a body. Raises: ValueError (the demo did not send it)."""
    if len(body) < _NUMBER.size or body[_NUMBER.size :] != _FILLER[: len(body) - _NUMBER.size]:
        raise ValueError(f"a body of {len(body)} bytes that was never sent: {body[:32]!r}")
    return int(_NUMBER.unpack_from(body)[0])


@dataclass(slots=True)
class SendBook:
    """The sender's book. Positions are (queue id, queue offset). Keys are message numbers."""

    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    message_ids: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    sent_at: list[float] = field(default_factory=list)
    recognised: int = 0  # retries that the brokers detected as duplicates
    latencies: list[float] = field(default_factory=list)
    ack_times: list[float] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return len(self.sent_at) - len(self.acknowledged) - len(self.failed)

    def on_sent(self, now: float) -> int:
        """Take the next number."""
        self.sent_at.append(now)
        return len(self.sent_at) - 1

    def on_acknowledged(self, number: int, queue_id: int, offset: int, duplicate: bool, now: float) -> None:
        self.acknowledged[number] = (queue_id, offset)
        self.recognised += duplicate
        self.latencies.append(now - self.sent_at[number])
        if not self.ack_times or now - self.ack_times[-1] > _GAP_RESOLUTION:
            self.ack_times.append(now)

    def on_failed(self, number: int, reason: str) -> None:
        self.failed[number] = reason

    def p99_ms(self) -> float:
        """Return the 99th percentile of the newest latencies, ms."""
        newest = sorted(self.latencies[-_LATENCIES_KEPT:])
        return newest[int(len(newest) * 0.99)] * 1000 if newest else 0.0

    def longest_gap(self, since: float) -> float:
        """Return the longest time without an acknowledgement since the last one before `since`, s."""
        first = next((i for i in range(len(self.ack_times) - 1, -1, -1) if self.ack_times[i] < since), 0)
        times = self.ack_times[first:]
        return max((after - before for before, after in pairwise(times)), default=0.0)


@dataclass(slots=True)
class ReceiveBook:
    """The consumer's book, in the order of arrival."""

    positions: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    deliveries: int = 0
    stored: int = 0  # number of different positions
    out_of_order: list[int] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    _last_in_queue: dict[int, tuple[int, int]] = field(default_factory=dict)  # queue → (offset, number)

    def on_message(self, queue_id: int, offset: int, body: bytes) -> None:
        """Record one delivery. Within a queue, offsets and the sender's numbers must both rise."""
        try:
            number = number_of(body)
        except ValueError as error:
            self.strangers.append(f"queue {queue_id} offset {offset}: {error}")
            return
        self.deliveries += 1
        last_offset, last_number = self._last_in_queue.get(queue_id, (-1, -1))
        if offset > last_offset:
            if number <= last_number:
                self.out_of_order.append(number)
            self._last_in_queue[queue_id] = (offset, number)
        places = self.positions.setdefault(number, set())
        self.stored += (queue_id, offset) not in places
        places.add((queue_id, offset))

    @property
    def distinct(self) -> int:
        return len(self.positions)

    @property
    def redelivered(self) -> int:
        return self.deliveries - self.stored


@dataclass(frozen=True, slots=True)
class Balance:
    """The comparison of both books."""

    missing: list[int]
    misplaced: list[int]  # acknowledged at one position, found at another
    stored_twice: list[int]
    out_of_order: list[int]
    strangers: list[str]
    unacknowledged: int  # found, but not acknowledged: allowed, because their outcome was unknown

    @property
    def is_good(self) -> bool:
        wrong = (self.missing, self.misplaced, self.stored_twice, self.out_of_order, self.strangers)
        return not any(wrong)

    def problems(self) -> list[str]:
        """Return one sentence per kind of problem, with the first message numbers."""
        named = {
            "acknowledged but missing": self.missing,
            "acknowledged at another position than found": self.misplaced,
            "stored twice": self.stored_twice,
            "out of order in their queue": self.out_of_order,
        }
        lines = [f"{len(found):,} messages {what}: {_some(found)}" for what, found in named.items() if found]
        return lines + [f"unknown content: {text}" for text in self.strangers[:3]]


def balance(sent: SendBook, received: ReceiveBook) -> Balance:
    """Compare what was acknowledged with what was received."""
    found = received.positions
    return Balance(
        missing=[number for number in sent.acknowledged if number not in found],
        misplaced=[n for n, place in sent.acknowledged.items() if n in found and place not in found[n]],
        stored_twice=[number for number, places in found.items() if len(places) > 1],
        out_of_order=received.out_of_order,
        strangers=received.strangers,
        unacknowledged=sum(number not in sent.acknowledged for number in found),
    )


def _some(numbers: Iterable[int]) -> str:
    listed = sorted(numbers)
    more = f" and {len(listed) - 8:,} more" if len(listed) > 8 else ""
    return ", ".join(str(number) for number in listed[:8]) + more

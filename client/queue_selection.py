"""Which queue the next message goes to. Pure: random numbers are injected, no clock.

A selector is asked for every message without a message group, and told when a request was cut (`on_flush`).
With a message group the queue is a hash of the group, whatever the selector: order wants one queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ledgermq.proto.record import hash_text

from .message import MessageQueue

CustomChoice = Callable[[Sequence[MessageQueue], str], int]


class QueueSelector(Protocol):
    """Chooses an index into `queues`, which is never empty."""

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        """Return the index of the queue for the next message; `key` is its first key, or ""."""

    def on_flush(self) -> None:
        """A request was cut: what comes next travels with another one."""


class StickyRoundRobin:
    """Stays on a queue until a request is cut, then takes the next: full batches under load, round robin while idle."""

    def __init__(self, start: int = 0) -> None:
        self._at = start

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._at % len(queues)

    def on_flush(self) -> None:
        self._at += 1


class StrictRoundRobin:
    """Every message goes to the next queue."""

    def __init__(self, start: int = 0) -> None:
        self._at = start - 1

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        self._at += 1
        return self._at % len(queues)

    def on_flush(self) -> None:
        return


class RandomQueue:
    """Every message goes to a queue drawn by `below(n)`, which returns a number in [0, n)."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._below(len(queues))

    def on_flush(self) -> None:
        return


class HashByKey:
    """Messages with the same first key go to the same queue; without a key round robin."""

    def __init__(self) -> None:
        self._otherwise = StickyRoundRobin()

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return hash_to_index(key, len(queues)) if key else self._otherwise.choose(queues, key)

    def on_flush(self) -> None:
        self._otherwise.on_flush()


class CustomSelector:
    """The user's own choice: a function of the queues and the first key that returns an index."""

    def __init__(self, choice: CustomChoice) -> None:
        self._choice = choice

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._choice(queues, key) % len(queues)

    def on_flush(self) -> None:
        return


def hash_to_index(text: str, count: int) -> int:
    """Return the queue of a message group or key: equal for all clients, versions and runs."""
    return (hash_text(text) & 0xFFFFFFFFFFFFFFFF) % count

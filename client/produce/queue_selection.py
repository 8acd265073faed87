"""Queue selection: chooses the queue of the next message. Pure: random numbers are injected, no clock.

The selector is called for every message without a message group, and told when a request was cut
(`on_flush`). The queue of a message group is a hash of its name, whatever the selector: order needs one.

A selector whose class sets `sticky` returns the same queue for all messages without a key until `on_flush`.
It is not called for each of them, and `on_flush` also means that the next message may go to another queue.
That happens after every message while few wait for the same request. Under load it happens after a stretch
of messages, so that large requests stay cheap (`outbox` says how long a stretch is).

The choice of a single send (`Selection`) overrides the selector of the producer.

A selector may declare with `goes_anywhere` that a message has no preferred queue. Slow broker groups are then
avoided: it is offered the queues of the others. Without that method its choice counts as deliberate, and is
kept as long as the broker group takes messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

from ledgermq.proto.record import hash_text

from ..arguments import a_function, wrong
from ..errors import UsageError
from ..message import Message, MessageQueue

_MASK64: Final = (1 << 64) - 1
_JUMP_FACTOR: Final = 2862933555777941757

#: Returns an index of any size into the queues (taken modulo their number) for the first key of a message;
#: the key is "" without one.
CustomChoice = Callable[[Sequence[MessageQueue], str], int]
#: Choice of a single send: gets the queues that take messages, the message and the send's argument; returns
#: one of these queues.
MessageSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


class QueueSelector(Protocol):
    """Chooses an index into `queues`, which is never empty."""

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        """Return the index of the queue for the next message. `key` is its first key, or ""."""

    def on_flush(self) -> None:
        """A request was cut: later messages belong to another one. If `sticky`: or a stretch ended."""


class StickyRoundRobin:
    """Moves to the next queue after each stretch: one message under low load, more under high load."""

    sticky: ClassVar = True

    def __init__(self, start: int = 0) -> None:
        self._at = start

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._at % len(queues)

    def on_flush(self) -> None:
        self._at += 1

    def goes_anywhere(self, key: str) -> bool:
        return True


class StrictRoundRobin:
    """Sends every message to the next queue."""

    def __init__(self, start: int = 0) -> None:
        self._at = start - 1

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        self._at += 1
        return self._at % len(queues)

    def on_flush(self) -> None:
        return

    def goes_anywhere(self, key: str) -> bool:
        return True


class RandomQueue:
    """Sends every message to a queue drawn by `below(n)`, which returns a number in [0, n)."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._below(len(queues))

    def on_flush(self) -> None:
        return

    def goes_anywhere(self, key: str) -> bool:
        return True


class HashByKey:
    """Sends messages with the same first key to the same queue; messages without a key round-robin."""

    sticky: ClassVar = True

    def __init__(self) -> None:
        self._otherwise = StickyRoundRobin()

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return hash_to_index(key, len(queues)) if key else self._otherwise.choose(queues, key)

    def on_flush(self) -> None:
        self._otherwise.on_flush()

    def goes_anywhere(self, key: str) -> bool:
        return not key


class CustomSelector:
    """A user's choice: a function of the queues and the first key that returns an index."""

    def __init__(self, choice: CustomChoice) -> None:
        self._choice = choice

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._choice(queues, key) % len(queues)

    def on_flush(self) -> None:
        return


class Selection(NamedTuple):
    """The queue choice of a single send."""

    selector: MessageSelector
    argument: Any = None

    def number(self, queues: Sequence[MessageQueue], message: Message) -> int:
        """Return the index of the queue. Raises: UsageError (the selector raised or chose none of them)."""
        try:
            chosen = self.selector(queues, message, self.argument)
        except Exception as error:
            raise UsageError(f"the selector of a send raised {error!r}", "Nothing was sent") from error
        if chosen not in queues:
            raise UsageError(
                f"the selector of a send returned {chosen!r}",
                "Nothing was sent",
                "It must return one of the queues it gets",
            )
        return queues.index(chosen)


def selection_of(selector: MessageSelector | None, argument: object) -> Selection | None:
    """Return the queue choice of a send, or None. Raises: UsageError."""
    if selector is None:
        if argument is not None:
            raise UsageError(
                "a send has an argument and no selector", "", "Give selector=, a function that gets it"
            )
        return None
    a_function("selector", selector)
    return Selection(selector, argument)


def selector_of(given: QueueSelector | CustomChoice) -> QueueSelector:
    """Return the given selector, or wrap the given function. Raises: UsageError."""
    methods = [getattr(given, name, None) for name in ("choose", "on_flush")]
    if not (callable(given) or all(map(callable, methods))):
        raise wrong(
            "selector", given, "a function of the queues and the first key, or have choose() and on_flush()"
        )
    return cast("QueueSelector", given) if hasattr(given, "choose") else CustomSelector(given)


def hash_to_index(text: str, count: int) -> int:
    """Return an index for a key. Stable across versions and runs."""
    return (hash_text(text) & _MASK64) % count


def queue_of_group(message_group: str, count: int) -> int:
    """Return the queue of a message group: the brokers choose the same one for official clients.

    Jump consistent hash over Java's `String.hashCode`: adding queues moves as few message groups as possible.
    """
    units = message_group.encode("utf-16-le")
    code = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        code = (code * 31 + (high << 8 | low)) & 0xFFFFFFFF
    state, candidate = (code - (1 << 32) if code & 0x80000000 else code) & _MASK64, 0
    while True:
        state = (state * _JUMP_FACTOR + 1) & _MASK64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= count:
            return candidate
        candidate = following

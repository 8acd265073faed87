"""Which queue the next message goes to. Pure: random numbers are injected, no clock.

A selector is asked for every message without a message group, and told when a request was cut (`on_flush`).
With a message group the queue is a hash of the group, whatever the selector: order wants one queue.
One whose class says that it is `sticky` gives all messages without a key to one queue until `on_flush`: it is not asked for
each of them, and `on_flush` says that the next may go elsewhere. That is so after every message while little waits for the same
request, and after a stretch of messages when much does, so that large requests cost little (`outbox` says how long it is).
What one send says itself (`Selection`) comes before any selector of the producer. One that says of a message that it `goes_anywhere` lets slow broker groups be avoided: it is offered the queues of the
others. A selector without that method has reasons for its choice, and keeps it while the group takes messages.
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

#: Returns an index into the queues, of any size, for the first key of a message ("" without one).
CustomChoice = Callable[[Sequence[MessageQueue], str], int]
#: The choice of one send: gets the queues that take messages, the message and the argument of the send; returns one of the queues.
MessageSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


class QueueSelector(Protocol):
    """Chooses an index into `queues`, which is never empty."""

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        """Return the index of the queue for the next message; `key` is its first key, or ""."""

    def on_flush(self) -> None:
        """A request was cut, what comes next travels with another one; or, when it is `sticky`, a stretch of messages is over."""


class StickyRoundRobin:
    """Takes the next queue after each stretch: of one message while little waits, longer under load."""

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
    """Every message goes to the next queue."""

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
    """Every message goes to a queue drawn by `below(n)`, which returns a number in [0, n)."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._below(len(queues))

    def on_flush(self) -> None:
        return

    def goes_anywhere(self, key: str) -> bool:
        return True


class HashByKey:
    """Messages with the same first key go to the same queue; without a key round robin."""

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
    """The user's own choice: a function of the queues and the first key that returns an index."""

    def __init__(self, choice: CustomChoice) -> None:
        self._choice = choice

    def choose(self, queues: Sequence[MessageQueue], key: str) -> int:
        return self._choice(queues, key) % len(queues)

    def on_flush(self) -> None:
        return


class Selection(NamedTuple):
    """What a send says of its queue."""

    selector: MessageSelector
    argument: Any = None

    def number(self, queues: Sequence[MessageQueue], message: Message) -> int:
        """Return the index of the queue. Raises: UsageError (the selector raised something, or returned none of the queues)."""
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
    """Return what a send says of its queue. Raises: UsageError."""
    if selector is None:
        if argument is not None:
            raise UsageError(
                "a send has an argument and no selector", "", "Give selector=, a function that gets it"
            )
        return None
    a_function("selector", selector)
    return Selection(selector, argument)


def selector_of(given: QueueSelector | CustomChoice) -> QueueSelector:
    """Return the selector that was given, or that of a function. Raises: UsageError."""
    methods = [getattr(given, name, None) for name in ("choose", "on_flush")]
    if not (callable(given) or all(map(callable, methods))):
        raise wrong(
            "selector", given, "a function of the queues and the first key, or have choose() and on_flush()"
        )
    return cast("QueueSelector", given) if hasattr(given, "choose") else CustomSelector(given)


def hash_to_index(text: str, count: int) -> int:
    """Return an index for a key: equal for all versions and runs."""
    return (hash_text(text) & _MASK64) % count


def queue_of_group(message_group: str, count: int) -> int:
    """Return the queue of a message group: the one that brokers choose for official clients, so that both mix.

    Jump consistent hash of Java's `String.hashCode`: more queues move as few groups as possible.
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

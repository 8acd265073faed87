"""What a user of the push consumer can choose, and what a listener may answer. Pure.

Owns: defaults and their reasons, the checks that need no broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..arguments import a_text, instance_of, whole
from ..errors import UsageError
from ..message import MessageView
from .owned_queue import QueueLimits

#: How messages may be shared out among the members of a group.
ALLOCATIONS: Final = ("", "sticky", "average", "circle", "consistent-hash", "same-zone")


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A listener's answer: these of its messages are to be tried again, the others are done.

    `messages` None: all of them. `delay_ms` None: the consumer's own pause, longer from time to time.
    In order, what follows the first of them waits and comes again too.
    """

    messages: Sequence[MessageView] | None = None
    delay_ms: int | None = None


#: Gets the messages of one batch, all of one queue. An exception means: try all of them again later.
Listener = Callable[[list[MessageView]], Awaitable[RetryLater | None]]
#: Gets a message that failed for the last time, and why (None: the listener said so without an exception).
ExhaustedHook = Callable[[MessageView, Exception | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How a push consumer works. Times are ms, sizes are bytes.

    * `batch_size`: messages that a listener gets at once, at most; all of one queue.
    * `concurrency`: listeners that run at once, at most.
    * `max_attempts`: how often a message is tried; 0: what the consumer group says, in order without end (to
      skip breaks the order). One that fails, alone, with its CorruptMessageError has had its last attempt: it
      can never be read.
    * `retry_ms`: pause before the second attempt; it doubles up to `longest_retry_ms`.
    * `commit_interval_ms`: how often progress is stored. What a crashed consumer had finished since comes
      again, so it is short: a commit is one small entry in the log for all queues of a broker group, and none
      while nothing happens. 0: a batch is committed before the next one takes its place, so that at most one
      batch for each running listener comes again.
    * `poll_ms`: how long a broker may hold a request while there is nothing.
    * `limits`: per queue; `max_bytes` bounds all of them together.
    * `allocation`: "" or sticky, average, circle, consistent-hash, same-zone; the consumer group's oldest
      member decides.
    * `zone`: where this consumer is, for same-zone.
    * `session_timeout_ms`: how long it may be out of touch before others get its queues.
    * `release_ms`: how long running listeners may take when a queue goes to another consumer.

    Values that cannot be raise UsageError.
    """

    batch_size: int = 32
    concurrency: int = 20
    max_attempts: int = 0
    retry_ms: int = 1_000
    longest_retry_ms: int = 60_000
    commit_interval_ms: int = 100
    poll_ms: int = 15_000
    limits: QueueLimits = field(default_factory=QueueLimits)
    max_bytes: int = 256 * 1024 * 1024
    allocation: str = ""
    zone: str = ""
    session_timeout_ms: int = 3_000
    release_ms: int = 1_000

    def __post_init__(self) -> None:
        """Raises: UsageError."""
        if self.allocation not in ALLOCATIONS:
            known = ", ".join(ALLOCATIONS[1:])
            raise UsageError(f"there is no allocation {self.allocation!r}", "", f"Choose one of {known}")
        a_text("zone", self.zone)
        if self.allocation == "same-zone" and not self.zone:
            raise UsageError("same-zone needs to know where this consumer is", "", "Give zone=")
        instance_of(QueueLimits, "QueueLimits(messages=, bytes=, span=)")("limits", self.limits)
        bounds = {
            "batch_size": (1, 100_000),
            "concurrency": (1, 10_000),
            "max_attempts": (0, 1 << 31),
            "longest_retry_ms": (1, 24 * 3_600_000),
            "commit_interval_ms": (0, 60_000),
            "poll_ms": (0, 30_000),
            "max_bytes": (1, 1 << 40),
            "session_timeout_ms": (500, 60_000),
            "release_ms": (1, 30_000),
        }
        for name, (least, most) in bounds.items():
            whole(least, most)(name, getattr(self, name))
        whole(0, self.longest_retry_ms)("retry_ms", self.retry_ms)

    def pause_ms(self, attempt: int) -> int:
        """Return how long to wait after the given attempt (they count from 1) failed. Only the first pause may be none."""
        factor = 1 << min(attempt - 1, 30)
        return min(self.retry_ms * factor or factor - 1, self.longest_retry_ms)

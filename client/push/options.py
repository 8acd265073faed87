"""Options of the push consumer, and the answer of a listener. Pure.

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

#: Strategies to distribute queues over the members of a consumer group.
ALLOCATIONS: Final = ("", "sticky", "average", "circle", "consistent-hash", "same-zone")


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Answer of a listener: retry these of its messages; the others are done.

    `messages` None: all of them. `delay_ms` None: the consumer's own pause, which grows with each attempt.
    With `orderly`, everything after the first of them waits and is delivered again, too.
    """

    messages: Sequence[MessageView] | None = None
    delay_ms: int | None = None


#: Gets the messages of one batch, all of one queue. An exception means: retry all of them later.
Listener = Callable[[list[MessageView]], Awaitable[RetryLater | None]]
#: Gets a message after its last failed attempt, with the error (None: the listener returned RetryLater).
ExhaustedHook = Callable[[MessageView, Exception | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Options of a push consumer. Times are ms, sizes are bytes.

    * `batch_size`: maximum of messages per listener call, all of one queue.
    * `concurrency`: maximum of concurrent listener calls.
    * `max_attempts`: attempts per message; 0: as the consumer group is configured, with `orderly` unlimited
      (skipping breaks the order). A single message that fails with its own CorruptMessageError gets no more
      attempts: it can never be read.
    * `retry_ms`: pause before the second attempt; doubles up to `longest_retry_ms`.
    * `commit_interval_ms`: how often progress is committed. After a crash, messages finished since the last
      commit are delivered again, so the interval is short. A commit is one small log entry for all queues of
      a broker group, and there is none without progress. 0: a batch is committed before the next one takes
      its place, so at most one batch per running listener is delivered again.
    * `poll_ms`: how long a broker may hold a request without messages.
    * `limits`: per queue; `max_bytes` bounds all queues together.
    * `allocation`: "" or sticky, average, circle, consistent-hash, same-zone; the oldest member of the
      consumer group decides.
    * `zone`: where this consumer is, for same-zone.
    * `session_timeout_ms`: how long it may be out of contact before others get its queues.
    * `release_ms`: how long running listeners may take when a queue goes to another consumer.

    Impossible values raise UsageError.
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
        """Check the values. Raises: UsageError."""
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
        """Return the pause after a failed attempt (counted from 1), ms. Only the first pause may be 0."""
        factor = 1 << min(attempt - 1, 30)
        return min(self.retry_ms * factor or factor - 1, self.longest_retry_ms)

"""Listener calls of a push consumer: the order of queues, concurrency, retries.

Owns: the workers, the list of queues with work, the pauses before retries, the counters of listener results.
Must not: fetch, commit.
Invariants: at most `concurrency` calls run. With `orderly`, at most one per queue, and failed messages come
before those that follow them.
A worker exists only while there is work: no task waits idle, and none is created per message. A listener
affects the state here only through its answer, not by modifying its list or its answer later.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from ..cluster.calls import being_cancelled
from ..consume.consume_trace import ConsumeTrace, now_ms
from ..errors import CorruptMessageError, LedgerMQError, UsageError
from ..message import MessageView
from .options import ExhaustedHook, Listener, PushOptions, RetryLater
from .owned_queue import Batch, OwnedQueue, Stage

logger = logging.getLogger(__name__)

_FOR_EVER: Final = 1 << 62
_LONGEST_DELAY_MS: Final = 24 * 3_600_000
#: The owner of the running listener. Tasks that a listener starts inherit it.
_running_for: ContextVar[ListenerCalls | None] = ContextVar("running_for", default=None)


class WrongListenerError(UsageError):
    """The given function cannot be a listener or a hook. Another call would not help."""


@dataclass(slots=True)
class Counters:
    """Counts of messages since the start."""

    consumed: int = 0  # finished by the listener
    failed: int = 0  # failed attempts
    skipped: int = 0  # given up after the last attempt
    filtered: int = 0  # rejected by the tag filter


class ListenerCalls:
    """Runs a listener over owned queues. Call `ready` for a queue with work."""

    def __init__(
        self,
        listener: Listener,
        options: PushOptions,
        *,
        orderly: bool,
        on_exhausted: ExhaustedHook | None,
        on_done: Callable[[OwnedQueue, bool], None],
        on_failed: Callable[[LedgerMQError], None],
        settle: Callable[[OwnedQueue], Awaitable[None]] | None = None,
        trace: ConsumeTrace | None = None,
    ) -> None:
        """`on_done(queue, moved)` is called after every batch; `moved`: there is more to commit.

        `on_failed(error)`: the listener will not be called again. `settle(queue)` is awaited after a batch,
        before its worker (with `orderly` also its queue) continues.
        """
        self.counters = Counters()
        self.max_attempts = options.max_attempts or _FOR_EVER  # attempts per message
        self._listener = listener
        self._options = options
        self._orderly = orderly
        self._on_exhausted = on_exhausted
        self._on_done = on_done
        self._on_failed = on_failed
        self._settle = settle
        self._trace = trace
        self._ready: deque[OwnedQueue] = deque()  # queues with work; each at most once
        self._workers: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._paused: set[str] = set()  # names of broker groups
        self._stopped = False

    def ready(self, owned: OwnedQueue) -> None:
        """The queue has work, or may continue."""
        if owned.listed or owned.busy or not owned.has_work or not self._may_start(owned):
            return
        owned.listed = True
        self._ready.append(owned)
        if len(self._workers) < self._options.concurrency and not self._stopped:
            self._workers.add(asyncio.create_task(self._work(), name="ledgermq-listener"))

    def pause(self, broker_group: str) -> None:
        """Start no more batches of this broker group until `resume`."""
        self._paused.add(broker_group)

    def resume(self, broker_group: str, queues: Iterable[OwnedQueue]) -> None:
        """Continue with these queues."""
        self._paused.discard(broker_group)
        for owned in queues:
            self.ready(owned)

    @property
    def is_calling(self) -> bool:
        """True in a listener and in tasks that it started: these must not wait for listeners to end."""
        return _running_for.get() is self

    async def close(self, timeout_s: float) -> None:
        """Start nothing more. Wait for running listeners; cancel them on timeout. Not for listeners."""
        self._stop()
        workers = set(self._workers)
        if workers:
            await asyncio.wait(workers, timeout=timeout_s)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _stop(self) -> None:
        self._stopped = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # --- workers --------------------------------------------------------------------------------------------

    def _may_start(self, owned: OwnedQueue) -> bool:
        return owned.stage is Stage.ACTIVE and owned.queue.broker_group not in self._paused

    async def _work(self) -> None:
        """Pass batches to the listener until there are none."""
        _running_for.set(self)
        batch: Batch | None = None
        try:
            while not self._stopped and (batch := self._next()) is not None:
                owned = batch.source
                suspended = await self._process(batch)
                if self._settle is not None:
                    await self._settle(owned)
                if not suspended:
                    owned.busy = False
                    self.ready(owned)
                await asyncio.sleep(0)  # a listener that never awaits would starve all other tasks
        except WrongListenerError as error:
            if batch is not None:
                batch.source.put_back(batch, batch.messages)
            self._stop()
            self._on_failed(error)
        except Exception as error:  # a defect: without this, the queue would silently stand still
            logger.exception("listener calls failed")
            self._stop()
            what = f"calling the listener failed: {_name(error)}"
            self._on_failed(LedgerMQError(what, "This is a defect of LedgerMQ", "Report it with the log"))
        finally:
            # In the same step in which it found no work: later work starts another worker.
            self._workers.discard(asyncio.current_task())

    def _next(self) -> Batch | None:
        while self._ready:
            owned = self._ready.popleft()
            owned.listed = False
            batch = owned.take(self._options.batch_size) if self._may_start(owned) else None
            if batch is None:
                continue
            owned.busy = self._orderly
            self.ready(owned)
            return batch
        return None

    async def _process(self, batch: Batch) -> bool:
        """Process one batch with the listener. Return whether the queue must wait for a retry."""
        owned, messages = batch.source, batch.messages
        failed: list[MessageView] = []
        error: Exception | None = None
        delay_ms: int | None = None
        if batch.attempt > self.max_attempts:  # only the hook is pending
            failed = messages
        elif messages:
            begin_ms = now_ms() if self._trace is not None else 0
            answer, error = await _outcome(self._listener, list(messages))
            if error is not None:
                failed = messages
            elif answer is not None:
                failed, delay_ms, error = self._judged(messages, answer)
            if self._trace is not None:
                self._trace.listened(messages, failed, error, batch.attempt, begin_ms)
            self.counters.consumed += len(messages) - len(failed)
            self.counters.failed += len(failed)
        if batch.attempt == 1:
            self.counters.filtered += sum(end - begin for begin, end in batch.spans) - len(messages)
        if failed and (batch.attempt >= self.max_attempts or _is_unreadable(failed, error)):
            failed, error = await self._give_up(batch, failed, error)
        if not failed:
            self._on_done(owned, owned.finish(batch))
            return False
        self._retry(batch, failed, error, delay_ms)
        return self._orderly

    def _judged(
        self, messages: list[MessageView], answer: object
    ) -> tuple[list[MessageView], int | None, Exception | None]:
        """Return the messages to retry, the delay, and the error of an invalid answer (retries all)."""
        try:
            return (*self._named(messages, answer), None)
        except UsageError as error:
            return messages, None, error

    def _named(self, messages: list[MessageView], answer: object) -> tuple[list[MessageView], int | None]:
        """Interpret an answer of the listener. Raises: UsageError (it is invalid)."""
        if not isinstance(answer, RetryLater):
            raise UsageError(f"the listener returned {answer!r}", "", "It must return None, or RetryLater")
        delay_ms, wanted = answer.delay_ms, answer.messages
        if delay_ms is not None and not _is_delay(delay_ms):
            raise UsageError(
                f"delay_ms of RetryLater is {delay_ms!r}",
                "",
                f"It must be 0 to {_LONGEST_DELAY_MS:,}, or None",
            )
        if wanted is None:
            return messages, delay_ms
        if isinstance(wanted, MessageView) or not isinstance(wanted, Iterable):
            what = f"messages of RetryLater is of type {type(wanted).__name__}"
            raise UsageError(what, "", "Give a list of the messages that are wanted again, or None for all")
        named = {id(message) for message in wanted}
        failed = [message for message in messages if id(message) in named]
        if len(failed) < len(named):
            what = "the listener wants messages again that it was not given in this call"
            raise UsageError(what, "", "Name messages of the list that it got")
        if self._orderly and failed:
            failed = messages[messages.index(failed[0]) :]
        return failed, delay_ms

    def _retry(
        self, batch: Batch, failed: list[MessageView], error: Exception | None, delay_ms: int | None
    ) -> None:
        """Schedule retries one by one: a message that always fails must not hold back the others."""
        owned = batch.source
        pause_ms = self._options.pause_ms(batch.attempt) if delay_ms is None else delay_ms
        logger.warning(
            "listener failed queue=%s offset=%d messages=%d attempt=%d again_in_ms=%d reason=%s",
            owned.queue, failed[0].queue_offset, len(failed), batch.attempt, pause_ms, _name(error),
            exc_info=error if batch.attempt == 1 else None,
        )  # fmt: skip
        before = owned.progress.position
        again = owned.put_back(batch, failed)
        if self._orderly:
            owned.try_again(again)
        self._on_done(owned, owned.progress.position > before)

        def go_on() -> None:
            self._timers.discard(timer)
            if self._orderly:
                owned.busy = False
            else:
                owned.try_again(again)
            self.ready(owned)

        timer = asyncio.get_running_loop().call_later(pause_ms / 1000, go_on)
        self._timers.add(timer)
        if self._stopped:
            timer.cancel()

    async def _give_up(
        self, batch: Batch, failed: list[MessageView], error: Exception | None
    ) -> tuple[list[MessageView], Exception | None]:
        """Pass messages to the hook, or log them. Return those that the hook refused, and its error."""
        left: list[MessageView] = []
        reason: Exception | None = None
        for number, message in enumerate(failed):
            if self._on_exhausted is None:
                logger.error(
                    "message is skipped after %d attempts queue=%s offset=%d id=%s reason=%s",
                    batch.attempt, message.queue, message.queue_offset, message.message_id, _name(error),
                )  # fmt: skip
                continue
            _, raised = await _outcome(self._on_exhausted, message, error)
            if raised is None:
                continue
            reason = raised
            if self._orderly:
                left = failed[number:]
                break
            left.append(message)
        self.counters.skipped += len(failed) - len(left)
        if self._trace is not None:
            kept = {id(message) for message in left}
            gone = (message for message in failed if id(message) not in kept)
            self._trace.skipped(gone, error, batch.attempt)
        return left, reason


async def _outcome(function: Callable[..., Awaitable[Any]], *arguments: Any) -> tuple[Any, Exception | None]:
    """Return the result of a user's function, or its exception. Raises: WrongListenerError."""
    try:
        return await _called(function, *arguments), None
    except (WrongListenerError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except asyncio.CancelledError:
        if being_cancelled():
            raise
        return None, RuntimeError("it was cancelled")
    except Exception as error:  # noqa: BLE001  # any exception means: not done
        return None, error
    except BaseException as error:  # noqa: BLE001
        return None, RuntimeError(f"{type(error).__name__}: {error}")


async def _called(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Call a user's asynchronous function. Raises: WrongListenerError, and what the function raises."""
    called: object = function(*arguments)
    if not inspect.isawaitable(called):
        what = f"{function!r} is no coroutine function: it returned {called!r}, which cannot be awaited"
        step = "Write async def, or use PushConsumer of ledgermq.client.sync, which takes ordinary functions"
        raise WrongListenerError(what, "The consumer stops, nothing of this call counts as done", step)
    answer = await called
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        what = f"the listener or hook returned {answer!r}, which is not awaited"
        step = "Await it, or use PushConsumer of ledgermq.client, whose listeners are coroutine functions"
        raise WrongListenerError(what, "The consumer stops, nothing of this call counts as done", step)
    return answer


def _is_unreadable(failed: list[MessageView], error: Exception | None) -> bool:
    """Tell whether a single message failed because it cannot be decoded: a retry cannot help."""
    return (
        isinstance(error, CorruptMessageError)
        and len(failed) == 1
        and (error.topic, error.queue_id, error.queue_offset)
        == (failed[0].topic, failed[0].queue_id, failed[0].queue_offset)
    )


def _is_delay(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _LONGEST_DELAY_MS


def _name(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else "the listener wants it later"

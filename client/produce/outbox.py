"""Outbox: unacknowledged messages of a producer. Chooses the queue of each new message, bounds their bytes.

Owns: the choice of the queue, the open sections, the bound on their bytes, the open runs, the messages of
topics without a route, and the tickets: the futures of the callers, which get their receipts in the end. A
cancelled future is skipped.
Must not: do I/O, know routes, interpret answers.

Most messages without labels join the open run of their topic (`join`). The run remembers where the last one
went, and is dropped whenever the next message may have to go elsewhere. All other messages take the slow path
(`put`); `put_stretch` takes many at once.

Messages that may go to any queue rotate over the queues one by one while requests are small. A queue gets
several messages in a row, an eighth of the waiting bytes, when that is more than one message. After a request
with more than 32 messages, the whole next request goes to one queue, and the one after it to the next queue:
spread over many queues they would cost half as much again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, overload

from ..arguments import check_name, check_text
from ..errors import BufferFullError, ClosedError, LedgerMQError, MessageTooLargeError, TopicNotFoundError
from ..message import Message, MessageQueue, SendReceipt
from .early_message import EarlyMessage, body_bytes, keep
from .encoding import check_labels
from .message_ids import process_ids
from .plain_run import FEW, PlainRun, Stretch
from .produce_stream import BrokerGroupConnection, now_ms
from .queue_selection import QueueSelector, Selection, queue_of_group
from .receipts import ReceiptRange, receipts
from .send_window import MAX_SECTION_COUNT, Section, SendWindow
from .sent_batch import SentBatch
from .topic_lanes import TopicLanes

logger = logging.getLogger(__name__)

_RECORD_ROOM: Final = 256  # bytes of a record besides body and labels, for the choice of a section
_NO_BOUND: Final = 1 << 62
#: After a request with more messages than this, the messages of the next one stay together.
_LARGE_REQUEST: Final = 32
#: Otherwise one queue gets this fraction of the waiting bytes in a row.
_STRETCHES: Final = 8


#: Called with the receipt, or with the error.
OnDone = Callable[[SendReceipt | None, Exception | None], object]


class Told:
    """Takes the place of a future, and calls a function with the result at once: no task is woken.

    One serves for all messages with the same function. What it raises is logged: it must not keep other
    messages from their results.
    """

    __slots__ = ("on_done",)

    def __init__(self, on_done: OnDone) -> None:
        self.on_done = on_done

    def done(self) -> bool:
        """Tell that nobody cancelled it."""
        return False

    def set_result(self, receipt: SendReceipt) -> None:
        self._tell(receipt, None)

    def set_exception(self, error: Exception) -> None:
        self._tell(None, error)

    def follow(self, early: asyncio.Future[SendReceipt]) -> None:
        """Pass on the result of a message that waited for its route."""
        error = ClosedError("producer") if early.cancelled() else early.exception()
        if error is None:
            self._tell(early.result(), None)
        else:
            self._tell(None, error if isinstance(error, Exception) else ClosedError("producer"))

    def _tell(self, receipt: SendReceipt | None, error: Exception | None) -> None:
        try:
            self.on_done(receipt, error)
        except Exception:  # the caller's function
            logger.exception("a function that gets the result of a message failed")


Waiter = asyncio.Future[SendReceipt] | Told


class OneMessage:
    """A single message whose id is known."""

    __slots__ = ("future", "message_id")

    def __init__(self, future: Waiter, message_id: str) -> None:
        self.future = future
        self.message_id = message_id

    def deliver(self, queue: MessageQueue, base_offset: int, duplicate: bool) -> int:
        if not self.future.done():
            self.future.set_result(SendReceipt(self.message_id, *queue, base_offset, duplicate))
        return 1

    def fail(self, error: Callable[[], Exception]) -> None:
        if not self.future.done():
            self.future.set_exception(error())


class EachOfRun:
    """The messages of a run, each with its own caller. `futures` has one per body of the run."""

    __slots__ = ("futures", "run")

    def __init__(self, run: PlainRun) -> None:
        self.run = run
        self.futures: list[Waiter] = []

    def deliver(self, queue: MessageQueue, base_offset: int, duplicate: bool) -> int:
        count = len(self.futures)
        made = receipts(self.run.message_ids(0, count), queue, base_offset, count, duplicate)
        for future, receipt in zip(self.futures, made, strict=True):
            if not future.done():
                future.set_result(receipt)
        return count

    def fail(self, error: Callable[[], Exception]) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error())


class WholeRun:
    """The messages of a run with one common caller."""

    __slots__ = ("count", "future", "run")

    def __init__(self, run: PlainRun, future: asyncio.Future[ReceiptRange]) -> None:
        self.run = run
        self.count = len(run.bodies)
        self.future = future

    def deliver(self, queue: MessageQueue, base_offset: int, duplicate: bool) -> int:
        if not self.future.done():
            made = ReceiptRange(self.run.message_ids, queue, base_offset, self.count, duplicate)
            self.future.set_result(made)
        return self.count

    def fail(self, error: Callable[[], Exception]) -> None:
        if not self.future.done():
            self.future.set_exception(error())


class OpenRun:
    """Fast path for the next plain message of a topic. The caller counts `left` (bytes) down.

    It ends when it is no longer its section's `run` (another record followed, or the section was closed),
    when the section is full, when a body of another kind or another millisecond comes, and when the outbox
    drops it.
    """

    __slots__ = (
        "bodies",
        "born_ns",
        "futures",
        "largest",
        "left",
        "run",
        "section",
        "smallest",
        "surplus",
        "until_ns",
        "window",
    )

    def __init__(
        self, window: SendWindow, section: Section, run: PlainRun, ticket: EachOfRun, largest: int, most: int
    ) -> None:
        """`largest`: largest body that the broker groups accept, bytes. `most`: bytes to put here at most."""
        self.window = window
        self.section = section
        self.run = run
        self.bodies = run.bodies
        self.futures = ticket.futures
        self.smallest = run.smallest
        self.largest = min(run.largest, largest)
        self.surplus = run.body_offset + 7  # plus body, rounded down to a multiple of 8: record size
        self.born_ns = run.born_ms * 1_000_000
        self.until_ns = self.born_ns + 1_000_000
        self.left = min(window.growth(section), most)


class Outbox:
    """Outbox of one producer. Bound to the event loop that runs at `start`."""

    def __init__(
        self, selector: QueueSelector, timeout_ms: int, max_bytes: int, *, avoid_slow: bool = False
    ) -> None:
        """`avoid_slow`: connections measure their calls, and messages go to the fastest broker groups."""
        self.topics: dict[str, TopicLanes] = {}  # topics whose route is known
        self.timeout_ms = timeout_ms
        self.closed = False  # accepts nothing any more
        self._selector = selector
        # Read from the class itself: a subclass may choose differently.
        self._sticky = self._opens_runs = bool(vars(type(selector)).get("sticky", False))
        self._large = False  # whether the last request had more than _LARGE_REQUEST messages
        self._stretch = 0  # bytes that the current queue of a sticky selector still gets
        self._turn = 0  # rotates over the queues that replace an avoided one
        self._choose = self._among_quickest if avoid_slow else self._among_all
        self._goes_anywhere: Callable[[str], bool] = getattr(selector, "goes_anywhere", _never)
        self._max_bytes = max_bytes
        self._bytes = 0  # of open and early messages
        self._ids = process_ids()
        self._runs: dict[str, OpenRun] = {}  # by topic
        self.failed_early = 0  # messages that failed before they had a lane
        self._early: dict[str, list[EarlyMessage]] = {}  # by topic; these topics have no lanes
        self._open: set[Section] = set()  # with messages neither acknowledged nor given up
        self._room = asyncio.Event()
        self._released = asyncio.Event()  # a section left `_open`
        self._loop: asyncio.AbstractEventLoop | None = None  # set by `start`, as is the next one
        self._new_future: Callable[[], asyncio.Future[SendReceipt]]

    def start(self) -> None:
        """Take the running loop."""
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future

    def new_future(self) -> asyncio.Future[Any]:
        """Return a future of the running loop."""
        return asyncio.get_running_loop().create_future()

    @property
    def is_empty(self) -> bool:
        return not (self._open or self._early)

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._max_bytes

    def use(self, topic: str, lanes: TopicLanes) -> None:
        """Use the current queues of a topic."""
        lanes.largest = min(connection.group.max_message_bytes for connection in lanes.connections)
        self.topics[topic] = lanes
        self._runs.pop(topic, None)
        self._put_early(topic)

    def forget(self, topic: str) -> None:
        """The topic does not exist any more: its next message fetches the route again."""
        self.topics.pop(topic, None)
        self._runs.pop(topic, None)

    def on_flush(self, count: int) -> None:
        """A request of `count` messages was cut. The next messages belong to another request."""
        if self._large or not self._sticky:  # otherwise it was told after each stretch
            self._selector.on_flush()
        self._large = count > _LARGE_REQUEST
        self._runs.clear()
        self._stretch = 0

    def end_runs(self, *, for_good: bool = False) -> None:
        """Send the next message of each topic through `put`. `for_good`: all messages from now on."""
        self._runs.clear()
        self._opens_runs = self._opens_runs and not for_good

    # --- adding ---------------------------------------------------------------------------------------------

    @overload
    def join(self, topic: str, body: object) -> asyncio.Future[SendReceipt] | None: ...

    @overload
    def join(self, topic: str, body: object, told: Told) -> Told | None: ...

    def join(self, topic: str, body: object, told: Told | None = None) -> Waiter | None:
        """Add a message without labels to the open run of its topic. None: the caller must use `put`.

        `told`: gets the result instead of a future.
        """
        run = self._runs.get(topic)
        if run is None or type(body) is not bytes or not run.smallest <= len(body) <= run.largest:
            return None
        size = run.surplus + len(body) & -8
        section = run.section
        if (
            size > run.left
            or section.run is not run.run
            or section.count >= MAX_SECTION_COUNT
            or not run.born_ns <= time.time_ns() < run.until_ns
            or self._bytes >= self._max_bytes
            or asyncio._get_running_loop() is not self._loop
        ):
            return None
        run.left -= size
        run.bodies.append(body)
        future = self._new_future() if told is None else told
        run.futures.append(future)
        run.window.grew(section, 1, size)
        self._bytes += size
        return future

    def put(self, message: Message, selection: Selection | None = None) -> asyncio.Future[SendReceipt]:
        """Add a message. Raises: BufferFullError, UsageError, TopicNotFoundError (no lanes), ClosedError."""
        future: asyncio.Future[SendReceipt] = self.new_future()
        self.put_for(future, message, selection)
        return future

    def put_for(self, future: Waiter, message: Message, selection: Selection | None = None) -> None:
        """Add a message whose result `future` gets. Raises: as `put`."""
        tag, keys, properties = message.tag, message.keys, message.properties
        message_group = message.message_group
        if self.is_full:
            raise BufferFullError(self._bytes, self._max_bytes)
        check_labels(tag, keys, {} if properties is None else properties, message_group)
        lanes = self._lanes(message.topic)
        data = message.body if type(message.body) is bytes else body_bytes(message.body)
        if message_group:
            check_text("message_group", message_group)
            lanes = lanes.ordered
            number = queue_of_group(message_group, len(lanes.lanes))
        elif selection is not None:
            shown = replace(message, body=data, properties={} if properties is None else properties)
            number = selection.number([lane.queue for lane in lanes.lanes], shown)
        else:
            number = self._choose(lanes, keys[0] if keys else "")
        section = self._section(lanes, number, len(data))
        born_ms = time.time_ns() // 1_000_000
        window = lanes.connections[number].window
        stays = bool(message_group or selection)  # in its queue
        if not (stays or tag or keys or properties) and lanes.encoder.is_plain(data):
            size = self._put_plain(lanes, window, section, data, born_ms, future)
        else:
            message_id = self._ids.next(born_ms)
            record = lanes.encoder.encode(
                section.size, data, message_id, born_ms, tag, keys, properties, message_group
            )
            size = len(record)
            window.added(section, record, OneMessage(future, message_id[1]))
            section.fifo |= stays
        if self._sticky and not stays:
            self._went_round(lanes.encoder.topic, size, window)
        self._took(lanes.connections[number], section, size)

    def _went_round(self, topic: str, size: int, window: SendWindow) -> None:
        """Move a sticky selector on after a message, if the stretch ended or an open run takes the rest."""
        self._stretch -= size
        if not self._large and (self._stretch <= 0 or topic in self._runs):
            self._selector.on_flush()
            self._stretch = window.waiting_bytes // _STRETCHES

    def _lanes(self, topic: str) -> TopicLanes:
        if type(topic) is not str:
            check_name("topic", topic)
        lanes = self.topics.get(topic)
        if lanes is None or self.closed:
            raise ClosedError("producer") if self.closed else TopicNotFoundError(topic)
        return lanes

    def _among_all(self, lanes: TopicLanes, key: str) -> int:
        """Return the index of the queue for the next message without a message group."""
        number = self._selector.choose(lanes.queues, key)
        avoid_until = lanes.connections[number].window.avoid_until
        if avoid_until and avoid_until > now_ms():
            return self._instead_of(number, lanes, key)
        return number

    def _instead_of(self, number: int, lanes: TopicLanes, key: str) -> int:
        """The chosen broker group takes no messages now: spread them over the queues of those that do."""
        choice = lanes.choice(lanes.best_broker_groups(now_ms()))
        if number in choice.numbers:
            return number
        if self._sticky:
            return choice.numbers[self._selector.choose(choice.queues, key)]
        self._turn += 1  # a second call would make a round-robin selector skip queues
        return choice.numbers[self._turn % len(choice.numbers)]

    def _among_quickest(self, lanes: TopicLanes, key: str) -> int:
        """As `_among_all`, but messages without a fixed queue go to fast, healthy broker groups."""
        if not self._goes_anywhere(key):
            return self._among_all(lanes, key)
        choice = lanes.choice(lanes.best_broker_groups(now_ms()))
        return choice.numbers[self._selector.choose(choice.queues, key)]

    def _section(self, lanes: TopicLanes, number: int, body_size: int) -> Section:
        """Return the section for the next message. Raises: MessageTooLargeError."""
        connection, now = lanes.connections[number], now_ms()
        if body_size > connection.group.max_message_bytes:
            raise MessageTooLargeError(body_size, connection.group.max_message_bytes)
        return connection.window.open_section(
            lanes.lanes[number], now, now + self.timeout_ms, body_size + _RECORD_ROOM
        )

    def _put_plain(
        self,
        lanes: TopicLanes,
        window: SendWindow,
        section: Section,
        body: bytes,
        born_ms: int,
        future: Waiter,
    ) -> int:
        """Add a message without labels to a section's last run, or to a new run. Return its record size."""
        run, encoder = section.run, lanes.encoder
        if run is not None and run.fits(encoder, len(body), born_ms):
            ticket: EachOfRun = section.tickets[-1]
            size = run.record_size(len(body))
            run.bodies.append(body)
            window.grew(section, 1, size)
        else:
            run = PlainRun(encoder, section.size, len(body), born_ms, self._ids)
            size = run.record_size(len(body))
            run.bodies.append(body)
            ticket = EachOfRun(run)
            window.added_run(section, run, size, ticket, grows=True)
        ticket.futures.append(future)
        if self._opens_runs:
            most = _NO_BOUND if self._large else window.waiting_bytes // _STRETCHES - size
            open_run = OpenRun(window, section, run, ticket, lanes.largest, most)
            self._runs.pop(encoder.topic, None)
            if open_run.left > 0:
                self._runs[encoder.topic] = open_run
        return size

    def _took(self, connection: BrokerGroupConnection, section: Section, size: int) -> None:
        """Account for an addition to a section."""
        self._bytes += size
        self._open.add(section)
        connection.wake()

    def takes_whole(self, part: Stretch) -> bool:
        """Tell whether `put_stretch` accepts this stretch; otherwise its messages are put one by one."""
        if not self._sticky or len(part.bodies) < (FEW if self._large else _LARGE_REQUEST):
            return False
        return part.largest <= self._lanes(part.topic).largest

    async def put_stretch(
        self, part: Stretch, batch: SentBatch, ready: Callable[[], Awaitable[None]]
    ) -> None:
        """Add all messages of a stretch: to `batch`, one future per run, with that run's receipts.

        `ready()` waits for room and for lanes. Raises: what `ready` raises, and ClosedError. An error applies
        to all messages that `batch` did not get.
        """
        at, size = 0, part.largest if part.smallest == part.largest else 0
        while at < len(part.bodies):
            await ready()
            at += self._put_some(part.topic, part.bodies[at:] if at else part.bodies, size, batch)

    def _put_some(self, topic: str, bodies: list[bytes], size: int, batch: SentBatch) -> int:
        """Put as many plain messages into one run as section and bound allow. Return how many.

        `size`: of all bodies; 0: they may differ.
        """
        lanes = self._lanes(topic)
        number = self._choose(lanes, "")
        connection, section = lanes.connections[number], self._section(lanes, number, len(bodies[0]))
        run = PlainRun(lanes.encoder, section.size, len(bodies[0]), time.time_ns() // 1_000_000, self._ids)
        ends = run.record_ends(bodies[: MAX_SECTION_COUNT - section.count], size)
        in_section = int(ends.searchsorted(connection.window.room(section), "right"))
        in_bound = 1 + int(ends.searchsorted(self._max_bytes - self._bytes))
        count = max(1, min(in_section, in_bound, len(ends)))
        run.bodies = bodies[:count]
        taken = int(ends[count - 1])
        future = self.new_future()
        batch.add(future, count)
        connection.window.added_run(section, run, taken, WholeRun(run, future), grows=False)
        if not self._large:
            self._selector.on_flush()  # `takes_whole` made sure that it is sticky
        self._took(connection, section, taken)
        return count

    # --- before the route -----------------------------------------------------------------------------------

    def put_early(self, message: Message, selection: Selection | None = None) -> asyncio.Future[SendReceipt]:
        """Add a message whose topic has no lanes yet. `use` sends it later; `no_route` fails it.

        Raises: BufferFullError, UsageError.
        """
        if self.closed:
            raise ClosedError("producer")
        if self.is_full:
            raise BufferFullError(self._bytes, self._max_bytes)
        early = EarlyMessage(*keep(message), self.new_future(), selection)
        self._early.setdefault(message.topic, []).append(early)
        self._bytes += early.size
        return early.future

    def _put_early(self, topic: str) -> None:
        """Put the early messages into their new lanes.

        The bound is lifted meanwhile: they were counted on arrival, and no later message may overtake them.
        """
        waiting = self._early.pop(topic, None)
        if waiting is None:
            return
        bound, self._max_bytes = self._max_bytes, _NO_BOUND
        try:
            for early in waiting:
                self._bytes -= early.size
                try:
                    early.follow(self.put(early.message, early.selection))
                except LedgerMQError as error:
                    self.failed_early += 1
                    early.fail(error)
        finally:
            self._max_bytes = bound
        self._tell_released()

    def no_route(self, topic: str, error: LedgerMQError) -> None:
        """The route of a topic cannot be had: fail the messages that wait for it."""
        for early in self._early.pop(topic, ()):
            self._bytes -= early.size
            self.failed_early += 1
            early.fail(error)
        self._tell_released()

    # --- waiting --------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until there is room for more messages."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until every message so far is acknowledged or has failed."""
        early = [each.future for waiting in self._early.values() for each in waiting]
        if early:
            await asyncio.wait(early)
        awaited = set(self._open)
        while awaited & self._open:
            self._released.clear()
            await self._released.wait()

    def release(self, section: Section) -> None:
        """The messages of a section were acknowledged or given up."""
        self._bytes -= section.body_size
        self._open.discard(section)
        self._tell_released()

    def _tell_released(self) -> None:
        if not self.is_full:
            self._room.set()
        self._released.set()


def _never(_key: str) -> bool:
    return False

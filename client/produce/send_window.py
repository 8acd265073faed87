"""Send window: what a producer has open towards one broker group. Cuts requests, applies answers.

Owns: the lanes (one per queue) with their sections in order, sequence numbers, requests in flight, resends.
Must not: read clocks, do I/O, know the content of records or futures (tickets are opaque).

Natural batching: a request is cut when nothing is in flight, or when enough bytes wait to justify one more
request in flight (`PIPELINE_BYTES`; `LARGE_BYTES` when many are). A lone message is sent at once; what
accumulates while requests are in flight is sent together.

Invariants:
    * sections of a lane are sent in order; its open sections (`unacked`) have rising sequences
    * a section that may have been stored is resent with the same bytes, or given up; never renumbered
    * a lane that must resend waits until none of its sections is in flight, then sends all open ones in order
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ledgermq.proto import route_pb2 as pb
from ledgermq.proto.entry import Buffer
from ledgermq.proto.log_pb2 import ProduceResponse
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, put_section_header

from ..message import MessageQueue
from .plain_run import PlainRun
from .retry_policy import Action, Decision, decide

#: A section is closed at this size, bytes. It is far below the largest entry.
MAX_SECTION_BYTES: Final = 512 * 1024
#: Messages per section. Bounds the work that one answer causes.
MAX_SECTION_COUNT: Final = 4096
#: Bytes of sections per request; a request has at least one section.
MAX_REQUEST_BYTES: Final = 1024 * 1024
#: While requests are in flight, one more is cut only when this many bytes wait.
PIPELINE_BYTES: Final = 128 * 1024
MAX_IN_FLIGHT: Final = 8
#: From so many in flight on, only large requests are cut: small ones gain more by waiting for one another.
MANY_IN_FLIGHT: Final = 4
LARGE_BYTES: Final = MAX_REQUEST_BYTES // 2
_FOR_EVER: Final = 1 << 62
#: A section accepts messages for this long, ms. The deadline of its first message counts for all of them.
_OPEN_MS: Final = 500


@dataclass(slots=True, eq=False)
class Section:
    """Records of one queue that are sent together. A section is open until it is acknowledged or given up.

    `tickets` are the callers' handles: one per record, or one per run.
    """

    lane: Lane
    deadline: int  # ms of the caller's clock: the deadline of its first message
    opened: int  # ms of the caller's clock
    fifo: bool = False  # must stay in its queue: has a message group, or its send chose the queue
    records: list[Buffer | PlainRun] = field(default_factory=list)  # once numbered: only the body of `data`
    run: PlainRun | None = None  # the last one of `records`, while it may still grow
    tickets: list[Any] = field(default_factory=list)
    count: int = 0  # records
    size: int = SECTION_HEADER_SIZE  # header and records, bytes
    closed: bool = False  # takes no more messages
    data: bytearray | None = None  # header and body once numbered; resent unchanged
    sequence: int = -1  # sequence of the first record; -1: not numbered
    session: int = 0  # producer id under which it is numbered
    attempts: int = 0  # sends so far
    in_flight: bool = False  # part of a request without an answer
    may_be_stored: bool = False  # invariant: while set, neither renumbered nor moved
    given_up: bool = False  # its callers have their error; it waits for the answer of its request
    refused: str = ""  # text of the broker's latest refusal

    @property
    def body_size(self) -> int:
        """Size of its records, bytes."""
        return self.size - SECTION_HEADER_SIZE

    def close(self) -> None:
        """Accept no more messages."""
        self.closed, self.run = True, None


@dataclass(slots=True, eq=False)
class Lane:
    """One queue of the broker group, from this producer's side."""

    queue: MessageQueue
    topic_id: int  # of this incarnation of the topic
    session: int  # producer id; changes when the numbering starts anew
    next_sequence: int = 0  # sequence of the next record to be numbered in this session
    waiting: deque[Section] = field(default_factory=deque)  # not numbered; the last one takes messages
    unacked: deque[Section] = field(default_factory=deque)  # numbered and open, in order of their sequences
    resend: bool = False  # send the unacked sections again, once none is in flight
    renumber: bool = False  # a sequence is missing for good: the numbering must start anew

    @property
    def in_flight(self) -> bool:
        return any(section.in_flight for section in self.unacked)


def forget_number(section: Section) -> None:
    """Prepare a section that is certainly not stored for a new sequence."""
    section.data = None
    section.sequence = -1


@dataclass(frozen=True, slots=True)
class Request:
    """A request to be written to the stream."""

    request_id: int
    sections: tuple[Section, ...]

    @property
    def count(self) -> int:
        """Number of its messages."""
        return sum(section.count for section in self.sections)

    @property
    def parts(self) -> list[bytearray]:
        """Its encoded sections."""
        return [section.data for section in self.sections if section.data is not None]


@dataclass(frozen=True, slots=True)
class Delivered:
    """A stored section. Its records have consecutive offsets from `base_offset`."""

    section: Section
    base_offset: int
    duplicate: bool  # the broker had stored it before


@dataclass(frozen=True, slots=True)
class Failed:
    """A section that was given up. `refusal` None: its deadline passed, or the lane ended."""

    section: Section
    refusal: pb.Refusal | None
    sent: bool  # it may have been stored


@dataclass(slots=True)
class Outcome:
    """Consequences of one answer. The caller first resolves the tickets, then acts on the rest."""

    delivered: list[Delivered] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    pause_ms: int = 0  # send nothing to the broker group for this long
    find_leader: bool = False  # leave this stream: its node does not lead
    leader_hint: str = ""  # address, "" if unknown
    refresh_topics: set[str] = field(default_factory=set)  # topics whose routes are outdated
    try_other_broker_group: bool = False  # refused sections may move to another broker group


class SendWindow:
    """All lanes of one producer to one broker group."""

    def __init__(self, new_session: Callable[[], int]) -> None:
        """`new_session` returns a producer id that was never used."""
        self._new_session = new_session
        self._max_request, self._max_section = MAX_REQUEST_BYTES, MAX_SECTION_BYTES
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._old_lanes: list[Lane] = []  # of topics created again, while old sections are open
        self._ready: dict[int, Lane] = {}  # lanes with something to send, by id(), in arrival order
        self._in_flight: deque[Request] = deque()
        self._next_request_id = 1
        self._waiting_bytes = 0  # of the sections in `waiting` of all lanes
        self.paused_until = 0
        # Until then new messages go to another broker group: this one asked for a pause, or no node answers
        self.avoid_until = 0

    def limit(self, max_request_bytes: int) -> None:
        """Respect the request limit of the broker group (small segments). One message still fits."""
        self._max_request = min(MAX_REQUEST_BYTES, max_request_bytes)
        self._max_section = min(MAX_SECTION_BYTES, max_request_bytes // 2)

    # --- adding ---------------------------------------------------------------------------------------------

    def lane(self, queue: MessageQueue, topic_id: int) -> Lane:
        """Return the lane of a queue. A new topic id (the topic was created again) gets a new lane."""
        key = (queue.topic, queue.queue_id)
        lane = self._lanes.get(key)
        if lane is None or lane.topic_id != topic_id:
            fresh = Lane(queue, topic_id, self._new_session())
            if lane is not None:
                self._take_over(lane, fresh)
                self._old_lanes = [each for each in (*self._old_lanes, lane) if each.unacked]
            lane = self._lanes[key] = fresh
        return lane

    def _all_lanes(self) -> list[Lane]:
        return [*self._lanes.values(), *self._old_lanes]

    def _take_over(self, old: Lane, fresh: Lane) -> None:
        """Move what is certainly not stored in the old incarnation of the topic to `fresh`."""
        for section in list(old.unacked):
            if not (section.in_flight or section.may_be_stored):
                old.unacked.remove(section)
                forget_number(section)
                fresh.waiting.append(section)
                self._waiting_bytes += section.body_size
        fresh.waiting.extend(old.waiting)
        old.waiting.clear()
        for section in fresh.waiting:
            section.lane = fresh
            section.close()
        if fresh.waiting:
            self._ready[id(fresh)] = fresh

    def open_section(self, lane: Lane, now: int, deadline: int, room: int) -> Section:
        """Return the section for the next record of at most `room` bytes. Call `added` with the record."""
        if lane.waiting:
            section = lane.waiting[-1]
            full = section.size + room > self._max_section or section.count >= MAX_SECTION_COUNT
            if not (full or section.closed) and now - section.opened < _OPEN_MS:
                return section
        return Section(lane, deadline, now)

    def added(self, section: Section, record: bytes, ticket: object) -> None:
        """Add an encoded record and its ticket. The record's section distance must be `section.size`."""
        section.records.append(record)
        section.run = None
        section.tickets.append(ticket)
        self._entered(section)
        self.grew(section, 1, len(record))

    def added_run(self, section: Section, run: PlainRun, size: int, ticket: object, *, grows: bool) -> None:
        """Add a new run and its one ticket. `size`: bytes of its records; its distance is `section.size`."""
        section.records.append(run)
        section.run = run if grows else None
        section.tickets.append(ticket)
        self._entered(section)
        self.grew(section, len(run.bodies), size)

    def _entered(self, section: Section) -> None:
        """Put a new section into its lane with its first record, not before: encoding can fail."""
        if not section.count:
            section.lane.waiting.append(section)
            self._mark_ready(section.lane)

    def grew(self, section: Section, count: int, size: int) -> None:
        """`count` messages, whose records have `size` bytes in all, joined the last run of the section."""
        section.count += count
        section.size += size
        self._waiting_bytes += size

    def room(self, section: Section) -> int:
        """Return the bytes that a section can still take."""
        return self._max_section - section.size

    def growth(self, section: Section) -> int:
        """Return the bytes that can be added without another check.

        Ends where the section is full, or where enough bytes wait for one more request in flight.
        """
        missing = PIPELINE_BYTES - self._waiting_bytes
        return min(self.room(section), missing) if missing > 0 else self.room(section)

    # --- sending --------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
        return len(self._in_flight)

    @property
    def idle(self) -> bool:
        """True if no message is open."""
        return not any(lane.waiting or lane.unacked for lane in self._all_lanes())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages that are not part of a request yet."""
        return self._waiting_bytes

    @property
    def open_messages(self) -> int:
        """Number of messages that are not decided."""
        lanes = self._all_lanes()
        return sum(section.count for lane in lanes for section in (*lane.waiting, *lane.unacked))

    @property
    def wants_to_send(self) -> bool:
        """True if a request could be cut as far as the limits allow."""
        return bool(self._ready)

    def next_request(self, now: int) -> Request | None:
        """Cut the next request, or return None when nothing may be sent now."""
        if not self._ready or now < self.paused_until or len(self._in_flight) >= MAX_IN_FLIGHT:
            return None
        if self._in_flight and self._waiting_bytes < self._worth_a_request():
            return None
        sections = tuple(self._collect())
        if not sections:
            return None
        request = Request(self._next_request_id, sections)
        self._next_request_id += 1
        for section in sections:
            section.in_flight = True
            section.attempts += 1
        self._in_flight.append(request)
        return request

    def _worth_a_request(self) -> int:
        """Return the waiting bytes from which on one more request is cut beside those in flight."""
        return PIPELINE_BYTES if len(self._in_flight) < MANY_IN_FLIGHT else LARGE_BYTES

    def _collect(self) -> Iterator[Section]:
        """Take sections, lane by lane, up to the size of a request."""
        room = self._max_request
        for lane in list(self._ready.values()):
            taken_all = True
            for section in self._sendable(lane):
                if section.size > room and room < self._max_request:
                    taken_all = False
                    break
                self._number(lane, section)
                room -= section.size
                yield section
            if not taken_all:
                return
            if not lane.waiting or lane.resend:
                self._ready.pop(id(lane), None)
            if room <= 0:
                return

    def _sendable(self, lane: Lane) -> Iterator[Section]:
        """Yield the sections that the lane may send now, in order, and mark them as taken."""
        if lane.resend or lane.renumber:
            if lane.in_flight:
                return
            yield from self._again(lane)
            if lane.resend or lane.renumber:
                return
        while lane.waiting:
            section = lane.waiting[0]
            yield section
            lane.waiting.popleft()
            lane.unacked.append(section)
            self._waiting_bytes -= section.body_size

    def _again(self, lane: Lane) -> Iterator[Section]:
        """Yield the open sections of a lane with none in flight."""
        unsure = [section for section in lane.unacked if section.may_be_stored]
        if lane.renumber and unsure:
            # Their bytes must not change. The broker decides each of them; then the rest is numbered anew.
            yield from unsure
            return
        if lane.renumber:
            lane.session, lane.next_sequence, lane.renumber = self._new_session(), 0, False
            for section in lane.unacked:
                forget_number(section)
        yield from list(lane.unacked)
        lane.resend = False

    def _number(self, lane: Lane, section: Section) -> None:
        """Assign sequence and final bytes to a section that has none."""
        if section.data is not None:
            return
        section.close()
        section.sequence, section.session = lane.next_sequence, lane.session
        lane.next_sequence += section.count
        data = bytearray(section.size)
        body = memoryview(data)[SECTION_HEADER_SIZE:]
        at = 0
        for part in section.records:
            if isinstance(part, PlainRun):
                at += part.write(body[at:])
            else:
                body[at : at + len(part)] = part
                at += len(part)
        assert at == len(body), "the size counts every record"
        put_section_header(
            data,
            SectionKind.RECORDS,
            section.count,
            topic_id=lane.topic_id,
            queue_id=lane.queue.queue_id,
            producer_id=section.session,
            base_sequence=section.sequence,
        )
        section.data, section.records = data, [body]

    # --- answers --------------------------------------------------------------------------------------------

    def on_response(self, response: ProduceResponse, now: int) -> Outcome:
        """Apply the answer to the oldest request. Raises: ValueError (it does not match that request)."""
        if not self._in_flight or self._in_flight[0].request_id != response.request_id:
            raise ValueError(f"answer to request {response.request_id}, which is not the oldest in flight")
        request = self._in_flight.popleft()
        outcome = Outcome()
        whole = response.refusal if response.HasField("refusal") else None
        if whole is None and len(response.results) != len(request.sections):
            raise ValueError(f"{len(response.results)} results for {len(request.sections)} sections")
        for number, section in enumerate(request.sections):
            section.in_flight = False
            result = None if whole is not None else response.results[number]
            if result is not None and not result.HasField("refusal"):
                self._on_stored(section, result.base_queue_offset, result.duplicate, outcome)
            else:
                self._on_refused(section, whole or result.refusal, outcome)  # type: ignore[union-attr]
        if outcome.pause_ms:
            self.paused_until = max(self.paused_until, now + outcome.pause_ms)
            self.avoid_until = max(self.avoid_until, self.paused_until)
        return outcome

    def _on_stored(self, section: Section, base_offset: int, duplicate: bool, outcome: Outcome) -> None:
        lane = section.lane
        _remove(lane.unacked, section)
        if not section.given_up:
            outcome.delivered.append(Delivered(section, base_offset, duplicate))
        self._mark_ready(lane)

    def _on_refused(self, section: Section, refusal: pb.Refusal, outcome: Outcome) -> None:
        lane = section.lane
        if section.given_up:
            self._give_up(section)
            return
        first = bool(lane.unacked) and lane.unacked[0] is section
        decision = decide(refusal, section.attempts, first_of_queue=first, fifo=section.fifo)
        section.may_be_stored = not decision.definite or (section.may_be_stored and decision.unseen)
        section.refused = refusal.message
        if decision.action is Action.FAIL:
            self._give_up(section)
            outcome.failed.append(Failed(section, refusal, sent=False))
            return
        newest = self._lanes.get((lane.queue.topic, lane.queue.queue_id), lane)
        if newest is not lane and not section.may_be_stored:
            _remove(lane.unacked, section)  # the topic was created again while this was in flight
            forget_number(section)
            self.adopt(section, newest)
            self._mark_ready(lane)
            return
        lane.resend = True
        lane.renumber |= decision.action is Action.NEW_SESSION
        self._mark_ready(lane)
        _note(outcome, decision, refusal, lane.queue.topic)

    def _give_up(self, section: Section) -> None:
        """Drop a section. A sequence that it had is now missing: the lane starts a new numbering."""
        lane = section.lane
        _remove(lane.unacked, section)
        if section.data is not None:
            lane.renumber = lane.resend = True
        self._mark_ready(lane)

    def _mark_ready(self, lane: Lane) -> None:
        if lane.waiting or (lane.unacked and lane.resend):
            self._ready[id(lane)] = lane
        elif not lane.unacked:
            lane.resend = False

    def on_disconnect(self, *, sent: bool = True) -> None:
        """The stream broke: everything in flight may be stored, and is resent with the same bytes.

        `sent` False: the connection was never established, so nothing of this stream is stored.
        """
        for request in self._in_flight:
            for section in request.sections:
                section.in_flight = False
                section.may_be_stored |= sent
                if section.given_up:
                    self._give_up(section)
                section.lane.resend = True
                self._mark_ready(section.lane)
        self._in_flight.clear()

    # --- other broker groups ------------------------------------------------------------------------------

    def release(self, topic: str | None = None) -> list[Section]:
        """Take out the sections (of one topic or all) that may move: not stored for certain, and not FIFO."""
        released = self._take_out(lambda each: not each.fifo and topic in (None, each.lane.queue.topic))
        for section in released:
            forget_number(section)
        return released

    def give_up(self, topic: str) -> list[Failed]:
        """Give up every section of a topic that is certainly not stored."""
        gone = self._take_out(lambda each: each.lane.queue.topic == topic)
        return [Failed(section, None, sent=False) for section in gone]

    def _take_out(self, wanted: Callable[[Section], bool]) -> list[Section]:
        """Remove the `wanted` ones of the sections that are certainly not stored."""
        taken = []
        for lane in self._all_lanes():
            for section in [
                each for each in (*lane.unacked, *lane.waiting) if _is_free(each) and wanted(each)
            ]:
                if section in lane.waiting:
                    lane.waiting.remove(section)
                    section.close()
                    self._waiting_bytes -= section.body_size
                else:
                    self._give_up(section)
                taken.append(section)
        return taken

    def adopt(self, section: Section, lane: Lane) -> None:
        """Take a section that another broker group's window released. Its records are unchanged."""
        section.lane = lane
        lane.waiting.append(section)
        self._waiting_bytes += section.body_size
        self._mark_ready(lane)

    # --- the end --------------------------------------------------------------------------------------------

    def give_up_all(self) -> list[Failed]:
        """Give up everything, because no more answers will come. What is in flight may be stored."""
        self.on_disconnect()
        return self.expire(_FOR_EVER)

    def expire(self, now: int) -> list[Failed]:
        """Give up the sections whose deadline has passed."""
        failed = []
        for lane in self._all_lanes():
            while lane.waiting and lane.waiting[0].deadline <= now:
                section = lane.waiting.popleft()
                section.close()
                self._waiting_bytes -= section.body_size
                failed.append(Failed(section, None, sent=False))
            for section in [each for each in lane.unacked if each.deadline <= now and not each.given_up]:
                failed.append(Failed(section, None, sent=section.in_flight or section.may_be_stored))
                section.given_up = True
                if not section.in_flight:
                    self._give_up(section)
        return failed


def _remove(sections: deque[Section], section: Section) -> None:
    """Remove a section by identity. It is usually the first."""
    if sections and sections[0] is section:
        sections.popleft()
    elif section in sections:
        sections.remove(section)


def _is_free(section: Section) -> bool:
    return not (section.in_flight or section.may_be_stored or section.given_up)


def _note(outcome: Outcome, decision: Decision, refusal: pb.Refusal, topic: str) -> None:
    """Add the consequences of a refusal for the whole broker group."""
    outcome.pause_ms = max(outcome.pause_ms, decision.pause_ms)
    outcome.try_other_broker_group |= decision.try_other_broker_group
    if decision.action is Action.FIND_LEADER:
        outcome.find_leader = True
        outcome.leader_hint = refusal.leader_address or outcome.leader_hint
    if decision.action is Action.REFRESH_ROUTE or decision.refresh_route:
        outcome.refresh_topics.add(topic)

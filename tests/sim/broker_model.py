"""Model of the broker's state machine: dicts, lists and loops, with its own parser.

It reads each committed entry once, directly by the layouts in the docs of `proto/record.py` and
`broker/state/commands.py`, and states the expected messages, positions, leases and command results. It shares
no code with `broker/`. It also checks the log itself: offsets without gaps, each message once, producers'
sequences in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .broker_member_model import MemberModel
from .invariants import demand

_SECTION = struct.Struct("<BBHIqIIIIQIIQQ")
_COMMAND = struct.Struct("<HHI")
_POSITION = struct.Struct("<IIq")
_OWNED = struct.Struct("<IIqQ")
_LEASE = struct.Struct("<IqQ")
_CHANGE = struct.Struct("<IqQq")
_PARK = struct.Struct("<IqQI")
PARKING = 3  # lowest feature level at which messages are parked
PARKED_MAX = 1024
_RECORDS = 1  # entry kind
NEVER = (1 << 63) - 1


@dataclass(slots=True)
class Message:
    """One stored message."""

    value: bytes  # message id
    place: int  # physical offset
    size: int
    tag: int
    stamp: int  # log time, ms


@dataclass(slots=True)
class Queue:
    begin: int = 0
    messages: list[Message] = field(default_factory=list)

    @property
    def end(self) -> int:
        return len(self.messages)


@dataclass(slots=True)
class Lease:
    lease_id: int
    deadline: int
    session: int
    attempt: int
    acked: bool = False
    released: bool = False  # it was parked, and has not been granted since

    @property
    def flags(self) -> int:
        return self.acked + 2 * self.released


@dataclass(slots=True)
class Position:
    """Position of one consumer group in one queue."""

    position: int
    leases: dict[int, Lease] = field(default_factory=dict)
    lost: int = 0
    #: offset: time, attempts, reason, entry
    parked: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)

    @property
    def committed(self) -> int:
        return min(self.leases, default=self.position)


@dataclass(slots=True)
class Topic:
    topic_id: int
    name: str
    queues: int
    retention: int


@dataclass(slots=True)
class ConsumerGroup:
    group_id: int
    name: str
    start: int
    fifo: bool
    attempts: int


@dataclass(slots=True)
class Stream:
    epoch: int
    next_sequence: int
    stamp: int


class BrokerModel:
    """State after entry `index`. `results`: results of the last entry's commands, in order."""

    def __init__(self) -> None:
        self.index = 0
        self.stamp = 0
        self.topics: dict[int, Topic] = {}
        self.groups: dict[int, ConsumerGroup] = {}
        self.queues: dict[tuple[int, int], Queue] = {}
        self.positions: dict[tuple[int, int, int], Position] = {}
        self.streams: dict[tuple[int, int, int], Stream] = {}
        self.members = MemberModel()
        self.mode = 0  # of the broker group
        self.level = 0  # feature level
        self.next_topic = self.next_group = 1
        self.places: dict[bytes, list[tuple[int, int, int]]] = {}  # message id -> where it is stored
        self.stored_at: dict[bytes, int] = {}  # log time
        # deduplication may have forgotten everything before this log time
        self.ids_before = self.streams_before = -1
        #: (lease, consumer group, topic, queue, offset) -> attempt
        self.granted: dict[tuple[int, int, int, int, int], int] = {}
        self.reset_at: dict[tuple[int, int, int], int] = {}  # entry that last moved a position by a reset
        self.results: list[Any] = []

    def apply(self, index: int, stamp: int, place: int, kind: int, sections: int, payload: bytes) -> None:
        """Apply the next committed entry. `place`: physical offset of its header. Raises: InvariantError."""
        demand(index == self.index + 1, f"model: entry {index} behind {self.index}")
        demand(stamp >= self.stamp, f"D21: log time of entry {index} goes back")
        self.index, self.stamp, self.results = index, stamp, []
        if kind != _RECORDS:
            return
        at = 0
        for _ in range(sections):
            what, _, queue, topic, base, count, size, _, _, producer, epoch, _, sequence, _ = (
                _SECTION.unpack_from(payload, at)
            )
            at += _SECTION.size
            body = payload[at : at + size]
            if what == 1:
                self._records((topic, queue), base, count, body, place + 64 + at, producer, epoch, sequence)
            else:
                for number, version, raw in _commands(body, count):
                    self.results.append(_COMMANDS[number](self, raw, version))
            at += size
        demand(at == len(payload), f"entry {index}: bytes behind the last section")

    # --- messages -------------------------------------------------------------------------------------------
    def _records(
        self, key: tuple[int, int], base: int, count: int, body: bytes, place: int,
        producer: int, epoch: int, sequence: int,
    ) -> None:  # fmt: skip
        demand(not self.mode, f"B closed: entry {self.index} has records, the group takes none")
        queue = self.queues.get(key)
        if queue is None:
            demand(0 < key[0] < self.next_topic, f"B: entry {self.index} has records of topic id {key[0]}")
            return  # deleted meanwhile
        demand(base == queue.end, f"B offsets: queue {key} ends at {queue.end}, entry {self.index} at {base}")
        if producer:
            self._sequence((producer, *key), epoch, sequence, count)
        at = 0
        for _ in range(count):
            size, tag, value = (
                int.from_bytes(body[at : at + 4], "little"),
                int.from_bytes(body[at + 32 : at + 40], "little", signed=True),
                body[at + 48 : at + 64],
            )
            self._store_once(value, (*key, queue.end), by_id=not producer)
            queue.messages.append(Message(value, place + at, size, tag, self.stamp))
            at += size
        demand(at == len(body), f"entry {self.index}: records do not fill their section")

    def _sequence(self, key: tuple[int, int, int], epoch: int, sequence: int, count: int) -> None:
        """Check that a producer's batches come in order, unless their stream may be forgotten."""
        known = self.streams.get(key)
        if known is not None and epoch == known.epoch:
            wanted = known.next_sequence
        else:
            demand(known is None or epoch > known.epoch, f"B1: an old epoch at entry {self.index}")
            wanted = 0
        # Otherwise it may have been forgotten while this batch was in flight.
        if known is not None or self.streams_before < 0:
            demand(
                sequence == wanted, f"B1 sequence: entry {self.index}: {sequence} of {key}, due is {wanted}"
            )
        self.streams[key] = Stream(epoch, sequence + count, self.stamp)

    def _store_once(self, value: bytes, place: tuple[int, int, int], *, by_id: bool) -> None:
        before = self.places.setdefault(value, [])
        limit = self.ids_before if by_id else self.streams_before
        forgotten = value in self.stored_at and self.stored_at[value] < limit
        demand(not before or forgotten, f"B1 stored twice: {value.hex()} at {before} and at {place}")
        before.append(place)
        self.stored_at[value] = self.stamp

    # --- topics and consumer groups -------------------------------------------------------------------------
    def _create_topic(self, raw: bytes, version: int) -> tuple[int, bool]:
        count, _, retention = (
            (*struct.unpack_from("<IB", raw), 0) if version == 1 else struct.unpack_from("<IBq", raw)
        )
        name = _text(raw, 5 if version == 1 else 13)
        for topic in self.topics.values():
            if topic.name == name:
                return topic.topic_id, False
        topic = Topic(self.next_topic, name, count, retention)
        self.next_topic += 1
        self.topics[topic.topic_id] = topic
        for queue in range(count):
            self.queues[topic.topic_id, queue] = Queue()
        return topic.topic_id, True

    def _delete_topic(self, raw: bytes, _version: int) -> tuple[int, bool]:
        (number,) = struct.unpack("<I", raw)
        topic = self.topics.pop(number, None)
        for queue in [key for key in self.queues if key[0] == number]:
            del self.queues[queue]
        for key in [key for key in self.streams if key[1] == number]:
            del self.streams[key]
        for key in [key for key in self.positions if key[1] == number]:
            del self.positions[key]
        self.members.remove_topic(number)
        return (number if topic else 0), topic is not None

    def _create_group(self, raw: bytes, _version: int) -> tuple[int, bool]:
        start, attempts, fifo = struct.unpack_from("<qIB", raw)
        name = _text(raw, 13)
        for consumer_group in self.groups.values():
            if consumer_group.name == name:
                return consumer_group.group_id, False
        consumer_group = ConsumerGroup(self.next_group, name, start, bool(fifo), attempts)
        self.next_group += 1
        self.groups[consumer_group.group_id] = consumer_group
        return consumer_group.group_id, True

    def _delete_group(self, raw: bytes, _version: int) -> tuple[int, bool]:
        (number,) = struct.unpack("<I", raw)
        consumer_group = self.groups.pop(number, None)
        for key in [key for key in self.positions if key[0] == number]:
            del self.positions[key]
        self.members.groups.pop(number, None)
        return (number if consumer_group else 0), consumer_group is not None

    def _set_retention(self, raw: bytes, _version: int) -> tuple[int, bool]:
        number, keep = struct.unpack("<Iq", raw)
        topic = self.topics.get(number)
        changed = topic is not None and topic.retention != keep
        if topic is not None:
            topic.retention = keep
        return (number if topic else 0), changed

    # --- consumption ----------------------------------------------------------------------------------------
    def _join(self, raw: bytes, _version: int) -> tuple[int, bool]:
        (consumer_group,) = struct.unpack_from("<I", raw)
        return self.members.join(raw, self.index, self.stamp) if consumer_group in self.groups else (0, False)

    def _leave(self, raw: bytes, _version: int) -> list[bool]:
        return self.members.leave(raw, self.index)

    def _assign(self, raw: bytes, _version: int) -> list[bool]:
        return self.members.assign(raw, self.index, self.queues)

    def _commit(self, raw: bytes, version: int) -> list[bool]:
        consumer_group, _, reset = struct.unpack_from("<IIB", raw)
        accepted, renewed = [], []
        for topic, queue, offset, *epochs in (_POSITION if version == 1 else _OWNED).iter_unpack(raw[9:]):
            stored, found = (
                self.queues.get((topic, queue)),
                self.positions.get((consumer_group, topic, queue)),
            )
            epoch, name = (epochs or [0])[0], self.topics[topic].name if topic in self.topics else ""
            good = stored is not None and consumer_group in self.groups
            good = good and self.members.may_commit(
                consumer_group, (topic, queue), name, epoch, reset=bool(reset)
            )
            accepted.append(good)
            if stored is None or not good:
                continue
            if reset and not epoch:
                renewed.append((topic, queue))
            offset = min(max(offset, stored.begin), stored.end)
            if found is None or reset:
                stay = {} if found is None else {at: each for at, each in found.parked.items() if at < offset}
                self.positions[consumer_group, topic, queue] = Position(offset, parked=stay)
                self.reset_at[consumer_group, topic, queue] = self.index
            elif offset > found.committed:
                found.leases = {at: lease for at, lease in found.leases.items() if at >= offset}
                found.position, found.lost = max(found.position, offset), 0
                _finish_first(found)
        for key in renewed:
            self.members.renew(consumer_group, key, self.index)
        return accepted

    def _set_positions(self, raw: bytes, _version: int) -> list[bool]:
        (consumer_group,) = struct.unpack_from("<I", raw)
        accepted = []
        for topic, queue, offset in _POSITION.iter_unpack(raw[9:]):
            stored = self.queues.get((topic, queue))
            accepted.append(stored is not None and consumer_group in self.groups)
            if stored is not None and consumer_group in self.groups:
                bounded = min(max(offset, stored.begin), stored.end)
                self.positions.setdefault((consumer_group, topic, queue), Position(bounded))
        return accepted

    def _grant(self, raw: bytes, _version: int) -> dict[int, list[tuple[int, int]]]:
        """Return, per queue, the granted offsets with their attempts."""
        consumer_group, topic, invisible, session, count = struct.unpack_from("<IIqQI", raw)
        deadline = NEVER if session else self.stamp + invisible
        at, granted = 28, {}
        for _ in range(count):
            queue, start, end, number = struct.unpack_from("<IqqI", raw, at)
            offsets = struct.unpack_from(f"<{number}q", raw, at + 24)
            at += 24 + 8 * number
            found = self.positions.get((consumer_group, topic, queue))
            if found is None:
                continue
            given = self._grant_in(found, start, end, offsets, deadline, session)
            for offset, attempt in given:
                self._judge_attempt((consumer_group, topic, queue, offset), attempt, found)
                self.granted[self.index, consumer_group, topic, queue, offset] = attempt
            if given:
                granted[queue] = given
                found.lost = 0
        return granted

    def _grant_in(
        self, found: Position, start: int, end: int, offsets: tuple[int, ...], deadline: int, session: int
    ) -> list[tuple[int, int]]:
        given, fits = [], start == found.position
        for offset in offsets:
            lease = found.leases.get(offset)
            if offset < start:
                if lease is None or not (lease.acked or lease.deadline <= self.stamp):
                    continue
                attempt = lease.attempt + 1
            elif fits:
                attempt = 1
            else:
                continue
            found.leases[offset] = Lease(self.index, deadline, session, attempt)
            given.append((offset, attempt))
        if fits:
            found.position = max(found.position, end)
        return given

    def _judge_attempt(self, place: tuple[int, int, int, int], attempt: int, found: Position) -> None:
        """Check that no message is granted too often (in order, those after a failing one may be)."""
        consumer_group = self.groups[place[0]]
        full = len(found.parked) == PARKED_MAX
        demand(
            self.level < PARKING or consumer_group.fifo or full or attempt <= consumer_group.attempts,
            f"B attempts: {place} is granted as attempt {attempt} of {consumer_group.attempts}",
        )

    def _park(self, raw: bytes, _version: int) -> list[bool]:
        demand(self.level >= PARKING, f"B level: entry {self.index} parks, the level is {self.level}")
        verdicts = []
        touched: list[tuple[Position, int, int, int]] = []
        room: dict[int, int] = {}
        group_id, topic, reason = struct.unpack_from("<IIB", raw)
        consumer_group = self.groups.get(group_id)
        for queue, offset, lease_id, attempts in _PARK.iter_unpack(raw[9:]):
            found = self.positions.get((group_id, topic, queue))
            lease = None if found is None or consumer_group is None else found.leases.get(offset)
            good = lease is not None and lease.lease_id == lease_id and not lease.acked
            if good and found is not None and lease is not None and consumer_group is not None:
                left = room.setdefault(queue, PARKED_MAX - len(found.parked))
                room[queue] = left - 1
                good = left > 0
                demand(
                    reason != 1
                    or (lease.attempt >= consumer_group.attempts and lease.deadline <= self.stamp),
                    f"B attempts: entry {self.index} parks {(topic, queue, offset)}, attempt {lease.attempt} "
                    f"of {consumer_group.attempts}, which ends at {lease.deadline}, now is {self.stamp}",
                )
                if good:
                    touched.append((found, offset, max(lease.attempt, attempts), reason))
            verdicts.append(good)
        for found, offset, attempts, why in touched:
            if found.leases.pop(offset, None) is not None:
                found.parked[offset] = (self.stamp, attempts, why, self.index)
        for found in {id(each[0]): each[0] for each in touched}.values():
            if consumer_group is not None and consumer_group.fifo:
                for lease in found.leases.values():
                    lease.attempt = 0
                _finish_first(found)
        return verdicts

    def _release_parked(self, raw: bytes, _version: int) -> list[bool]:
        (consumer_group,) = struct.unpack_from("<I", raw)
        rows = list(_POSITION.iter_unpack(raw[9:]))
        verdicts = []
        for topic, queue, offset in rows:
            found = self.positions.get((consumer_group, topic, queue))
            verdicts.append(found is not None and offset in found.parked)
        for topic, queue, offset in rows:
            found = self.positions.get((consumer_group, topic, queue))
            if found is not None and found.parked.pop(offset, None) is not None:
                found.leases[offset] = Lease(0, self.stamp, 0, 0, released=True)
        return verdicts

    def _rows(
        self, raw: bytes, layout: struct.Struct
    ) -> Iterator[tuple[Position | None, Any, bool, tuple[int, ...]]]:
        consumer_group, topic, flag = struct.unpack_from("<IIB", raw)
        for row in layout.iter_unpack(raw[9:]):
            found = self.positions.get((consumer_group, topic, row[0]))
            yield found, (consumer_group, topic), bool(flag), row

    def _ack(self, raw: bytes, _version: int) -> list[bool]:
        """Judge each row by the state before the command."""
        verdicts, touched = [], []
        for found, (consumer_group, _), force, (_, offset, lease_id) in self._rows(raw, _LEASE):
            if found is None or consumer_group not in self.groups:
                verdicts.append(False)
                continue
            lease = found.leases.get(offset)
            if lease is None:
                verdicts.append(0 <= offset < found.position and offset not in found.parked)
                continue
            good = lease.lease_id == lease_id and (force or lease.deadline > self.stamp or lease.acked)
            verdicts.append(good)
            if good:
                touched.append((found, lease, self.groups[consumer_group].fifo))
        for _, lease, _ in touched:
            lease.acked = True
        for found, _, fifo in touched:
            for offset in sorted(found.leases):
                if found.leases[offset].acked:
                    del found.leases[offset]
                elif fifo and not found.leases[offset].released:
                    break
        return verdicts

    def _change(self, raw: bytes, _version: int) -> list[bool]:
        verdicts, touched = [], []
        for found, (consumer_group, topic), _, (queue, offset, lease_id, invisible) in self._rows(
            raw, _CHANGE
        ):
            lease = None if found is None else found.leases.get(offset)
            good = (
                lease is not None
                and lease.lease_id == lease_id
                and lease.deadline > self.stamp
                and not lease.acked
            )
            verdicts.append(good)
            if good and lease is not None:
                touched.append((lease, self.stamp + invisible))
                self.granted[self.index, consumer_group, topic, queue, offset] = lease.attempt
        for lease, deadline in touched:
            lease.deadline, lease.lease_id, lease.session = deadline, self.index, 0
        return verdicts

    def _release(self, raw: bytes, _version: int) -> list[bool]:
        verdicts, touched = [], {}
        for found, _, _, (_, offset, lease_id) in self._rows(raw, _LEASE):
            lease = None if found is None else found.leases.get(offset)
            good = lease is not None and lease.lease_id == lease_id and not lease.acked
            verdicts.append(good)
            if good and lease is not None:
                touched[id(lease)] = lease
        for lease in touched.values():
            lease.deadline = min(lease.deadline, self.stamp)
            lease.session = lease.lease_id = 0
            lease.attempt = max(lease.attempt - 1, 0)
        return verdicts

    def _session_lost(self, raw: bytes, _version: int) -> None:
        session, grace = struct.unpack("<Qq", raw)
        for found in self.positions.values():
            for lease in found.leases.values():
                if lease.session == session:
                    lease.deadline, lease.session = self.stamp + grace, 0

    # --- the rest -------------------------------------------------------------------------------------------
    def _evict(self, raw: bytes, _version: int) -> None:
        ids, streams = struct.unpack("<qq", raw)
        self.ids_before, self.streams_before = max(ids, self.ids_before), max(streams, self.streams_before)
        for key in [key for key, stream in self.streams.items() if stream.stamp < streams]:
            del self.streams[key]

    def _log_start(self, raw: bytes, _version: int) -> None:
        self._trim(raw[16:], 1)

    def _trim(self, raw: bytes, _version: int) -> None:
        for topic, number, begin in _POSITION.iter_unpack(raw):
            queue = self.queues.get((topic, number))
            if queue is None or begin <= queue.begin:
                continue
            queue.begin = min(begin, queue.end)
            for key, found in self.positions.items():
                if key[1:] != (topic, number):
                    continue
                for at in [at for at in found.parked if at < queue.begin]:
                    del found.parked[at]
                    found.lost += 1
                if found.committed < queue.begin:
                    gone = [at for at in found.leases if at < queue.begin]
                    found.lost += sum(not found.leases[at].acked for at in gone)
                    found.lost += max(queue.begin - found.position, 0)
                    found.position = max(found.position, queue.begin)
                    for at in gone:
                        del found.leases[at]
                    _finish_first(found)

    def _feature_level(self, raw: bytes, _version: int) -> None:
        (level,) = struct.unpack("<I", raw)
        self.level = max(self.level, level)

    def _set_mode(self, raw: bytes, version: int) -> tuple[int, bool]:
        demand(version == 1, "model: no client here removes a broker group on a condition")
        changed, self.mode = raw[0] != self.mode, raw[0]
        return 0, changed


def _finish_first(found: Position) -> None:
    """Complete acknowledged messages that no open one precedes."""
    for at in sorted(found.leases):
        if found.leases[at].acked:
            del found.leases[at]
        elif not found.leases[at].released:
            return


def _commands(body: bytes, count: int) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    for _ in range(count):
        number, version, size = _COMMAND.unpack_from(body, at)
        yield number, version, body[at + 8 : at + 8 + size]
        at += (8 + size + 7) // 8 * 8


def _text(raw: bytes, at: int) -> str:
    (size,) = struct.unpack_from("<H", raw, at)
    return raw[at + 2 : at + 2 + size].decode()


_COMMANDS: dict[int, Callable[[BrokerModel, bytes, int], Any]] = {
    1: BrokerModel._create_topic, 2: BrokerModel._delete_topic, 3: BrokerModel._create_group,
    4: BrokerModel._delete_group, 5: BrokerModel._commit, 6: BrokerModel._set_positions,
    7: BrokerModel._grant,
    8: BrokerModel._ack, 9: BrokerModel._change, 10: BrokerModel._release, 11: BrokerModel._session_lost,
    12: BrokerModel._evict, 13: BrokerModel._log_start, 14: BrokerModel._feature_level,
    15: BrokerModel._set_retention, 16: BrokerModel._trim, 17: BrokerModel._join, 18: BrokerModel._leave,
    19: BrokerModel._assign, 20: BrokerModel._set_mode, 21: BrokerModel._park,
    22: BrokerModel._release_parked,
}  # fmt: skip

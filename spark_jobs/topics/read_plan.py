"""Read plan: which messages a batch or micro-batch reads, and how they are cut into tasks. Pure.

Owns: the comparison of positions with what the brokers have (lost, made again, new), admission control, and
the tasks. Must not: do I/O.

Invariant: every message between two positions is in exactly one task, and a task reads a queue in order.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledgermq.client.cluster.topic_route import BrokerGroup
from ledgermq.client.consume.bulk_reader import QueueRange
from ledgermq.proto.group_ids import are_related

from ..errors import SparkJobError
from .source_options import EARLIEST, LATEST, ReadBoundary
from .stream_offsets import PartPositions, Positions

logger = logging.getLogger(__name__)

#: Ranges with fewer messages share a task: a task takes Spark some 50 ms by itself.
SMALL_RANGE: Final = 20_000
_NEXT: Final = "With failOnDataLoss=false the query goes on with what is there"


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the brokers know it now. Offsets are queue offsets."""

    topic: str
    broker_group: BrokerGroup
    topic_id: int
    queue_id: int
    begin: int
    end: int
    time_offset: int | None = None  # first offset at or after the time that was asked for

    @property
    def part(self) -> tuple[str, str]:
        return self.topic, self.broker_group.name

    def range(self, start: int, end: int) -> QueueRange:
        return QueueRange(self.topic, self.broker_group, self.topic_id, self.queue_id, start, end)


def _is_same(state: QueueState, part: PartPositions) -> bool:
    """Tell whether positions were taken from this incarnation of topic and broker group."""
    group = state.broker_group
    return part.topic_id == state.topic_id and are_related(
        group.group_id, group.former_group_ids, part.group_id, ()
    )


def lose(text: str, *, fail: bool) -> None:
    """Messages that were wanted are gone. Raises: SparkJobError, if `fail`; otherwise log it."""
    if fail:
        raise SparkJobError(f"{text}. {_NEXT}")
    logger.warning("%s", text)


# --- positions ----------------------------------------------------------------------------------------------


def resolve(boundary: ReadBoundary, states: Sequence[QueueState], option: str) -> Positions:
    """Return the position in every queue. Raises: SparkJobError (offsets of a queue that does not exist)."""
    given = {
        (topic, group, queue): offset
        for topic, groups in (boundary.offsets or {}).items()
        for group, queues in groups.items()
        for queue, offset in queues.items()
    }
    found: dict[tuple[str, str], dict[int, int]] = {}
    parts: Positions = {}
    for state in states:
        offset = given.pop((*state.part, state.queue_id), None)
        if boundary.timestamp and state.time_offset is not None:
            at = state.time_offset
        elif offset == EARLIEST or (offset is None and boundary.word == "earliest"):
            at = state.begin
        elif offset is None or offset == LATEST:
            at = state.end
        else:
            at = offset
            if at > state.end:
                raise SparkJobError(
                    f'{option} names offset {at:,} of topic "{state.topic}" broker group '
                    f'"{state.broker_group.name}" queue {state.queue_id}, which ends at {state.end:,}'
                )
        queues = found.setdefault(state.part, {})
        queues[state.queue_id] = at
        parts[state.part] = PartPositions(state.broker_group.group_id, state.topic_id, queues)
    if given:
        topic, group, queue = next(iter(given))
        known = sorted({f"{name}/{each.queue_id}" for each in states for name in [each.broker_group.name]
                        if each.topic == topic})  # fmt: skip
        raise SparkJobError(
            f'{option} names queue {queue} of broker group "{group}" in topic "{topic}", which is not read. '
            f"Queues of that topic: {', '.join(known) or 'none'}"
        )
    return parts


def advance(
    start: Positions, states: Sequence[QueueState], most: int | None, cap: Positions | None, *, fail: bool
) -> Positions:
    """Return the end of the next micro-batch: at most `most` messages behind `start`, never above `cap`.

    Every queue gets its share in proportion to what it has, at least one message, so that none starves.
    A queue that no answer is about keeps its position. Raises: SparkJobError (see `check_same`).
    """
    check_same(start, states, fail=fail)
    ahead: list[tuple[QueueState, int, int]] = []
    for state in states:
        first, end = _first_of(start, state), state.end
        if cap is not None:
            part = cap.get(state.part)
            if part is None or not _is_same(state, part):
                continue  # it came after the query's end was fixed
            end = min(end, part.queues.get(state.queue_id, 0))
        if end > first:
            ahead.append((state, first, end))
    shares = fair_shares([end - first for _, first, end in ahead], most)
    found = {key: replace(part, queues=dict(part.queues)) for key, part in start.items()}
    for (state, first, _), share in zip(ahead, shares, strict=True):
        if share == 0:
            continue
        part = found.get(state.part)
        if part is None or not _is_same(state, part):
            part = PartPositions(state.broker_group.group_id, state.topic_id, {})
        found[state.part] = replace(part, queues={**part.queues, state.queue_id: first + share})
    return found


def fair_shares(backlogs: Sequence[int], most: int | None) -> list[int]:
    """Divide `most` messages among queues with these backlogs. The sum is min(most, sum of backlogs)."""
    total = sum(backlogs)
    if most is None or total <= most:
        return list(backlogs)
    shares = [min(backlog, max(1, backlog * most // total)) for backlog in backlogs]
    rest = most - sum(shares)
    for number, backlog in sorted(enumerate(backlogs), key=lambda each: -each[1]):
        change = min(rest, backlog - shares[number]) if rest > 0 else max(rest, -shares[number])
        shares[number] += change
        rest -= change
    return shares


def _first_of(start: Positions, state: QueueState) -> int:
    """Return where reading a queue begins: a new one, or one that was made again, at its first offset."""
    part = start.get(state.part)
    known = part is not None and _is_same(state, part) and state.queue_id in part.queues
    return part.queues[state.queue_id] if known and part is not None else state.begin


def check_same(start: Positions, states: Iterable[QueueState], *, fail: bool) -> None:
    """Notice topics and broker groups that were made again since. Raises: SparkJobError, if `fail`."""
    for key, state in {each.part: each for each in states}.items():
        part = start.get(key)
        if part is None or _is_same(state, part):
            continue
        topic, group = key
        if part.topic_id != state.topic_id:
            what = f'topic "{topic}" was deleted and created again in broker group "{group}"'
        else:
            what = f'broker group "{group}" is not the one that the query has read: it was made again'
        lose(
            f"{what} (or the checkpoint is of another cluster). Its offsets mean other messages now",
            fail=fail,
        )


# --- tasks --------------------------------------------------------------------------------------------------


def ranges_between(
    start: Positions, end: Positions, states: Sequence[QueueState], *, fail: bool
) -> list[QueueRange]:
    """Return what lies between two positions. Raises: SparkJobError (retention took some of it, if `fail`).

    Queues in `end` that no answer is about are an error: their messages would be left out silently.
    """
    check_same(end, states, fail=fail)
    by_queue = {(*state.part, state.queue_id): state for state in states}
    ranges = []
    for key, part in sorted(end.items()):
        before = start.get(key)
        is_same = before is not None and (before.group_id, before.topic_id) == (part.group_id, part.topic_id)
        for queue_id, last in sorted(part.queues.items()):
            # None: new, or made again. What it had before this moment is not lost to anyone.
            first = before.queues.get(queue_id) if before is not None and is_same else None
            if first is not None and first >= last:
                continue
            state = by_queue.get((*key, queue_id))
            if state is None:
                lose(
                    f'queue {queue_id} of topic "{key[0]}" in broker group "{key[1]}" is gone, with the '
                    f"messages before offset {last:,}",
                    fail=fail,
                )
                continue
            if not _is_same(state, part):
                continue  # `check_same` has said so
            if first is None:
                first = state.begin
            if first < state.begin:
                lose(
                    f'offsets {first:,} to {min(state.begin, last):,} of topic "{state.topic}" broker group '
                    f'"{state.broker_group.name}" queue {queue_id} were deleted by retention before they '
                    "were read",
                    fail=fail,
                )
                first = state.begin
            if first < last:
                ranges.append(state.range(first, last))
    return ranges


def tasks_of(ranges: Sequence[QueueRange], min_partitions: int) -> list[tuple[QueueRange, ...]]:
    """Cut ranges into tasks: at least `min_partitions` if there are as many messages; else few small ones."""
    total = sum(each.end - each.start for each in ranges)
    if min_partitions > len(ranges) and total:
        pieces = fair_shares([each.end - each.start for each in ranges], min(min_partitions, total))
        return [(piece,) for each, count in zip(ranges, pieces, strict=True) for piece in _cut(each, count)]
    if min_partitions:
        return [(each,) for each in ranges]
    tasks: list[tuple[QueueRange, ...]] = [(each,) for each in ranges if each.end - each.start >= SMALL_RANGE]
    packed: list[QueueRange] = []
    room = SMALL_RANGE
    for each in ranges:
        size = each.end - each.start
        if size >= SMALL_RANGE:
            continue
        if size > room:
            tasks.append(tuple(packed))
            packed, room = [], SMALL_RANGE
        packed.append(each)
        room -= size
    return [*tasks, tuple(packed)] if packed else tasks


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    size = whole.end - whole.start
    count = max(1, min(count, size))
    edges = [whole.start + size * number // count for number in range(count + 1)]
    return [replace(whole, start=lo, end=hi) for lo, hi in itertools.pairwise(edges)]


def narrowed(
    ranges: Iterable[QueueRange], lows: Mapping[tuple[str, str, int], int],
    highs: Mapping[tuple[str, str, int], int],
) -> list[QueueRange]:  # fmt: skip
    """Return the ranges cut to [low, high) of their queue, by (topic, broker group, queue id)."""
    found = []
    for each in ranges:
        key = (each.topic, each.broker_group.name, each.queue_id)
        start, end = max(each.start, lows.get(key, each.start)), min(each.end, highs.get(key, each.end))
        if start < end:
            found.append(replace(each, start=start, end=end))
    return found

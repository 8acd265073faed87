"""Lake verification: every range of a lake against its manifest and against the brokers. On the driver.

Owns: what is compared, and the result by queue. Must not: read files or messages (`broker_ranges.py` does).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ledgermq.client.errors import TopicNotFoundError

from ..topics.read_plan import QueueState
from ..topics.source_options import parse_source_options
from ..topics.topic_look import TopicLook
from .broker_ranges import FileComparison
from .lake_folder import LakeFolder
from .lake_state import LakeFile, LakeRange, LakeState, QueueKey, ranges_by_queue
from .resume_point import check_same


@dataclass(slots=True)
class QueueVerdict:
    """What was found about one queue. Numbers are messages."""

    topic: str
    broker_group: str
    queue: int
    first: int  # offsets of the lake
    end: int
    archived: int = 0
    compared: int = 0  # with the brokers
    gone: int = 0  # archived, and deleted at the brokers since
    gaps: int = 0  # deleted at the brokers before they were archived
    differences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class LakeVerdict:
    """Result of a verification."""

    queues: list[QueueVerdict]
    files: int
    damaged_files: list[str]  # sentences

    @property
    def differences(self) -> list[str]:
        return [*self.damaged_files, *(each for queue in self.queues for each in queue.differences)]

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"same": not self.differences, **asdict(self)}


def verify(
    lake: LakeFolder,
    topics: Sequence[str],
    nameservers: str,
    run: Callable[[Sequence[FileComparison]], Sequence[dict[str, Any]]],
) -> LakeVerdict:
    """Verify these topics of a lake. `run` carries out comparisons, somewhere.

    Raises: SparkJobError (the brokers' topics are others), LedgerMQError.
    """
    states = [state for topic in topics for state in _states_of(topic, nameservers)]
    check_same(lake.state, states)
    files = [file for topic in topics for file in lake.state.files_of(topic)]
    at_brokers = {(*state.part, state.queue_id): state for state in states}
    tasks = []
    for file in files:
        asked = [at_brokers.get((file.topic, each.broker_group, each.queue)) for each in file.ranges]
        left = tuple(map(_left, file.ranges, asked))
        tasks.append(FileComparison(nameservers, str(lake.where(file)), file, left))
    return _verdict(lake.state, files, run(tasks))


def _states_of(topic: str, nameservers: str) -> list[QueueState]:
    options = parse_source_options({"nameservers": nameservers, "subscribe": topic}, streaming=True)
    try:
        with TopicLook(options) as look:
            return look.states(complete=True)
    except TopicNotFoundError:
        return []  # nothing is left to compare with


def _left(each: LakeRange, state: QueueState | None) -> Any:
    """Return the part of a range that the brokers have; None: nothing."""
    if state is None or state.begin >= each.end:
        return None
    return state.range(max(each.first, state.begin), each.end)


def _verdict(state: LakeState, files: Sequence[LakeFile], answers: Iterable[dict[str, Any]]) -> LakeVerdict:
    found = _coverage(state, files)
    damaged = []
    for file, answer in zip(files, answers, strict=True):
        if answer["problem"]:
            damaged.append(f"{file.path}: {answer['problem']}")
        for each, compared in zip(file.ranges, answer["ranges"], strict=True):
            queue = found[file.topic, each.broker_group, each.queue]
            queue.compared += compared["compared"]
            if not answer["problem"]:
                queue.gone += each.count - compared["compared"]
            if compared["problem"]:
                queue.differences.append(f"{file.path}: {compared['problem']}")
    return LakeVerdict([found[key] for key in sorted(found)], len(files), damaged)


def _coverage(state: LakeState, files: Sequence[LakeFile]) -> dict[QueueKey, QueueVerdict]:
    """Check that the ranges of every queue follow one another, but for gaps that are known."""
    found = {}
    gaps: dict[QueueKey, set[tuple[int, int]]] = {}
    for gap in state.gaps:
        gaps.setdefault((gap.topic, gap.broker_group, gap.queue), set()).add((gap.first, gap.end))
    for key, ranges in ranges_by_queue(files).items():
        topic, group, number = key
        known = gaps.get(key, set())
        queue = found[key] = QueueVerdict(topic, group, number, ranges[0].first, ranges[-1].end)
        at = ranges[0].first
        for each in ranges:
            queue.archived += each.count
            if each.first > at and (at, each.first) in known:
                queue.gaps += each.first - at
            elif each.first != at:
                what = "are in no file of the lake" if each.first > at else "are twice in the lake"
                low, high = sorted((at, each.first))
                queue.differences.append(f"offsets {low:,} to {high:,} of queue {group}/{number} {what}")
            at = max(at, each.end)
        part = state.positions.get((topic, group))
        end = part.queues.get(number, at) if part is not None else at
        if end != at:
            where = f"queue {group}/{number}"
            queue.differences.append(f"offsets {at:,} to {end:,} of {where} are in no file of the lake")
    return found

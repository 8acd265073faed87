"""Lake state: which files a lake holds, with which messages, as its log of commits says. Pure.

    log/00000000000000000000.json             commit 0, which made the lake
    log/00000000000000000001.json             a batch: files with their ranges, and positions behind it
    log/00000000000000000002.json             a compaction: a file for many
    log/00000000000000000064.snapshot.json    everything up to commit 64

Each is a line of JSON, and a line with its CRC-32C.

Owns: that format, what a commit may change, and which messages a batch has to bring. Must not: do I/O.

Invariant: every message is in at most one file of a state. Between the first and the last archived offset of
a queue, every offset is in a file or in a gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from crc32c import crc32c

from ..errors import SparkJobError
from ..topics.stream_offsets import Positions, decode_positions, encode_positions

VERSION: Final = 1
#: Bytes of the largest manifest that is read.
MAX_MANIFEST: Final = 256 << 20
KINDS: Final = ("begin", "batch", "compaction", "snapshot")
_HOURS_MAX: Final = 253_402_300_799 // 3600  # the year 9999

#: (topic, broker group, queue id)
QueueKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class LakeRange:
    """Messages [first, end) of one queue, which follow one another in one file. Offsets are queue offsets."""

    broker_group: str
    queue: int
    first: int
    end: int
    checksum: int  # sum of `row_checksums`

    def __post_init__(self) -> None:
        if not (0 <= self.first < self.end < 1 << 63 and 0 <= self.checksum < 1 << 64 and self.queue >= 0):
            raise ValueError(self)

    @property
    def count(self) -> int:
        return self.end - self.first

    def follows(self, other: LakeRange) -> bool:
        return (self.broker_group, self.queue, self.first) == (other.broker_group, other.queue, other.end)

    def joined(self, following: LakeRange) -> LakeRange:
        """Return both as one."""
        return replace(
            self, end=following.end, checksum=(self.checksum + following.checksum) & ((1 << 64) - 1)
        )


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A Parquet file with messages of one topic and hour. Paths are relative to the lake."""

    path: str  # "" until a commit gives it one
    topic: str
    hour: int  # of the store time, since 1970, UTC
    size: int  # bytes
    ranges: tuple[LakeRange, ...]  # in the order of the file
    staged: str = ""  # where it is until the commit is settled

    @property
    def count(self) -> int:
        return sum(each.count for each in self.ranges)

    @property
    def folder(self) -> str:
        """The partition, as Hive and Spark write it."""
        day, hour = str(np.datetime64(self.hour, "h")).split("T")
        return f"topic={quote(self.topic, safe='')}/day={day}/hour={hour}"


@dataclass(frozen=True, slots=True)
class LakeGap:
    """Messages [first, end) that the brokers had deleted before they were archived."""

    topic: str
    broker_group: str
    queue: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """One change of a lake; it is complete or it has not happened."""

    number: int
    kind: str
    lake: str  # id of the lake
    time_ms: int
    positions: Positions = field(default_factory=dict)  # next offset of every queue, behind this commit
    add: tuple[LakeFile, ...] = ()
    remove: tuple[str, ...] = ()  # paths
    gaps: tuple[LakeGap, ...] = ()


class LakeState:
    """What a lake holds behind its last commit."""

    def __init__(self, begin: LakeCommit) -> None:
        """`begin`: the first commit, or a snapshot. Raises: SparkJobError."""
        self.lake = begin.lake
        self.number = begin.number
        self.positions: Positions = {}
        self.files: dict[str, LakeFile] = {}
        self.gaps: list[LakeGap] = []
        self._take(begin)

    def apply(self, commit: LakeCommit) -> None:
        """Raises: SparkJobError (it does not fit to what is there)."""
        if commit.number != self.number + 1 or commit.lake != self.lake or commit.kind == "snapshot":
            raise damaged(f"commit {commit.number}", f"it does not follow commit {self.number}")
        self._take(commit)
        self.number = commit.number

    def _take(self, commit: LakeCommit) -> None:
        for path in commit.remove:
            if self.files.pop(path, None) is None:
                raise damaged(f"commit {commit.number}", f"it removes {path}, which is not there")
        for file in commit.add:
            if file.path in self.files:
                raise damaged(f"commit {commit.number}", f"it adds {file.path}, which is there")
            self.files[file.path] = file
        self.gaps += commit.gaps
        self.positions = commit.positions

    def snapshot(self) -> LakeCommit:
        """Return the state as one commit."""
        files = tuple(replace(file, staged="") for file in self.files.values())
        return LakeCommit(self.number, "snapshot", self.lake, 0, self.positions, files, (), tuple(self.gaps))

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.positions} | {file.topic for file in self.files.values()})

    def files_of(self, topic: str) -> list[LakeFile]:
        """Return the files of a topic, by hour and path."""
        found = [file for file in self.files.values() if file.topic == topic]
        return sorted(found, key=lambda file: (file.hour, file.path))


# --- batches ------------------------------------------------------------------------------------------------


def batch_of(
    state: LakeState, positions: Positions, found: Sequence[LakeFile], *, now_ms: int, fail: bool
) -> LakeCommit:
    """Return the commit of a batch, after a check that its files continue the lake message by message.

    `positions`: where each queue has to go on; a queue that is not there began after the job did, so at 0.
    `found`: files as tasks wrote them, without paths. `fail`: a gap is an error.
    Raises: SparkJobError (messages are missing, or in the lake already).
    """
    number = state.number + 1
    ordered = sorted(found, key=lambda file: (file.topic, file.hour, *_first(file)))
    add = tuple(
        replace(file, path=f"{file.folder}/{number:012d}-{place:04d}.parquet")
        for place, file in enumerate(ordered)
    )
    after = {part: replace(each, queues=dict(each.queues)) for part, each in positions.items()}
    gaps: list[LakeGap] = []
    for (topic, group, queue), ranges in sorted(ranges_by_queue(add).items()):
        part = after[topic, group]
        at = part.queues.get(queue, 0)
        for each in ranges:
            if each.first < at:
                raise SparkJobError(
                    f'offset {each.first:,} of topic "{topic}" broker group "{group}" queue {queue} came to '
                    f"be archived, but the lake has all before {at:,}: the topic was created again, or its "
                    "brokers lost messages. Archive it into another folder"
                )
            if each.first > at:
                gaps.append(LakeGap(topic, group, queue, at, each.first))
            at = each.end
        after[topic, group] = replace(part, queues={**part.queues, queue: at})
    if gaps and fail:
        raise lost(gaps[0])
    return LakeCommit(number, "batch", state.lake, now_ms, after, add, (), tuple(gaps))


def lost(gap: LakeGap) -> SparkJobError:
    """Return the error about messages that cannot be archived any more."""
    return SparkJobError(
        f'offsets {gap.first:,} to {gap.end:,} of topic "{gap.topic}" broker group "{gap.broker_group}" '
        f"queue {gap.queue} were deleted by retention before they were archived. To go on without them: "
        "--no-fail-on-data-loss"
    )


def ranges_by_queue(files: Iterable[LakeFile]) -> dict[QueueKey, list[LakeRange]]:
    """Return the ranges of every queue by offset."""
    found: dict[QueueKey, list[LakeRange]] = {}
    for file in files:
        for each in file.ranges:
            found.setdefault((file.topic, each.broker_group, each.queue), []).append(each)
    for ranges in found.values():
        ranges.sort(key=lambda each: each.first)
    return found


def _first(file: LakeFile) -> tuple[str, int, int]:
    return file.ranges[0].broker_group, file.ranges[0].queue, file.ranges[0].first


# --- format -------------------------------------------------------------------------------------------------


def damaged(name: str, why: str) -> SparkJobError:
    """Return the error about a manifest."""
    return SparkJobError(
        f"the manifest of the lake is damaged: {name}: {why}. Take the file from a backup of the lake, or "
        "archive into another folder"
    )


def encode_commit(commit: LakeCommit) -> bytes:
    """Return the content of a file of the log."""
    fields = {
        "v": VERSION,
        "number": commit.number,
        "kind": commit.kind,
        "lake": commit.lake,
        "time": commit.time_ms,
        "positions": encode_positions(commit.positions),
        "add": [file_fields(file) for file in commit.add],
        "remove": list(commit.remove),
        "gaps": [asdict(gap) for gap in commit.gaps],
    }
    line = json.dumps(fields, separators=(",", ":")).encode()
    return line + f"\n{crc32c(line):08x}\n".encode()


def decode_commit(data: bytes, name: str) -> LakeCommit:
    """Decode a file of the log. `name`: for errors. Raises: SparkJobError."""
    line, _, seal = data.partition(b"\n")
    if seal != f"{crc32c(line):08x}\n".encode():
        raise damaged(name, "its checksum is wrong")
    try:
        fields: Any = json.loads(line)
        version = fields["v"]
        if isinstance(version, int) and version > VERSION:
            raise SparkJobError(
                f"the lake was written by a newer version of LedgerMQ (format {version}; this one knows "
                f"{VERSION}). Use that version"
            )
        commit = LakeCommit(
            _whole(fields["number"]), str(fields["kind"]), str(fields["lake"]), _whole(fields["time"]),
            decode_positions(fields["positions"]),
            tuple(decode_file(file) for file in fields["add"]),
            tuple(map(str, fields["remove"])),
            tuple(
                LakeGap(
                    str(gap["topic"]), str(gap["broker_group"]), _whole(gap["queue"]),
                    _whole(gap["first"]), _whole(gap["end"]),
                )
                for gap in fields["gaps"]
            ),
        )  # fmt: skip
        if version != VERSION or commit.kind not in KINDS or not all(file.path for file in commit.add):
            raise ValueError(commit.kind)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(name, "it is no commit of a lake") from None
    return commit


def file_fields(file: LakeFile) -> dict[str, Any]:
    """Return a file for JSON."""
    return {
        "path": file.path,
        "topic": file.topic,
        "hour": file.hour,
        "size": file.size,
        "staged": file.staged,
        "ranges": [
            [each.broker_group, each.queue, each.first, each.end, f"{each.checksum:016x}"]
            for each in file.ranges
        ],
    }


def decode_file(fields: Any) -> LakeFile:
    """Return a file from its JSON. Raises: ValueError, KeyError, TypeError."""
    ranges = tuple(
        LakeRange(str(group), _whole(queue), _whole(first), _whole(end), int(checksum, 16))
        for group, queue, first, end, checksum in fields["ranges"]
    )
    found = LakeFile(
        str(fields["path"]), str(fields["topic"]), _whole(fields["hour"]), _whole(fields["size"]), ranges,
        str(fields["staged"]),
    )  # fmt: skip
    if not ranges or found.hour > _HOURS_MAX or not (_inside(found.path) and _inside(found.staged)):
        raise ValueError(fields)
    return found


def _inside(path: str) -> bool:
    """Tell whether a relative path stays in the lake."""
    return not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value

"""Files of a dump, produced from a node's log and queues as a stream of bytes (D20).

Owns: the layout `commitlog/…`, `state/…`, `consumequeue/…`, `manifest.json` (last), and the manifest's
contents. The state is included when retention deleted the beginning of the log: without it the rest of the
log could not be restored (restore.py). A digest dump has `blockdigest/…` instead, and the bytes of each
segment behind its digests, as `commitlog/<physical offset>`.
Must not: repair, judge or refuse what it copies. A dump has to preserve damage at rest, so bytes are copied
as the files have them. Must not: run on the event loop; everything here blocks on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from ledgermq.proto.digest_file import DIGESTS, SegmentDigests, encode_digests
from ledgermq.proto.dump_manifest import DIGESTS_VERSION, FORMAT, FORMAT_VERSION, MANIFEST
from ledgermq.proto.entry import ALIGNMENT, HEADER_SIZE, MAGIC_WORD
from ledgermq.raft.errors import StateTransferError
from ledgermq.raft.log.identity import Manifest

from ..checkpoint.layout import Snapshot
from ..checkpoint.state_digest import state_digest
from ..errors import BrokerError, ConsumeQueueError
from ..state.consume_queue import UNIT_SIZE, UNITS_PER_FILE

BLOCK_SIZE: Final = 4 << 20  # bytes per checksum of the log
CHUNK_SIZE: Final = 1 << 20  # most bytes per chunk of the stream
_QUEUE_FILE_SIZE: Final = UNITS_PER_FILE * UNIT_SIZE
#: magic, size, index, physical offset of an entry header
_PROBE: Final = struct.Struct("<I4xI4xQ8xQ24x")
assert _PROBE.size == HEADER_SIZE


class DumpError(BrokerError):
    """A dump cannot be taken or finished; the text gives the reason and the remedy."""


class DumpOvertakenError(DumpError):
    """Retention deleted what was to be dumped. Another dump begins behind it."""


class Chunk(NamedTuple):
    """Bytes of one file of a dump. The chunks of a file come in order and without gaps."""

    path: str  # relative to the dump's folder
    offset: int  # of `data` in the file
    data: bytes


@dataclass(frozen=True, slots=True)
class QueueSource:
    """One consume queue: its units [begin, end), readable as raw bytes from any thread."""

    topic: str
    topic_id: int
    queue_id: int
    begin: int  # queue offset
    end: int  # queue offset
    read: Callable[[int, int], bytes]  # (first unit, unit behind the last) -> 20 bytes per unit


@dataclass(frozen=True, slots=True)
class StateSource:
    """The state after an entry of the log, in the format that a reset sends (checkpoint/transfer.py)."""

    index: int  # of that entry
    size: int  # bytes
    read: Callable[[], Iterator[bytes]]  # yields the bytes, from any thread


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """Last committed entry of a dump."""

    index: int
    term: int  # 0: the entry is damaged, or there is none
    crc: int
    end: int  # physical offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpPoint:
    """What to dump: everything below `end_offset`. Chosen once, on the event loop; copied afterwards."""

    cluster: str
    broker_group: str
    node: str
    incarnation: int
    voters: tuple[str, ...]
    segment_size: int
    log_folder: Path
    segment_starts: tuple[int, ...]  # start offsets of the segments, ascending
    base: Manifest
    commit: CommitPoint
    end_offset: int  # commit.end; higher only for a stopped node, which knows a lower bound of commit
    log_time_ms: int
    queues: tuple[QueueSource, ...] | None  # None: left out
    queues_complete: bool = True
    group_id: int = 0  # distinguishes broker groups of one name; 0: not known
    former_group_ids: tuple[int, ...] = ()  # of this broker group before a recovery or promotion
    state: StateSource | None = None  # of a log whose beginning was deleted
    snapshot: Snapshot | None = None  # of the state after the last entry, to be digested
    # by segment start; None: the log itself is dumped
    digests: Mapping[int, SegmentDigests] | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all files except the manifest and digests."""
        queues = sum((queue.end - queue.begin) * UNIT_SIZE for queue in self.queues or ())
        state = 0 if self.state is None else self.state.size
        log = sum(end - self.undigested(start) for start, end in self.segments())
        return log + state + queues

    def undigested(self, start: int) -> int:
        """Return from which physical offset on a segment's bytes are dumped."""
        digests = (self.digests or {}).get(start)
        return start if digests is None else digests.end

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each segment's part of the dump, as physical offsets."""
        for start in self.segment_starts:
            if start < self.end_offset:
                yield start, min(start + self.segment_size, self.end_offset)


def dump_chunks(point: DumpPoint) -> Generator[Chunk, None, None]:
    """Yield every file of the dump, the manifest last. Blocks. Raises: DumpError, OSError."""
    notes = _Notes()
    for start, end in point.segments():
        first = point.undigested(start)
        if point.digests is not None and start in point.digests:
            digests = Chunk(f"{DIGESTS}/{start:020d}", 0, encode_digests(point.digests[start]))
            notes.sizes[digests.path] = len(digests.data)
            yield digests
        notes.next_header = first
        for chunk in copy_range(point.log_folder, start, first, end, "commitlog"):
            notes.add(chunk, first)
            yield chunk
    if point.state is not None:
        for chunk in _copy_state(point.state):
            notes.sizes[chunk.path] = chunk.offset + len(chunk.data)
            yield chunk
    for queue in point.queues or ():
        end = queue.begin
        for chunk in _copy_queue(queue, point.commit.end):
            notes.sizes[chunk.path] = chunk.offset + len(chunk.data)
            end += len(chunk.data) // UNIT_SIZE
            yield chunk
        notes.queues.append([queue.topic, queue.topic_id, queue.queue_id, queue.begin, end])
    yield Chunk(MANIFEST, 0, (json.dumps(_manifest(point, notes), indent=1) + "\n").encode())


@dataclass(slots=True)
class _Notes:
    """Data for the manifest about the copied bytes: sizes, block checksums, positions of entries."""

    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each file
    checksums: dict[int, list[int]] = field(default_factory=dict)  # block start -> [size, crc32c]
    queues: list[list[str | int]] = field(default_factory=list)  # [topic, topic id, queue id, begin, end]
    points: list[tuple[int, int]] = field(default_factory=list)  # (index, offset), one per BLOCK_SIZE or so
    next_header: int = 0  # physical offset of the next entry's header; -1 after damage
    _carry: bytes = b""  # beginning of a header that the next chunk completes

    def add(self, chunk: Chunk, segment_start: int) -> None:
        """Note the next bytes of a segment."""
        self.sizes[chunk.path] = chunk.offset + len(chunk.data)
        start = segment_start + chunk.offset
        for lo, hi in _pieces(start, start + len(chunk.data)):
            piece = memoryview(chunk.data)[lo - start : hi - start]
            block = self.checksums.setdefault(max(lo - lo % BLOCK_SIZE, segment_start), [0, 0])
            block[0] += len(piece)
            block[1] = crc32c(piece, block[1])
        self._follow_sizes(start, chunk.data)

    def _follow_sizes(self, start: int, data: bytes) -> None:
        """Note an entry's position every few MiB. Damage ends this silently: the points are only hints."""
        if self.next_header < start and self._carry:
            data, start = self._carry + data, start - len(self._carry)
        self._carry = b""
        while start <= self.next_header:
            at = self.next_header - start
            if at + HEADER_SIZE > len(data):
                self._carry = data[at:] if at < len(data) else b""
                return
            magic, size, index, offset = _PROBE.unpack_from(data, at)
            if magic != MAGIC_WORD or offset != self.next_header or size < HEADER_SIZE or size % ALIGNMENT:
                self.next_header = -1
                return
            if not self.points or offset - self.points[-1][1] >= BLOCK_SIZE:
                self.points.append((index, offset))
            self.next_header += size


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Split [start, end) at block boundaries."""
    while start < end:
        stop = min(end, start - start % BLOCK_SIZE + BLOCK_SIZE)
        yield start, stop
        start = stop


def copy_range(log_folder: Path, start: int, lo: int, hi: int, into: str) -> Iterator[Chunk]:
    """Yield the bytes [lo, hi) of the segment at `start` as they are on disk, as the file `into/<lo>`.

    A segment file may end early, and its trailer is not log data. Raises: DumpOvertakenError, OSError.
    """
    source, path, size = log_folder / f"{start:020d}", f"{into}/{lo:020d}", hi - lo
    if size <= 0:
        return
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DumpOvertakenError(
            f"{source} was deleted by retention while the dump was taken. Run the dump again."
        ) from None
    try:
        offset = 0
        while offset < size and (data := os.pread(fd, min(CHUNK_SIZE, size - offset), lo - start + offset)):
            yield Chunk(path, offset, data)
            offset += len(data)
    finally:
        os.close(fd)


def _copy_state(state: StateSource) -> Iterator[Chunk]:
    offset = 0
    try:
        for data in state.read():
            yield Chunk(_state_path(state), offset, data)
            offset += len(data)
    except StateTransferError as error:
        raise DumpOvertakenError(f"{error}. Run the dump again.") from None


def _state_path(state: StateSource) -> str:
    return f"state/{state.index:020d}"


def _copy_queue(queue: QueueSource, commit_offset: int) -> Iterator[Chunk]:
    """Yield a queue's units that point below `commit_offset`, split into files like the node's own."""
    folder = f"consumequeue/{queue.topic}@{queue.topic_id}/{queue.queue_id}"
    file_start = position = queue.begin * UNIT_SIZE
    while position < queue.end * UNIT_SIZE:
        file_end = position - position % _QUEUE_FILE_SIZE + _QUEUE_FILE_SIZE
        units = CHUNK_SIZE // UNIT_SIZE * UNIT_SIZE
        stop = min(file_end, position + units, queue.end * UNIT_SIZE)
        try:
            data = queue.read(position // UNIT_SIZE, stop // UNIT_SIZE)
        except ConsumeQueueError as error:
            raise DumpOvertakenError(
                f"{error.path}: {error.reason}. "
                "Retention may have deleted it while the dump was taken: run the dump again."
            ) from None
        data, whole = _below(data, commit_offset)
        if data:
            yield Chunk(f"{folder}/{file_start:020d}", position - file_start, data)
        if not whole:
            return
        position += len(data)
        if position == file_end:
            file_start = position


def _below(data: bytes, commit_offset: int) -> tuple[bytes, bool]:
    """Cut off the last units that point at or above the dump's end; return whether nothing was cut."""
    offsets = np.ndarray((len(data) // UNIT_SIZE,), "<i8", data, strides=(UNIT_SIZE,))
    count = len(offsets)
    while count and offsets[count - 1] >= commit_offset:
        count -= 1
    return data[: count * UNIT_SIZE], count == len(offsets) and bool(data)


def _manifest(point: DumpPoint, notes: _Notes) -> dict[str, object]:
    queues = "none" if point.queues is None else "complete" if point.queues_complete else "partial"
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION if point.digests is None else DIGESTS_VERSION,
        "software": _software(),
        "cluster": point.cluster,
        "group": point.broker_group,
        "node": point.node,
        "incarnation": str(point.incarnation),
        "group_id": f"{point.group_id:016x}",
        "former_group_ids": [f"{each:016x}" for each in point.former_group_ids],
        "voters": list(point.voters),
        "segment_size": point.segment_size,
        "first": {
            "index": point.base.first_index,
            "offset": point.base.first_offset,
            "prev_term": point.base.prev_term,
            "prev_crc": point.base.prev_crc,
            "prev_timestamp": point.base.prev_timestamp,
        },
        "state": None
        if point.state is None
        else {"index": point.state.index, "path": _state_path(point.state)},
        "state_digest": None if point.snapshot is None else asdict(state_digest(point.snapshot)),
        "commit": {
            "index": point.commit.index,
            "term": point.commit.term,
            "crc": point.commit.crc,
            "end_offset": point.commit.end,
        },
        "end_offset": point.end_offset,
        "log_time_ms": point.log_time_ms,
        "consume_queues": queues,
        "queues": notes.queues,
        "files": [{"path": path, "size": size} for path, size in notes.sizes.items()],
        "index_points": notes.points,
        "checksums": [[start, size, crc] for start, (size, crc) in notes.checksums.items()],
    }


def _software() -> str:
    try:
        return version("ledgermq")
    except PackageNotFoundError:
        return "unknown"


def write_dump(chunks: Iterator[Chunk], folder: Path) -> int:
    """Write the files of one node's dump to `folder`; return the bytes written. Raises: DumpError, OSError.

    The manifest gets its name only after everything else is on disk.
    """
    if (folder / MANIFEST).exists():
        raise DumpError(
            f"{folder} holds a dump already. "
            "Name another folder, or replace it with --overwrite; nothing was changed."
        )
    remove_dump(folder)  # an unfinished one, whose files must not end up in this dump
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)  # private, because it will contain users' messages
    written, paths = 0, dict[Path, None]()
    for chunk in chunks:
        path = folder / chunk.path
        if chunk.path == MANIFEST:
            _sync((*paths, *dict.fromkeys(path.parent for path in paths)))
            path = path.with_name(f"{MANIFEST}.part")
        if chunk.offset == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            paths[path] = None
        with path.open("wb" if chunk.offset == 0 else "r+b") as file:
            file.seek(chunk.offset)
            file.write(chunk.data)
        written += len(chunk.data)
    part = folder / f"{MANIFEST}.part"
    _sync((part,))
    part.rename(folder / MANIFEST)
    _sync((folder,))
    return written


def remove_dump(folder: Path) -> None:
    """Remove a dump's files, the manifest first, so that the rest never looks complete. Raises: OSError."""
    for name in (MANIFEST, f"{MANIFEST}.part"):
        (folder / name).unlink(missing_ok=True)
    for name in ("commitlog", "consumequeue", "state", DIGESTS, "fetched"):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)


def _sync(paths: Iterable[Path]) -> None:
    """Put files, or the names in folders, on stable storage."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

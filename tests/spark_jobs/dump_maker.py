"""Makes logs of replicas and dumps of them, small and from a seed, for tests; and damages them.

The log is written with the real layouts, and the dump is taken by the broker's own code, so what these tests
check is what a node writes.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from ledgermq.broker.backup.dump_files import CommitPoint, DumpPoint, QueueSource, dump_chunks, write_dump
from ledgermq.proto.digest_dump import FETCHED
from ledgermq.proto.digest_file import SegmentDigests
from ledgermq.proto.entry import (
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    decode_header,
    encode_entry,
    encode_filler,
    entry_size,
    fits_segment,
)
from ledgermq.proto.record import (
    RecordFlags,
    SectionKind,
    encode_record,
    encode_section,
    hash_text,
    pack_message_id,
    record_positions,
    seal_section,
)
from ledgermq.raft.damage import Before
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.log.hard_state import DurableState, HardStateFile
from ledgermq.raft.log.identity import Identity, Manifest, write_identity, write_manifest
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.log.segment_scan import scan_segment
from ledgermq.raft.repair.digest_builder import DigestBuilder
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from ledgermq.spark_jobs.dump_folder import NodeDump

UNIT = struct.Struct("<qiq")
TOPIC, TOPIC_ID = "orders", 7
START_MS = 1_750_000_000_000


@dataclass
class Log:
    """A log as one node holds it: bytes of its segments, headers of its entries, units of its queues."""

    segment_size: int = 64 << 10
    segments: dict[int, bytearray] = field(default_factory=dict)
    entries: list[EntryHeader] = field(default_factory=list)
    units: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    previous: EntryHeader | None = None

    @property
    def end(self) -> int:
        return self.previous.end if self.previous else 0

    def append(
        self,
        kind: EntryKind,
        parts: list[bytes],
        *,
        term: int,
        section_count: int = 0,
        index: int | None = None,
        timestamp: int | None = None,
    ) -> EntryHeader:
        """Append one entry, closing the segment before it when it does not fit."""
        size = entry_size(sum(map(len, parts)))
        room = self.segment_size - self.end % self.segment_size
        if not fits_segment(size, room):
            assert self.previous is not None
            filler = encode_filler(self.previous, self.end + room)
            self._write(self.end, filler)
            self.segments[self._start(self.end)].extend(bytes(room - HEADER_SIZE))
            self.previous = decode_header(filler)
        number = len(self.entries) + 1 if index is None else index
        data = encode_entry(
            kind, list(parts), section_count=section_count, index=number, term=term, physical_offset=self.end,
            timestamp=START_MS + number * 10 if timestamp is None else timestamp,
            prev_crc=self.previous.crc if self.previous else 0,
        )  # fmt: skip
        self._write(self.end, data)
        self.previous = decode_header(data)
        self.entries.append(self.previous)
        return self.previous

    def append_messages(
        self, queue_id: int, bodies: list[bytes], *, term: int, base: int | None = None, flags: int = 0
    ) -> EntryHeader:
        """Append one entry with one section of messages. `flags`: more RecordFlags."""
        section = make_section(queue_id, bodies, flags)
        units = self.units[queue_id]
        seal_section(
            memoryview(section),
            base_queue_offset=len(units) if base is None else base,
            entry_distance=HEADER_SIZE,
        )
        header = self.append(EntryKind.RECORDS, [bytes(section)], term=term, section_count=1)
        body = bytes(section[64:])
        for position in record_positions(body, len(bodies)).tolist():
            size = int.from_bytes(body[position : position + 4], "little")
            tag = struct.unpack_from("<q", body, position + 32)[0]
            units.append(UNIT.pack(header.physical_offset + 128 + position, size, tag))
        return header

    def _start(self, offset: int) -> int:
        return offset - offset % self.segment_size

    def _write(self, offset: int, data: bytes | bytearray) -> None:
        segment = self.segments.setdefault(self._start(offset), bytearray())
        assert len(segment) == offset - self._start(offset)
        segment.extend(data)


def make_section(queue_id: int, bodies: list[bytes], more_flags: int = 0) -> bytearray:
    """Encode a section of messages, not sealed yet."""
    records, distance = [], 64
    for number, body in enumerate(bodies):
        raw_id, flags = pack_message_id(f"{queue_id}-{number}-{crc32c(body):x}")
        record = encode_record(
            b"sys", b"rest" + body, section_distance=distance, body_offset_in_rest=4, body_size=len(body),
            message_id=raw_id, born_timestamp=START_MS, tag_hash=hash_text("tag"),
            flags=RecordFlags(flags | more_flags),
        )  # fmt: skip
        records.append(record)
        distance += len(record)
    return encode_section(SectionKind.RECORDS, records, len(bodies), topic_id=TOPIC_ID, queue_id=queue_id)


def make_log(
    count: int = 60, *, seed: int = 1, segment_size: int = 64 << 10, max_body: int = 1500, fork_at: int = 0
) -> Log:
    """Make a log of `count` entries: no-ops at terms' starts, messages of 3 queues. Equal arguments, equal
    bytes.

    From index `fork_at` on (0 = never) the contents are those of another leader.
    """
    log, rng, term = Log(segment_size), random.Random(seed), 1
    for index in range(1, count + 1):
        if fork_at and index == fork_at:
            rng = random.Random(seed + 1000)
        if index == 1 or rng.random() < 0.05:
            term += index > 1
            log.append(EntryKind.NOOP, [], term=term)
        else:
            bodies = [rng.randbytes(rng.randrange(1, max_body)) for _ in range(rng.randrange(1, 6))]
            log.append_messages(rng.randrange(3), bodies, term=term)
    return log


def take_dump(
    log: Log,
    out: Path,
    node: str,
    *,
    voters: tuple[str, ...] = ("n1", "n2", "n3"),
    commit: int | None = None,
    group: str = "g0",
    cluster: str = "local",
    incarnation: int | None = None,
    queues_complete: bool = True,
    digests: bool = False,
    damage: Callable[[Path], object] | None = None,
) -> Path:
    """Lay the log down as a node does and dump it; return the dump's folder.

    `digests`: take a digest dump, with the digests that a scrubber makes. `damage` changes the node's folder
    before that.
    """
    data = out.parent / f"data-{node}" / "commitlog"
    data.mkdir(parents=True, exist_ok=True)
    for start, content in log.segments.items():
        file = bytes(content).ljust(log.segment_size + 8192, b"\0")  # the trailer is no part of the log
        (data / f"{start:020d}").write_bytes(file)
    commit_index = len(log.entries) if commit is None else commit
    last = log.entries[commit_index - 1] if commit_index else None
    own = _incarnation(node) if incarnation is None else incarnation
    befores = list(_befores(log, data))
    if damage is not None:
        damage(data.parent)
    made = None
    if digests:
        made = {}
        for start, before in befores:
            limit = min(log.segment_size, (last.end if last else 0) - start)
            if limit > 0 and (each := digest_segment(data, own, log.segment_size, start, before, limit)):
                made[start] = each
    point = DumpPoint(
        cluster=cluster,
        broker_group=group,
        node=node,
        incarnation=own,
        voters=voters,
        segment_size=log.segment_size,
        log_folder=data,
        segment_starts=tuple(log.segments),
        base=Manifest(),
        commit=CommitPoint(commit_index, last.term, last.crc, last.end) if last else CommitPoint(0, 0, 0, 0),
        end_offset=log.end if made is None or last is None else last.end,
        digests=made,
        log_time_ms=log.entries[-1].timestamp if log.entries else 0,
        queues=None
        if digests
        else tuple(
            QueueSource(TOPIC, TOPIC_ID, queue, 0, len(units), _reader(list(units)))
            for queue, units in sorted(log.units.items())
        ),
        queues_complete=queues_complete,
    )
    folder = out / node
    write_dump(dump_chunks(point), folder)
    return folder


def make_data(log: Log, data: Path, node: str = "n1", commit: int | None = None) -> Path:
    """Make the data folder of a stopped node that holds the log. `commit`: the commit point that it knows."""
    folders, files = LogFolders(data), RealFileSystem()
    files.make_directory(folders.segments)
    voters = ("n1", "n2", "n3")
    members = {NodeId(name): _incarnation(name) for name in voters}
    identity = Identity(
        cluster_id="local", group="g0", node_id=NodeId(node), incarnation=_incarnation(node),
        segment_size=log.segment_size, members=members,
    )  # fmt: skip
    write_identity(files, folders.identity, identity)
    write_manifest(files, folders.manifest, Manifest())
    known = HardState(Term(1), None, LogIndex(len(log.entries) if commit is None else commit))
    state = DurableState(hard=known, incarnation=_incarnation(node))
    HardStateFile.create(files, folders.hard_state, state).close()
    for start, content in log.segments.items():
        (folders.segments / f"{start:020d}").write_bytes(bytes(content).ljust(log.segment_size + 8192, b"\0"))
    for queue_id, units in log.units.items():
        queue = folders.data / "consumequeue" / f"{TOPIC}@{TOPIC_ID}" / str(queue_id)
        queue.mkdir(parents=True)
        (queue / f"{0:020d}").write_bytes(b"".join(units))
    return data


def _incarnation(node: str) -> int:
    return int(node[1:]) * 1111


def _befores(log: Log, data: Path) -> Iterator[tuple[int, Before]]:
    """Yield what the first entry of each segment continues, before anything is damaged."""
    before = Manifest().before
    for start in log.segments:
        yield start, before
        with closing(RealFileSystem().open(data / f"{start:020d}", writable=False)) as file:
            before = scan_segment(file, start, log.segment_size, before).before


def digest_segment(
    data: Path, incarnation: int, segment_size: int, start: int, before: Before, limit: int
) -> SegmentDigests | None:
    """Digest a segment like the scrubber: piece by piece, as far as it is intact."""
    builder, position = DigestBuilder(incarnation, start), 0
    with closing(RealFileSystem().open(data / f"{start:020d}", writable=False)) as file:
        while position < limit:
            headers = bytearray()
            stop = min(position + (1 << 20), limit)
            scan = scan_segment(file, start, segment_size, before, position, stop, 1 << 20, headers)
            builder.add(headers, START_MS + position)
            position, before = scan.end, scan.before
            if position < stop:
                break
    return builder.digests(sealed=position >= segment_size)


def fetch_from_data(dump: NodeDump, ranges: list[tuple[int, int]]) -> None:
    """Fetch ranges of a node's log, as it was laid down by `take_dump`, into its digest dump."""
    folder = Path(dump.folder)
    (folder / FETCHED).mkdir(exist_ok=True)
    for lo, hi in ranges:
        path, position = segment_of(folder.parent.parent / f"data-{dump.node}", lo, dump.segment_size)
        raw = path.read_bytes()[position : position + hi - lo]
        (folder / FETCHED / f"{lo:020d}").write_bytes(raw)


def _reader(units: list[bytes]) -> Callable[[int, int], bytes]:
    return lambda first, last: b"".join(units[first:last])


def make_dumps(
    out: Path,
    log: Log | None = None,
    *,
    nodes: tuple[str, ...] = ("n1", "n2", "n3"),
    digests: bool = False,
) -> Log:
    """Dump the same log as every node's."""
    log = log or make_log()
    for node in nodes:
        take_dump(log, out, node, digests=digests)
    return log


def segment_of(folder: Path, offset: int, segment_size: int = 64 << 10) -> tuple[Path, int]:
    """Return the file of a dump that holds a physical offset, and the position in it."""
    start = offset - offset % segment_size
    return folder / "commitlog" / f"{start:020d}", offset - start


def overwrite(folder: Path, offset: int, data: bytes) -> None:
    """Write bytes at a physical offset of a dump."""
    path, position = segment_of(folder, offset)
    raw = bytearray(path.read_bytes())
    raw[position : position + len(data)] = data
    path.write_bytes(raw)


def flip_bit(folder: Path, offset: int) -> None:
    """Flip the lowest bit of one byte of a dump."""
    path, position = segment_of(folder, offset)
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


def reseal(raw: bytearray, position: int, **fields: int) -> None:
    """Change header fields of the entry at `position` and give it a checksum that fits again."""
    places = {
        "index": (16, "<Q"),
        "term": (24, "<Q"),
        "physical_offset": (32, "<Q"),
        "timestamp": (40, "<Q"),
        "prev_crc": (48, "<I"),
    }
    for name, value in fields.items():
        at, form = places[name]
        struct.pack_into(form, raw, position + at, value)
    size = int.from_bytes(raw[position + 8 : position + 12], "little")
    struct.pack_into("<I", raw, position + 4, crc32c(memoryview(raw)[position + 8 : position + size]))

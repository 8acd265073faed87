"""Dumping: of a running node as a stream of `DumpChunk`s, of a stopped node's folder from the command line.

Owns: the choice of a dump's end, and the bridge from blocking reads to the event loop.
Must not: write into a data folder, forward (a dump is of the node that owns the files), or hold more than one
chunk.
    python -m ledgermq.broker.backup.stream --data DATA --out DIR        a node that is not running
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Generator, Sequence
from pathlib import Path

from ledgermq.proto.admin_pb2 import DumpChunk
from ledgermq.proto.digest_file import SegmentDigests
from ledgermq.proto.dump_manifest import MANIFEST, decode_manifest
from ledgermq.proto.foreign_text import safe_json
from ledgermq.raft.errors import DamagedLogError, RaftError
from ledgermq.raft.log.commit_log import CommitLog
from ledgermq.raft.log.segment import segment_start
from ledgermq.raft.node_status import RaftStatus
from ledgermq.raft.types import LogIndex

from ..checkpoint.layout import Snapshot
from .dump_files import (
    Chunk,
    CommitPoint,
    DumpError,
    DumpOvertakenError,
    DumpPoint,
    QueueSource,
    StateSource,
    copy_range,
    dump_chunks,
    remove_dump,
    write_dump,
)
from .offline import offline_point

__all__ = [
    "DumpError",
    "DumpOvertakenError",
    "DumpPoint",
    "QueueSource",
    "StateSource",
    "dump_stream",
    "live_point",
    "main",
    "range_stream",
]


async def live_point(
    log: CommitLog,
    status: RaftStatus,
    *,
    voters: Sequence[str],
    log_folder: Path,
    queues: Sequence[QueueSource] | None,
    state: StateSource | None = None,
    digests: Sequence[SegmentDigests] | None = None,
    snapshot: Snapshot | None = None,
) -> DumpPoint:
    """Choose what to dump of a running node: its log as far as it is applied and durable.

    Call it in the same event-loop turn that took `status`, `queues` and `snapshot`: the queues must end at
    `applied_index` or behind it. `digests` are of this log; without queues, all that is committed is dumped.
    `snapshot` is digested if it is of the last entry.
    Raises: RaftError subclasses (the log could not be read, or changed meanwhile: ask again).
    """
    reached = status.applied_index if digests is None else status.commit_index
    index = LogIndex(min(reached, status.durable_index))
    base, log_time = log.base, log.last_timestamp
    starts = tuple(info.start_offset for info in log.segments())
    commit = CommitPoint(base.first_index - 1, base.prev_term, base.prev_crc, base.first_offset)
    if index >= base.first_index:
        commit = await _commit_at(log, index)
    return DumpPoint(
        cluster=status.cluster,
        broker_group=status.group,
        node=status.node_id,
        incarnation=status.incarnation,
        group_id=status.group_id,
        former_group_ids=status.former_group_ids,
        voters=tuple(voters),
        segment_size=log.segment_size,
        log_folder=log_folder,
        segment_starts=starts,
        base=base,
        commit=commit,
        end_offset=commit.end,
        log_time_ms=log_time,
        queues=None if queues is None else tuple(queues),
        state=state,
        snapshot=snapshot if snapshot is not None and snapshot.index == index else None,
        digests=None
        if digests is None
        else {each.start: each for each in digests if each.start in starts and each.end <= commit.end},
    )


async def _commit_at(log: CommitLog, index: LogIndex) -> CommitPoint:
    """Return the last entry to dump. A damaged one is dumped, too: its end follows from the next entry."""
    try:
        header = await log.header_at(index)
    except DamagedLogError:
        if index >= log.last_index:
            raise
        after = await log.header_at(LogIndex(index + 1))
        ends = {info.last_index: info.end_offset for info in log.segments()}
        return CommitPoint(index, 0, after.prev_crc, ends.get(index, after.physical_offset))
    return CommitPoint(index, header.term, header.crc, header.end)


async def dump_stream(point: DumpPoint) -> AsyncIterator[DumpChunk]:
    """Yield the dump of `point` with one chunk in memory at a time; a thread reads the disk.

    The next chunk is read after the receiver has taken the last one, so a slow receiver costs nothing.
    Raises: DumpError, OSError.
    """
    async for chunk in _sent(dump_chunks(point), point.total_bytes):
        yield chunk


async def range_stream(
    log_folder: Path, segment_size: int, ranges: Sequence[tuple[int, int]]
) -> AsyncIterator[DumpChunk]:
    """Yield ranges of the log, none longer than its segment, each as a file `fetched/<begin>`.

    Raises: DumpError, OSError.
    """
    chunks = (
        chunk
        for lo, hi in ranges
        for chunk in copy_range(log_folder, segment_start(lo, segment_size), lo, hi, "fetched")
    )
    async for chunk in _sent(chunks, sum(hi - lo for lo, hi in ranges)):
        yield chunk


async def _sent(chunks: Generator[Chunk, None, None], total: int) -> AsyncIterator[DumpChunk]:
    try:
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield DumpChunk(path=chunk.path, offset=chunk.offset, data=chunk.data, total_bytes=total)
    finally:
        chunks.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Dump a stopped node's data folder. Returns the exit code: 0, or 1 with one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m ledgermq.broker.backup.stream", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="data folder of a node that is not running")
    parser.add_argument("--out", type=Path, required=True, help="folder of dumps; the node gets one below it")
    parser.add_argument("--overwrite", action="store_true", help="replace the dump that is there")
    parser.add_argument("--without-consume-queues", action="store_true", help="dump the log only")
    parser.add_argument("--digests", action="store_true", help="read the log, and dump digests of its blocks")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(arguments)
    try:
        with_queues = not (options.without_consume_queues or options.digests)
        with offline_point(options.data, with_queues=with_queues, digests=options.digests) as point:
            folder = options.out / point.node
            if options.overwrite:
                remove_dump(folder)
            written = write_dump(dump_chunks(point), folder)
            manifest = decode_manifest((folder / MANIFEST).read_bytes())
    except (DumpError, RaftError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if options.json:
        dumps = [{**manifest.summary(), "folder": str(folder)}]
        sys.stdout.write(safe_json(json.dumps({"dumps": dumps, "missing": []}, indent=2)) + "\n")
    else:
        sys.stdout.write(f"{point.node} -> {folder} ({written:,} bytes, to index {point.commit.index:,})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

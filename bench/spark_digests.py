"""Time and memory of a check of digests of 3 x 1 TB: `python -m bench.spark_digests [--tib N] [--keep DIR]`.

A generator writes what three nodes would send: the digests of their logs, and the open part. Nothing of the
size of the log is made. Then `python -m ledgermq.spark_jobs.verify` runs on it as `ledgermq check` does, in a
process of its own, and the memory of that process and its children (JVM, workers) is sampled. Prints one JSON
document. Exit code 1: the check did not call them consistent, or missed a target (20 s, 2 GiB).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ledgermq.broker.backup.dump_files import CommitPoint, DumpPoint, dump_chunks, write_dump
from ledgermq.proto.block_digest import BLOCK_SIZE, DIGEST_DTYPE
from ledgermq.proto.digest_file import SegmentDigests
from ledgermq.proto.entry import HEADER_SIZE, EntryHeader, EntryKind, decode_header, encode_entry
from ledgermq.raft.log.identity import Manifest

SEGMENT: Final = 1 << 30
ENTRY: Final = 64 << 10
OPEN_ENTRIES: Final = 3 * BLOCK_SIZE // ENTRY + 5  # behind the last digest
TARGET_SECONDS: Final = 20.0
TARGET_BYTES: Final = 2 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the dumps, run the check, print what it took."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_digests", description=main.__doc__)
    parser.add_argument("--tib", type=float, default=1.0, help="size of each node's log (default: 1)")
    parser.add_argument("--keep", type=Path, help="make the dumps here, and keep them")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "dumps"
        began = time.monotonic()
        size = make_dumps(folder, int(options.tib * (1 << 40)) // SEGMENT)
        made = time.monotonic() - began
        moved = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        result = run_check(folder)
    result |= {"log_bytes_per_node": size, "dump_bytes": moved, "generator_seconds": round(made, 1)}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    fits = result["seconds"] <= TARGET_SECONDS and result["peak_bytes"] <= TARGET_BYTES
    return 0 if fits and result["exit_code"] == 0 else 1


def make_dumps(folder: Path, segments: int) -> int:
    """Write digest dumps of three equal nodes with whole `segments`; return the size of each log."""
    for number, node in enumerate(("n1", "n2", "n3"), 1):
        digests, last = make_digests(segments, incarnation=number)
        with tempfile.TemporaryDirectory() as data:
            entry = write_open_part(Path(data), segments * SEGMENT, last)
            point = DumpPoint(
                cluster="bench", broker_group="g0", node=node, incarnation=number, voters=("n1", "n2", "n3"),
                segment_size=SEGMENT, log_folder=Path(data),
                segment_starts=tuple(start * SEGMENT for start in range(segments + 1)), base=Manifest(),
                commit=CommitPoint(entry.index, entry.term, entry.crc, entry.end), end_offset=entry.end,
                log_time_ms=1, queues=None, digests={each.start: each for each in digests},
            )  # fmt: skip
            write_dump(dump_chunks(point), folder / node)
    return entry.end


def make_digests(segments: int, *, incarnation: int) -> tuple[list[SegmentDigests], EntryHeader]:
    """Return digests of segments full of equal entries, lanes from a seed, and the last entry's header."""
    rng = np.random.default_rng(1)
    per_segment, blocks = SEGMENT // ENTRY, SEGMENT // BLOCK_SIZE
    found, last = [], header_at(0, crc=0, prev_crc=0)
    for number in range(segments):
        first = header_at(number * per_segment + 1, crc=number + 1, prev_crc=last.crc)
        last = header_at((number + 1) * per_segment, crc=1_000_000 + number, prev_crc=3)
        rows = np.zeros(blocks, DIGEST_DTYPE)
        rows["block"] = np.arange(blocks) + number * blocks
        rows["first_offset"] = rows["block"] * BLOCK_SIZE
        rows["entries"], rows["size"] = BLOCK_SIZE // ENTRY, BLOCK_SIZE
        rows["lane_a"], rows["lane_b"] = rng.integers(
            -(1 << 63), 1 << 63, (2, blocks), np.int64, endpoint=False
        )
        rows["first_index"] = rows["first_offset"] // ENTRY + 1
        rows["last_index"] = rows["first_index"] + BLOCK_SIZE // ENTRY - 1
        start = number * SEGMENT
        found.append(SegmentDigests(incarnation, start, start + SEGMENT, 1, 2, first, last, rows))
    return found, last


def header_at(index: int, *, crc: int, prev_crc: int) -> EntryHeader:
    """Return the header of an entry in a log of equal entries."""
    return EntryHeader(
        crc,
        ENTRY,
        EntryKind.RECORDS,
        0,
        index,
        1,
        max(0, index - 1) * ENTRY,
        1,
        prev_crc,
        ENTRY - HEADER_SIZE,
    )


def write_open_part(folder: Path, start: int, last: EntryHeader) -> EntryHeader:
    """Write the segment that no digest covers; return its last entry's header."""
    raw = bytearray()
    entry = replace(last)
    for _ in range(OPEN_ENTRIES):
        data = encode_entry(
            EntryKind.NOOP, [bytes(ENTRY - HEADER_SIZE)], section_count=0, index=entry.index + 1, term=1,
            physical_offset=start + len(raw), timestamp=1, prev_crc=entry.crc,
        )  # fmt: skip
        entry = decode_header(data)
        raw += data
    (folder / f"{start:020d}").write_bytes(raw)
    return entry


def run_check(folder: Path) -> dict[str, Any]:
    """Run the check as a process; return its verdict, time (s) and the peak of its memory (bytes)."""
    command = [sys.executable, "-m", "ledgermq.spark_jobs.verify", str(folder), "--json"]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak, cpu = 0, 0.0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak, cpu
        while not ended.wait(0.1):
            peak = max(peak, memory_of(process.pid))
            cpu = max(cpu, cpu_of(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, errors = process.communicate()
    seconds = time.monotonic() - began
    ended.set()
    watcher.join()
    if process.returncode not in (0, 1, 3):
        raise SystemExit(f"the check failed: {errors}")
    verdict = json.loads(out)
    return {
        "exit_code": process.returncode,
        "verdict": verdict["verdict"],
        "seconds": round(seconds, 1),
        "seconds_without_start": verdict["seconds"],
        "cpu_seconds": round(cpu, 1),
        "load_per_core": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),
        "peak_bytes": peak,
    }


def memory_of(pid: int) -> int:
    """Return the memory (PSS, bytes) of a process and all its descendants."""
    total = 0
    for each in _family(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # it has ended
        total += next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
    return total


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and all its living descendants."""
    ticks = 0
    for each in _family(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    except OSError:
        pass  # it has ended
    return found


if __name__ == "__main__":
    sys.exit(main())

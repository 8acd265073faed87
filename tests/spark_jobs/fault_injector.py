"""Damages a dump in a way that is drawn from a seed."""

from __future__ import annotations

import random
from pathlib import Path

from ledgermq.proto.entry import HEADER_SIZE

from .dump_maker import Log, flip_bit, overwrite, reseal, segment_of

KINDS = ("flip", "zero", "garbage", "drop", "swap", "repeat", "index", "term", "time", "chain", "truncate")


def inject(log: Log, folder: Path, seed: int) -> str:
    """Do one kind of damage to one entry (not the last of its segment); return what was done."""
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    inner = [
        (first, second)
        for first, second in zip(log.entries[2:], log.entries[3:], strict=False)
        if first.end == second.physical_offset
    ]
    entry, after = rng.choice(inner)
    offset, end = entry.physical_offset, entry.end
    path, position = segment_of(folder, offset, log.segment_size)
    raw = bytearray(path.read_bytes())
    if kind == "flip":
        flip_bit(folder, rng.randrange(offset, end))
    elif kind == "zero":
        overwrite(folder, offset, bytes(entry.size))
    elif kind == "garbage":
        overwrite(folder, offset, rng.randbytes(entry.size))
    elif kind == "drop":
        del raw[position : position + entry.size]
        raw += bytes(entry.size)
    elif kind == "swap":
        first, second = (
            raw[position : position + entry.size],
            raw[position + entry.size : position + entry.size + after.size],
        )
        raw[position : position + entry.size + after.size] = second + first
    elif kind == "repeat":
        raw[position : position + entry.size] = bytes(entry.size)
        copy = raw[position + entry.size : position + entry.size + after.size][: entry.size]
        raw[position : position + len(copy)] = copy
    elif kind == "truncate":
        del raw[position + entry.size // 2 :]
    else:
        new = {
            "index": {"index": entry.index + 1},
            "term": {"term": entry.term + 7},
            "time": {"timestamp": 1},
        }
        reseal(raw, position, **new.get(kind, {"prev_crc": 12345}))
    if kind in KINDS[3:]:
        path.write_bytes(raw)
    return f"{kind} of index {entry.index} at {offset} (header {HEADER_SIZE} bytes, size {entry.size})"


#: What disks, people and torn writes do to a node's folder, besides the kinds above.
FOLDER_KINDS = (
    "bit-in-body", "bit-in-header", "bit-in-filler", "bytes-behind-filler", "torn-entry", "lost-sector",
    "missing-segment", "first-segment-missing", "swapped-segments", "stale-segment", "segment-of-another-log",
)  # fmt: skip


def damage_folder(log: Log, folder: Path, kind: str, other: Log) -> None:
    """Damage a node's folder in a named way: its second segment of at least four, mostly.

    `other`: another log with as many segments of the same size.
    """
    starts = sorted(log.segments)
    size, start = log.segment_size, starts[1]
    inside = [each for each in log.entries if start <= each.physical_offset < start + size]
    entry, path = inside[len(inside) // 2], segment_of(folder, start, size)[0]
    raw = bytearray(path.read_bytes())
    filler = inside[-1].end
    at = entry.physical_offset - start
    match kind:
        case "bit-in-body":
            raw[at + HEADER_SIZE + 200] ^= 4
        case "bit-in-header":
            raw[at + 17] ^= 1  # of the index
        case "bit-in-filler":
            raw[filler - start + 9] ^= 1
        case "bytes-behind-filler":
            raw[filler - start + HEADER_SIZE + 8] = 7
        case "torn-entry":
            raw[at + entry.size // 2 : at + entry.size] = bytes(entry.size - entry.size // 2)
        case "lost-sector":
            raw[at - at % 512 : at - at % 512 + 512] = bytes(512)
        case "stale-segment":
            raw[at:] = bytes(len(raw) - at)  # a copy from before the rest was written
        case "segment-of-another-log":
            raw[:size] = other.segments[start]
    path.write_bytes(raw)
    if kind == "missing-segment":
        path.unlink()
    elif kind == "first-segment-missing":
        segment_of(folder, 0, size)[0].unlink()
    elif kind == "swapped-segments":
        third = segment_of(folder, starts[2], size)[0]
        content = third.read_bytes()
        third.write_bytes(raw)
        path.write_bytes(content)

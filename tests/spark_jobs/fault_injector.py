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

"""What a power cut leaves on a disk: the one rule of the disks in memory (raft/simulated_disk.py, sim/file_system.py).

Of what was written and not synced any part is kept, block by block, and one block may be torn. Of names that were
changed in a directory which was not synced each change is kept or not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TypeVar

Write = tuple[int, bytes]  # offset, data
T = TypeVar("T")


class Keep(Enum):
    """What a power cut keeps of what was not synced."""

    NONE = "none"
    ALL = "all"
    PREFIX = "prefix"
    ANY = "any"


def put(target: bytearray, offset: int, data: bytes) -> None:
    """Write into a byte array, growing it."""
    if len(target) < offset + len(data):
        target.extend(bytes(offset + len(data) - len(target)))
    target[offset : offset + len(data)] = data


def blocks(writes: Iterable[Write], size: int) -> list[Write]:
    """Cut writes where a block of `size` bytes of the file ends."""
    out = []
    for offset, data in writes:
        position = 0
        while position < len(data):
            length = min(size - (offset + position) % size, len(data) - position)
            out.append((offset + position, data[position : position + length]))
            position += length
    return out


def kept_writes(writes: Iterable[Write], size: int, keep: Keep, rng: random.Random) -> list[Write]:
    """Choose the blocks that reached the platter, in the order in which they did; the last one is perhaps torn."""
    found = blocks(writes, size)
    if keep is Keep.NONE:
        return []
    if keep is Keep.ALL:
        return found
    if keep is Keep.PREFIX:
        kept = found[: rng.randint(0, len(found))]
    else:
        kept = [piece for piece in found if rng.random() < 0.5]
        rng.shuffle(kept)
    if found and rng.random() < 0.5:
        offset, data = rng.choice(found)
        kept.append((offset, data[: rng.randrange(len(data) + 1)]))
    return kept


def kept_names(now: dict[Path, T], durable: dict[Path, T], keep: Keep, rng: random.Random) -> dict[Path, T]:
    """Return the names that are there when the power comes back."""
    names = dict(durable)
    for path in sorted(now.keys() | durable.keys()):
        changed = now.get(path) is not durable.get(path)
        if changed and (keep is Keep.ALL or (keep is not Keep.NONE and rng.random() < 0.5)):
            names.pop(path, None)
            if path in now:
                names[path] = now[path]
    return names

"""What a power cut leaves on a disk: the one rule of the disks in memory (raft/simulated_disk.py,
sim/file_system.py).

Of what was written and not synced any part is kept, block by block, and one block may be torn; that holds for
what went past the page cache, too, since a disk has a cache of its own. Of names that were changed in a
directory which was not synced each change is kept or not, but a move is one change: no file loses both its
names, and a folder is at its old place or at its new one with all that is in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Write(NamedTuple):
    """Bytes on their way to the platter."""

    offset: int
    data: bytes
    is_direct: bool = False  # past the page cache: a failed sync takes no page with it


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
    for offset, data, is_direct in writes:
        position = 0
        while position < len(data):
            length = min(size - (offset + position) % size, len(data) - position)
            out.append(Write(offset + position, data[position : position + length], is_direct))
            position += length
    return out


def kept_writes(writes: Iterable[Write], size: int, keep: Keep, rng: random.Random) -> list[Write]:
    """Choose the blocks that reached the platter, in the order in which they did; the last one is perhaps
    torn.
    """
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
        offset, data, is_direct = rng.choice(found)
        kept.append(Write(offset, data[: rng.randrange(len(data) + 1)], is_direct))
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
    known, found = _ids(durable), _ids(names)
    for path in sorted(now):
        if id(now[path]) in known - found:
            names[path] = now[path]
    return names


def _ids(names: dict[Path, T]) -> set[int]:
    return {id(inode) for inode in names.values()}


def relocate(names: dict[Path, T], old: Path, new: Path) -> None:
    """Move all that is in a folder, and the folder."""
    for name in [name for name in names if old == name or old in name.parents]:
        names[new / name.relative_to(old)] = names.pop(name)


@dataclass(slots=True)
class _Move:
    old: Path
    new: Path
    unsynced: set[Path]  # the folders that hold the two names


@dataclass(slots=True)
class FolderMoves:
    """Moves of folders that a power cut may take back, oldest first."""

    _moves: list[_Move] = field(default_factory=list)

    def add(self, old: Path, new: Path) -> None:
        """Note a move."""
        self._moves.append(_Move(old, new, {old.parent, new.parent}))

    def sync(self, folder: Path) -> None:
        """A folder was synced: moves both of whose names are synced stay."""
        for move in self._moves:
            move.unsynced.discard(folder)
        self._moves = [move for move in self._moves if move.unsynced]

    def taken_back(self, keep: Keep, rng: random.Random) -> list[tuple[Path, Path]]:
        """Choose the moves that did not get to the platter; return how each is undone, (from, to), in this
        order.
        """
        if keep is Keep.ANY:
            lost = [move for move in self._moves if rng.random() < 0.5]
        elif keep is Keep.PREFIX:
            lost = self._moves[rng.randint(0, len(self._moves)) :]
        else:
            lost = self._moves if keep is Keep.NONE else []
        return [(move.new, move.old) for move in reversed(lost)]

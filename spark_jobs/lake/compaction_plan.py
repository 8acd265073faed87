"""Compaction plan: which small files of a partition become one. Pure.

Owns: when it is worth it. Must not: do I/O. Files of different partitions are never merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from .lake_state import LakeCommit, LakeFile, LakeState

#: Bytes of a merged file, about; files of half of it are left alone.
TARGET_BYTES: Final = 128 << 20
#: Small files of the current hour that are merged although more of them will come.
MANY: Final = 32


def compactions(
    files: Iterable[LakeFile], *, everything: bool = False, target: int = TARGET_BYTES
) -> list[tuple[LakeFile, ...]]:
    """Return groups of files that each become one.

    Partitions of past hours are merged: their topic has messages of a later hour. One of the current hour is
    when it has MANY small files, or with `everything`.
    """
    partitions: dict[tuple[str, int], list[LakeFile]] = {}
    newest: dict[str, int] = {}
    for file in files:
        newest[file.topic] = max(newest.get(file.topic, 0), file.hour)
        if file.size < target // 2:
            partitions.setdefault((file.topic, file.hour), []).append(file)
    found: list[tuple[LakeFile, ...]] = []
    for (topic, hour), small in sorted(partitions.items()):
        if everything or hour < newest[topic] or len(small) >= MANY:
            found += _groups(sorted(small, key=lambda file: file.path), target)
    return found


def _groups(files: list[LakeFile], target: int) -> list[tuple[LakeFile, ...]]:
    groups: list[list[LakeFile]] = []
    room = 0
    for file in files:
        if not groups or file.size > room:
            groups.append([])
            room = target
        groups[-1].append(file)
        room -= file.size
    return [tuple(group) for group in groups if len(group) > 1]


def compaction_of(
    state: LakeState, merged: Mapping[tuple[LakeFile, ...], LakeFile], *, now_ms: int
) -> LakeCommit:
    """Return the commit that puts merged files in place of those that they were made of."""
    number = state.number + 1
    add = tuple(
        replace(file, path=f"{file.folder}/{number:012d}-{place:04d}.parquet")
        for place, file in enumerate(merged.values())
    )
    remove = tuple(file.path for group in merged for file in group)
    return LakeCommit(number, "compaction", state.lake, now_ms, state.positions, add, remove)

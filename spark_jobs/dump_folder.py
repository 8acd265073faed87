"""Folder of dumps: its nodes, their manifests, and whether they can be compared at all.

Owns: reading `DUMP/<node>/manifest.json` (with several broker groups `DUMP/<group>/<node>/manifest.json`),
the refusals (exit code 2), and cutting segments into slices.
Must not: trust a manifest further than needed to start. Its claims are checked against the files and the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from ledgermq.proto.digest_dump import FETCHED
from ledgermq.proto.digest_file import DIGESTS
from ledgermq.proto.dump_manifest import MANIFEST, DumpManifest, manifest_fields
from ledgermq.proto.errors import CorruptError, NewerFormatError
from ledgermq.proto.group_ids import are_related

from .errors import SparkJobError

DEFAULT_SLICE_SIZE: Final = 128 << 20
_TAKE_AGAIN: Final = "Take the dump again: ledgermq dump DIR"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One CommitLog file of a dump. `start` is its physical offset, `size` its real number of bytes."""

    start: int
    size: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDump(DumpManifest):
    """One node's dump. Offsets are physical. Claims come from the manifest, `segments` from the folder."""

    folder: str
    segments: tuple[SegmentFile, ...]
    fetched: tuple[SegmentFile, ...] = ()  # ranges fetched after a digest dump (proto/digest_dump.py)


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of one segment file that one task reads. Small, because it is pickled once per task."""

    folder: str
    node: str
    path: str
    segment_start: int
    segment_end: int
    lo: int
    hi: int
    at_boundary: bool
    commit_index: int
    commit_offset: int
    queues: str  # "complete", "partial" or "none": the dump's claim about its consume queues
    # (start, size, crc32c) of the raw blocks that start in the slice
    checksums: tuple[tuple[int, int, int], ...]


def group_folders(folder: Path) -> list[Path]:
    """Return the folders with one broker group's dumps each: `folder` itself, or its sub-folders, by name."""
    found = {manifest.parent.parent for manifest in folder.glob(f"*/*/{MANIFEST}")}
    if not found or any(folder.glob(f"*/{MANIFEST}")):
        return [folder]
    # A folder without a finished dump must be refused, not skipped.
    unfinished = {
        path.parent.parent for part in ("commitlog", DIGESTS) for path in folder.glob(f"*/*/{part}")
    }
    return sorted(found | unfinished)


def find_dumps(folder: Path) -> list[NodeDump]:
    """Read all dumps below `folder`, ordered by node id, and check that they belong together.

    Raises: SparkJobError.
    """
    if not folder.is_dir():
        raise SparkJobError(
            f"{folder} is not a folder. Point at the folder that `ledgermq dump DIR` has written."
        )
    manifests = sorted(folder.glob(f"*/{MANIFEST}"))
    if (folder / MANIFEST).is_file():
        raise SparkJobError(
            f"{folder} is the dump of one node. Replicas are compared with each other: run"
            f" ledgermq check {folder.resolve().parent}"
        )
    _refuse_unfinished(folder, {manifest.parent for manifest in manifests})
    if not manifests:
        inside = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
        hint = (
            f" It looks like a node's data folder; dump it first: ledgermq dump --data {folder} DIR."
            if (folder / "commitlog").is_dir()
            else f" Write dumps there: ledgermq dump {folder}."
        )
        raise SparkJobError(f"{folder} holds no dump (no */{MANIFEST}; inside: {inside}).{hint}")
    dumps = sorted((read_dump(path.parent) for path in manifests), key=lambda dump: dump.node)
    _refuse_strangers(dumps)
    return dumps


def read_dump(folder: Path) -> NodeDump:
    """Read one node's manifest and list its files. Raises: SparkJobError."""
    path = folder / MANIFEST
    try:
        fields = manifest_fields(path.read_bytes())
    except OSError as error:
        raise SparkJobError(f"{path} cannot be read: {error}. {_TAKE_AGAIN}") from None
    except CorruptError as error:
        raise SparkJobError(f"{path}: {error.reason}. {_TAKE_AGAIN}") from None
    except NewerFormatError as error:
        raise SparkJobError(
            f"{path} has format version {error.found}; this build reads version {error.supported}."
            " Check it with the LedgerMQ that wrote it, or a newer one."
        ) from None
    fetched = _list_files(folder, FETCHED) if fields["has_digests"] else ()
    segments = _list_files(folder, "commitlog")
    return NodeDump(folder=str(folder.resolve()), segments=segments, fetched=fetched, **fields)


def _list_files(folder: Path, part: str) -> tuple[SegmentFile, ...]:
    files = sorted(path for path in (folder / part).glob("*") if path.name.isdecimal())
    return tuple(SegmentFile(int(path.name), path.stat().st_size, f"{part}/{path.name}") for path in files)


def _refuse_unfinished(folder: Path, finished: set[Path]) -> None:
    for path in sorted([*folder.glob("*/commitlog"), *folder.glob(f"*/{DIGESTS}")]):
        if path.parent not in finished and not (path.parent / "identity").exists():
            raise SparkJobError(
                f"the dump in {path.parent} was not finished: {MANIFEST}, which is written last, is missing."
                f" {_TAKE_AGAIN}"
            )


def _refuse_strangers(dumps: Sequence[NodeDump]) -> None:
    """Refuse dumps that cannot be replicas of each other."""
    first = dumps[0]
    for dump in dumps[1:]:
        if (dump.cluster, dump.group) != (first.cluster, first.group):
            raise SparkJobError(
                f"{first.folder} is of broker group {first.group} in cluster {first.cluster}, {dump.folder} "
                f"of broker group {dump.group} in cluster {dump.cluster}. Only replicas of one broker group "
                "can be compared: put the dumps of each into a sub-folder of their own."
            )
    for i, dump in enumerate(dumps):
        for other in dumps[:i]:
            if not are_related(dump.group_id, dump.former_group_ids, other.group_id, other.former_group_ids):
                raise SparkJobError(
                    f"{other.folder} and {dump.folder} are of two broker groups that are both called "
                    f"{dump.group} in cluster {dump.cluster} (ids {other.group_id:016x} and "
                    f"{dump.group_id:016x}): two deployments, or the broker group was made anew in between. "
                    "Only replicas of one broker group can be compared: remove the dumps of the other one."
                )
            if dump.incarnation == other.incarnation or dump.node == other.node:
                same = "incarnation" if dump.incarnation == other.incarnation else "node"
                name = dump.incarnation if same == "incarnation" else dump.node
                raise SparkJobError(
                    f"{other.folder} and {dump.folder} are two dumps of the same {same} {name}. A replica "
                    "compared with itself proves nothing: remove one of the two folders."
                )


def slices_of(
    dump: NodeDump,
    slice_size: int = DEFAULT_SLICE_SIZE,
    ranges: Sequence[tuple[int, int]] | None = None,
    files: str = "log",
) -> Iterator[Slice]:
    """Cut the segments of a dump into slices of about `slice_size` bytes, at the manifest's index points.

    `ranges` limits the result to slices that touch one of those offset ranges (lo, hi). `files`: "log",
    "fetched" (what was fetched afterwards), or "all".
    """
    queues = ("complete" if dump.queues_complete else "partial") if dump.has_queues else "none"
    points = sorted(offset for _, offset in dump.index_points)
    checksums = sorted((at, *rest) for at, rest in dump.checksums.items())
    starts = [at for at, _, _ in checksums]
    chosen = {"log": dump.segments, "fetched": dump.fetched, "all": dump.segments + dump.fetched}[files]
    for segment in chosen:
        segment_end = segment.start - segment.start % dump.segment_size + dump.segment_size
        end = min(segment.start + segment.size, segment_end)
        inside = points[bisect_left(points, segment.start) : bisect_left(points, end)]
        for lo, hi in pairwise(_cuts(inside, segment.start, end, slice_size)):
            if ranges is None or any(low < hi and lo < high for low, high in ranges):
                yield Slice(
                    dump.folder, dump.node, segment.path, segment.start, segment_end, lo, hi,
                    lo == segment.start, dump.commit_index, dump.commit_offset, queues,
                    tuple(checksums[bisect_left(starts, lo) : bisect_left(starts, hi)]),
                )  # fmt: skip


def _cuts(points: Sequence[int], start: int, end: int, slice_size: int) -> list[int]:
    cuts = [start]
    for offset in points:
        if offset % 8 == 0 and cuts[-1] + slice_size <= offset < end:
            cuts.append(offset)
    return [*cuts, end] if end > start else []

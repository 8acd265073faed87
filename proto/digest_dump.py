"""Digest dump of one node: its block digests, and the bytes of its log that it holds beside them.

    manifest.json, blockdigest/<segment>   digests, as far as the node could make them (digest_file.py)
    commitlog/<offset>                     bytes that no digest covers, up to the commit point
    fetched/<offset>                       bytes of single blocks, fetched afterwards to be compared

Owns: reading those files, the refusal of damaged and foreign ones, and which bytes would have to be fetched.
Must not: fetch, or compare nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from .block_digest import BLOCK_SIZE, DIGEST_DTYPE, Digests, Int64s
from .digest_file import DIGESTS, MAX_FILE_SIZE, SegmentDigests, decode_digests
from .dump_manifest import DumpManifest
from .dumped_log import UnusableDumpError
from .errors import CorruptError, LayoutError

FETCHED: Final = "fetched"
_AGAIN: Final = "Take the digests again: ledgermq dump --digests DIR"


@dataclass(frozen=True, slots=True, eq=False)
class NodeDigests:
    """Digests of one node, in log order. A block has a row per segment that it touches."""

    folder: Path
    manifest: DumpManifest
    segments: tuple[SegmentDigests, ...]
    rows: Digests
    ends: Int64s  # per row: physical offset just past its last entry

    @property
    def read_ms(self) -> tuple[int, int]:
        """When the node read the oldest and the newest of what is digested; (0, 0): nothing is."""
        times = [(each.read_from_ms, each.read_to_ms) for each in self.segments]
        return (min(a for a, _ in times), max(b for _, b in times)) if times else (0, 0)

    def wanted(self, blocks: Collection[int]) -> list[tuple[int, int]]:
        """Return the ranges [lo, hi) of blocks whose bytes are not in the folder, in log order."""
        chosen = np.flatnonzero(np.isin(self.rows["block"], np.array(sorted(blocks), np.int64)))
        ranges = zip(self.rows["first_offset"][chosen].tolist(), self.ends[chosen].tolist(), strict=True)
        return [(lo, hi) for lo, hi in ranges if self._fetched_size(lo) != hi - lo]

    def _fetched_size(self, lo: int) -> int:
        try:
            return (self.folder / FETCHED / f"{lo:020d}").stat().st_size
        except FileNotFoundError:
            return -1

    def drop_partly_fetched(self) -> None:
        """Remove what an interrupted fetch left behind. Raises: OSError."""
        whole = dict(zip(self.rows["first_offset"].tolist(), self.ends.tolist(), strict=True))
        for path in (self.folder / FETCHED).glob("*"):
            lo = int(path.name) if path.name.isdecimal() else -1
            if whole.get(lo, -1) - lo != path.stat().st_size:
                path.unlink()


def read_node_digests(folder: Path, manifest: DumpManifest) -> NodeDigests:
    """Read the digests of a digest dump. Raises: UnusableDumpError (damaged, missing, of another log)."""
    segments = [
        _read(folder, path, manifest)
        for path in sorted(manifest.file_sizes)
        if path.startswith(f"{DIGESTS}/")
    ]
    for before, each in zip([None, *segments], segments, strict=False):
        _check_place(folder, manifest, before, each)
    rows = [each.rows for each in segments]
    ends = [end for each in segments for end in each.ends()]
    return NodeDigests(
        folder, manifest, tuple(segments),
        np.concatenate(rows) if rows else np.empty(0, DIGEST_DTYPE), np.array(ends, np.int64),
    )  # fmt: skip


def _read(folder: Path, path: str, manifest: DumpManifest) -> SegmentDigests:
    name = path.removeprefix(f"{DIGESTS}/")
    file = folder / DIGESTS / name
    if not (name.isascii() and name.isdecimal()):
        raise UnusableDumpError(f"{folder}: its manifest names a file of digests {path!r}. {_AGAIN}")
    try:
        with file.open("rb") as opened:
            digests = decode_digests(opened.read(MAX_FILE_SIZE + 1))
    except OSError as error:
        raise UnusableDumpError(f"{file} cannot be read: {error.strerror}. {_AGAIN}") from None
    except CorruptError as error:
        raise UnusableDumpError(f"{file} is damaged: {error.reason}. {_AGAIN}") from None
    except LayoutError as error:
        raise UnusableDumpError(f"{file}: {error}. Use the LedgerMQ that wrote it, or a newer one") from None
    if str(digests.incarnation) != manifest.incarnation or digests.start != int(name):
        raise UnusableDumpError(
            f"{file} is of another log than its manifest: of segment {digests.start:,} of the data folder "
            f"{digests.incarnation}, not of {manifest.node}'s ({manifest.incarnation}). {_AGAIN}"
        )
    return digests


def _check_place(
    folder: Path, manifest: DumpManifest, before: SegmentDigests | None, digests: SegmentDigests
) -> None:
    """Check that digests continue those before them. Raises: UnusableDumpError."""
    start, first = digests.start, digests.first
    fits = (
        start % manifest.segment_size == 0
        and digests.end <= min(start + manifest.segment_size, manifest.commit_offset)
        and start >= manifest.first_offset
    )
    if before is not None and before.end == start:
        fits &= (first.prev_crc, first.index) == (before.last.crc, before.last.index + 1)
    elif start == manifest.first_offset:
        fits &= (first.prev_crc, first.index) == (manifest.prev_crc, manifest.first_index)
    if not fits:
        raise UnusableDumpError(
            f"{folder / DIGESTS / f'{start:020d}'} is of another log than the files beside it. {_AGAIN}"
        )


def edge_blocks(manifests: Sequence[DumpManifest]) -> list[int]:
    """Return the blocks with a log start, log end or commit point of any node.

    Digests decide nothing there.
    """
    edges = set()
    for manifest in manifests:
        for offset in (manifest.first_offset, manifest.commit_offset):
            if offset % BLOCK_SIZE:
                edges.add(offset // BLOCK_SIZE)
    return sorted(edges)

"""Dump of a running node: writes the streamed files to a folder.

Owns: the files that a node may write. Must not: interpret the files, or print.
Invariant: the folder of a node is complete exactly when it has a manifest.json, which is written last.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import grpc
import grpc.aio

from ledgermq.proto import admin_pb2 as pb
from ledgermq.proto.admin_pb2_grpc import AdminServiceStub
from ledgermq.proto.digest_dump import FETCHED
from ledgermq.proto.digest_file import DIGESTS
from ledgermq.proto.dump_manifest import MANIFEST
from ledgermq.proto.foreign_text import safe_text

from ..cluster.channels import open_channel
from ..errors import BrokerUnreachableError, LedgerMQError, UsageError, error_of

_CHUNK_SECONDS = 30.0  # a node that sends nothing for this long is given up
#: Limits of one call for ranges of the log, below those of a node.
_CALL_RANGES = 10_000
_CALL_BYTES = 256 << 20


@dataclass(slots=True)
class DumpResult:
    """Size of one node's dump."""

    files: int = 0
    bytes: int = 0


async def dump_node(
    name: str,
    address: str,
    to: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    digests: bool = False,
    reread: bool = False,
) -> DumpResult:
    """Write the dump of the node at `address` to `to/name`, replacing an older one.

    `digests`: block digests in place of the log, as far as it is committed in whole blocks. `reread`: the
    node reads its log for them now.

    Raises: BrokerUnreachableError (also when it sends nothing for 30 s), RefusedError, UsageError (the folder
    cannot be written), LedgerMQError (names that lead elsewhere, a dump without its end).
    """
    folder = to / folder_name(name)
    _make_empty(folder)
    result = await _call(name, address, pb.DumpRequest(digests=digests, reread=reread), folder, on_progress)
    if not (folder / MANIFEST).exists():
        raise LedgerMQError(
            f"the dump of {name} ended without its manifest",
            "The node stopped while it sent it",
            f"Try again: ledgermq dump {to}",
        )
    return result


async def fetch_ranges(name: str, address: str, to: Path, ranges: Sequence[tuple[int, int]]) -> DumpResult:
    """Fetch bytes of a node's committed log, [lo, hi) each, into the files `to/name/fetched/<lo>`.

    Raises: what `dump_node` raises.
    """
    result = DumpResult()
    for part in _calls(ranges):
        request = pb.DumpRequest(ranges=[pb.LogRange(begin=lo, end=hi) for lo, hi in part])
        done = await _call(name, address, request, to / folder_name(name), lambda done, total: None)
        result.files += done.files
        result.bytes += done.bytes
    return result


def _calls(ranges: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Divide ranges among calls of a size that nodes accept."""
    part: list[tuple[int, int]] = []
    size = 0
    for lo, hi in ranges:
        if part and (len(part) == _CALL_RANGES or size + hi - lo > _CALL_BYTES):
            yield part
            part, size = [], 0
        part.append((lo, hi))
        size += hi - lo
    if part:
        yield part


async def _call(
    name: str, address: str, request: pb.DumpRequest, folder: Path, on_progress: Callable[[int, int], None]
) -> DumpResult:
    result = DumpResult()
    newer = request.digests or bool(request.ranges)
    async with open_channel(address) as channel:
        try:
            call = AdminServiceStub(channel).Dump(request)
            if newer:
                await _require_knowledge(name, call)
            await _receive(call, folder, result, on_progress)
        except TimeoutError as error:
            raise BrokerUnreachableError(address, f"It sent nothing for {_CHUNK_SECONDS:g} s") from error
        except grpc.aio.AioRpcError as error:
            raise BrokerUnreachableError(address, error.details() or error.code().name) from error
    return result


async def _require_knowledge(name: str, call: grpc.aio.UnaryStreamCall[pb.DumpRequest, pb.DumpChunk]) -> None:
    """Read the first chunk, which has no path. An older node would send its whole log instead.

    Raises: RefusedError, LedgerMQError, TimeoutError.
    """
    async with asyncio.timeout(_CHUNK_SECONDS):
        chunk = await call.read()
    if not isinstance(chunk, pb.DumpChunk):
        return
    if chunk.HasField("refusal") and chunk.refusal.code:
        raise error_of(chunk.refusal)
    if chunk.path:
        call.cancel()
        raise LedgerMQError(
            f"{name} runs a version of LedgerMQ that has no block digests",
            "It would have sent its whole log",
            "Update it, or take whole dumps: ledgermq dump DIR",
        )


async def _receive(
    call: grpc.aio.UnaryStreamCall[pb.DumpRequest, pb.DumpChunk],
    folder: Path,
    result: DumpResult,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write chunks as they arrive: file after file, each in order. Raises: TimeoutError."""
    current, file = "", None
    try:
        while True:
            async with asyncio.timeout(_CHUNK_SECONDS):
                chunk = await call.read()
            if not isinstance(chunk, pb.DumpChunk):
                return  # the end of the stream
            if chunk.HasField("refusal") and chunk.refusal.code:
                raise error_of(chunk.refusal)
            if not chunk.path:
                continue
            if chunk.path != current or file is None:
                if file is not None:
                    file.close()
                current, file = chunk.path, _open(folder, chunk.path)
                result.files += 1
            file.seek(chunk.offset)
            file.write(chunk.data)
            result.bytes += len(chunk.data)
            on_progress(result.bytes, chunk.total_bytes)
            await asyncio.sleep(0)
    finally:
        if file is not None:
            file.close()


def _open(folder: Path, path: str) -> BinaryIO:
    """Open a file of the dump; refuse a path out of the folder (attack or defect). Raises: LedgerMQError."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise LedgerMQError(
            f'the node sent a file name that is not allowed: "{safe_text(path)}"', "Nothing was written there"
        )
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.open("wb")


def _make_empty(folder: Path) -> None:
    """Remove an older dump, and nothing else. Raises: UsageError."""
    if folder.exists():
        ours = {MANIFEST, f"{MANIFEST}.part", "commitlog", "consumequeue", "state", DIGESTS, FETCHED}
        others = [entry.name for entry in folder.iterdir() if entry.name not in ours]
        if others:
            raise UsageError(
                f"{folder} is not a dump (it holds {others[0]})",
                "Nothing was changed",
                "Choose another folder",
            )
        (folder / MANIFEST).unlink(missing_ok=True)  # first: a partly removed dump must not look complete
        shutil.rmtree(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)  # it holds other people's messages
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made: {error.strerror}", "", "Choose a folder that can be written"
        ) from error


def folder_name(name: str) -> str:
    """Return a node's name if it is safe as the name of a folder. Raises: LedgerMQError."""
    if PurePosixPath(name).name != name or name in ("", ".."):
        raise LedgerMQError(f'"{name}" cannot be the name of a folder', "Nothing was written for it")
    return name

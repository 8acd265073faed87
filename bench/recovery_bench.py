"""Measure recovery times: opening the log after a stop and after a crash, and catching up with the leader.

    python bench/recovery_bench.py [--gib 4] [--entry-kib 64] [--folder DIR] [--only restart|catch-up]
                                   [--profile PREFIX]

Restart: writes a log through the CommitLog layer (full segments of 1 GiB, random payloads), kills the writer
with SIGKILL, and times `open_storage` in a new process. "cold": the files were evicted from the page cache
before.
Catch-up: a broker group of three RaftNode processes with gRPC between them. One is stopped, the others take
`--gib` of entries, it starts again. The time runs from opening its folder until everything is durable there.
Prints one JSON object per line. On a busy machine the CPU seconds say more than the wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import uvloop

# As a broker does, before gRPC is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

from ledgermq.proto.entry import EntryHeader, EntryKind
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.errors import NotLeaderError, TransferFailedError
from ledgermq.raft.folder.storage import StorageConfig, create_data_folder, open_storage
from ledgermq.raft.node.raft_node import RaftNode
from ledgermq.raft.types import LogIndex, NodeId, Term

SEGMENT = 1 << 30
NAMES = ("n1", "n2", "n3")
BATCH_BYTES = 8 << 20


class CountingStateMachine:
    """Counts applied entries, and nothing else. `applied`: what its checkpoint would contain at the start."""

    def __init__(self, applied: int) -> None:
        self.last_applied_index = LogIndex(applied)

    def load(self) -> LogIndex:
        return self.last_applied_index

    def apply(self, entries: Sequence[tuple[EntryHeader, memoryview]]) -> None:
        self.last_applied_index = LogIndex(entries[-1][0].index)

    def on_leader_ready(self, term: Term, timestamp: int) -> None: ...

    def on_leader_lost(self, term: Term) -> None: ...

    def on_leader_changed(self, leader_id: NodeId | None, term: Term) -> None: ...


def payloads(size: int) -> Iterator[bytes]:
    """Yield payloads that neither a disk nor a network can compress."""
    noise = os.urandom(size + 4096)
    while True:
        for shift in range(0, 4096, 8):
            yield noise[shift : shift + size]


# --- restart ------------------------------------------------------------------------------------------------
def storage_config(folder: Path) -> StorageConfig:
    return StorageConfig(
        data_dir=folder, cluster_id="bench", group="g0", node_id=NodeId("n1"), segment_size=SEGMENT
    )


def write_log(folder: Path, total: int, size: int) -> None:
    """Append `total` bytes durably, as a node does, then die like a killed process."""
    config = storage_config(folder)
    create_data_folder(config, RealFileSystem())
    storage = open_storage(config, RealFileSystem())
    calls: queue.SimpleQueue[object] = queue.SimpleQueue()
    durable = 0

    def note(seq: int) -> None:
        nonlocal durable
        durable = seq

    storage.start(
        calls.put,
        on_durable=note,
        on_failed=lambda error: sys.exit(str(error)),
        on_disk_full=lambda full: None,
    )
    log, seq, source = storage.log, 0, payloads(size)
    while log.end_offset < total:
        end = log.end_offset + BATCH_BYTES
        while log.end_offset < end:
            log.stage_entry(
                EntryKind.RECORDS, [next(source)], section_count=1, index=LogIndex(log.last_index + 1),
                term=Term(1), timestamp=time.time_ns() // 1_000_000,
            )  # fmt: skip
        seq += 1
        log.persist(seq)
        while durable < seq - 2 or (log.end_offset >= total and durable < seq):
            call = calls.get()
            assert callable(call)
            call()
    os.kill(os.getpid(), signal.SIGKILL)


def time_opening(folder: Path, profile: str) -> None:
    """Open and close in order, and print the time taken."""
    profiler = cProfile.Profile() if profile else contextlib.nullcontext()
    begin, cpu = time.perf_counter(), time.process_time()
    with profiler:
        storage = open_storage(storage_config(folder), RealFileSystem())
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    if isinstance(profiler, cProfile.Profile):
        profiler.dump_stats(profile)
    found = {
        "seconds": round(seconds, 3),
        "cpu_s": round(cpu, 3),
        "scanned_MiB": storage.recovered.scanned_bytes >> 20,
        "log_MiB": storage.log.end_offset >> 20,
        "clean_stop": storage.recovered.clean_stop,
    }
    calls: queue.SimpleQueue[object] = queue.SimpleQueue()
    storage.start(
        calls.put, on_durable=lambda seq: None, on_failed=lambda error: None, on_disk_full=lambda full: None
    )
    storage.close()
    print(json.dumps(found), flush=True)


def forget_cached(folder: Path) -> None:
    """Evict a folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def measure_restarts(folder: Path, options: argparse.Namespace) -> None:
    data = folder / "n1"
    begin = time.perf_counter()
    done = child(options, "write", str(data))
    assert done.returncode == -signal.SIGKILL, done.returncode
    report("the log was written", seconds=round(time.perf_counter() - begin, 1))
    state = {name: (data / name).read_bytes() for name in ("identity", "hardstate", "manifest")}

    def crash() -> None:
        """Restore the records as the kill left them: no clean stop, the floor of that moment."""
        (data / "hardstate").write_bytes(state["hardstate"])
        newest = max((data / "entryindex").iterdir(), default=None)
        if newest is not None and len(list((data / "entryindex").iterdir())) > len(sealed):
            newest.unlink()  # of the open segment, which only a clean stop writes

    sealed = sorted((data / "entryindex").iterdir())
    for cold in (True, False):
        for what in ("after a crash", "after a crash that lost all index files", "after a clean stop"):
            if "crash" in what:
                crash()
            if "lost" in what:
                for path in (data / "entryindex").iterdir():
                    path.unlink()
            if cold:
                forget_cached(data)
            profile = f"{options.profile}.{what.split()[-1]}" if options.profile else ""
            done = child(options, "open", str(data), profile, capture=True)
            report(f"open {what}", cold=cold, **json.loads(done.stdout))


# --- catch-up -----------------------------------------------------------------------------------------------
async def serve(name: str, options: argparse.Namespace) -> None:
    """Run one node.

    The first one fills the log on request. A follower reports when it holds entry `--until`.
    """
    addresses = options.addresses.split(",")
    members = tuple(Member(NodeId(n), a) for n, a in zip(NAMES, addresses, strict=True))
    config = RaftConfig(
        cluster_id="bench", group="g0", node_id=NodeId(name), members=members,
        data_dir=Path(options.folder) / name, segment_size=SEGMENT,
        election_ms_min=4000, election_ms_max=8000,  # a busy machine must not cost leadership
    )  # fmt: skip
    profiler = cProfile.Profile() if options.profile else None
    begin = time.perf_counter()
    node = RaftNode(config, CountingStateMachine(options.applied))
    await node.start()
    opened = time.perf_counter() - begin
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if profiler:
        profiler.enable()
    if name == NAMES[0]:
        await lead(node, options)
    elif options.until:
        first = node.log.end_offset
        while min(node.last_index, node.status().durable_index) < options.until:  # noqa: ASYNC110 (measures)
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - begin
        size = node.log.end_offset - first
        report("catch-up", **{
            "MB/s": round(size / seconds / 1e6), "MiB": size >> 20, "seconds": round(seconds, 2),
            "of which opening": round(opened, 2), "cpu_s": round(time.process_time(), 2),
        })  # fmt: skip
    else:
        while not stop.is_set():  # the first node measures: any other leader transfers leadership
            if node.is_leader_ready:
                with contextlib.suppress(TransferFailedError, NotLeaderError):
                    await node.transfer_leadership(NodeId(NAMES[0]))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.1)
    if profiler:
        profiler.disable()
        profiler.dump_stats(f"{options.profile}.{name}")
    await node.stop(transfer=False)


async def lead(node: RaftNode, options: argparse.Namespace) -> None:
    while not node.is_leader_ready or node.status().voters_reachable < len(NAMES):  # noqa: ASYNC110 (set-up)
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    before = time.process_time()
    while (line := (await asyncio.to_thread(sys.stdin.readline)).strip()) == "fill":
        report("the leader until then", cpu_s=round(time.process_time() - before, 2))
        await fill(node, options)
        print(node.last_index, flush=True)
        before = time.process_time()
    assert not line, line
    report("the leader until then", cpu_s=round(time.process_time() - before, 2))


async def fill(node: RaftNode, options: argparse.Namespace) -> None:
    """Commit `--gib` more with the running nodes."""
    source, waiting = payloads(options.entry_kib << 10), []
    wanted = node.log.end_offset + options.gib * 2**30
    while node.log.end_offset < wanted:
        waiting.append(node.propose([next(source)], 1))
        if len(waiting) >= 64:
            await waiting.pop(0).committed
    for proposal in waiting:
        await proposal.committed


def measure_catch_up(folder: Path, options: argparse.Namespace) -> None:
    addresses = ",".join(free_address() for _ in NAMES)
    running: dict[str, subprocess.Popen[str]] = {}

    def start(name: str, *more: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE if name == NAMES[0] else None
        command = [*own_command(options), "--folder", str(folder), "--addresses", addresses, *more]
        command += ["--child", "serve", name]
        running[name] = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe)
        return running[name]

    try:
        for name in NAMES:
            start(name)
        leader = running[NAMES[0]]
        assert leader.stdin is not None and leader.stdout is not None
        answer(leader.stdout, "ready")
        end(running[NAMES[2]])
        before = "0"
        for cold in (False, True):
            print("fill", file=leader.stdin, flush=True)
            print(answer(leader.stdout), flush=True)
            last = answer(leader.stdout)
            if cold:
                forget_cached(folder)
            report("catch-up begins", cold=cold)
            start(NAMES[2], "--applied", before, "--until", last).wait()
            before = last
        leader.stdin.close()
        print(answer(leader.stdout), flush=True)
        leader.wait()
    finally:
        for process in running.values():
            end(process)


def answer(stream: IO[str], wanted: str = "") -> str:
    line = stream.readline().strip()
    assert line and (not wanted or line == wanted), f"the leader said {line!r}"
    return line


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()


# --- small things -------------------------------------------------------------------------------------------
def report(what: str, **figures: object) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def own_command(options: argparse.Namespace) -> list[str]:
    command = [sys.executable, __file__, "--gib", str(options.gib), "--entry-kib", str(options.entry_kib)]
    return [*command, "--profile", options.profile] if options.profile else command


def child(options: argparse.Namespace, *task: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*own_command(options), "--child", *task], check=False, text=True, capture_output=capture
    )


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast a node is back")
    parser.add_argument("--gib", type=float, default=4.0, help="size of the log")
    parser.add_argument("--entry-kib", type=int, default=64, help="payload of one entry")
    parser.add_argument("--folder", default="", help="where the data goes (default: a temporary folder)")
    parser.add_argument("--only", choices=("restart", "catch-up"), help="measure one of the two")
    parser.add_argument("--profile", default="", help="prefix of cProfile files")
    parser.add_argument("--child", nargs="+", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--addresses", default="", help=argparse.SUPPRESS)
    parser.add_argument("--applied", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    match options.child:
        case ["write", folder]:
            return write_log(Path(folder), int(options.gib * 2**30), options.entry_kib << 10)
        case ["open", folder, profile]:
            return time_opening(Path(folder), profile)
        case ["serve", name]:
            return uvloop.run(serve(name, options))
    folder = Path(options.folder or tempfile.mkdtemp(prefix="recovery-bench-"))
    try:
        for name, measure in (("restart", measure_restarts), ("catch-up", measure_catch_up)):
            if options.only in (None, name):
                below = folder / name
                below.mkdir(parents=True)
                measure(below, options)
                shutil.rmtree(below)
    finally:
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

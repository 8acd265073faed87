"""Measure look-ups by key and by id in a large log, and the cost of their index.

    python -m bench.key_bench [--messages 10000000] [--segment-mib 1024] [--lookups 1000] [--folder DIR]
                              [--rebuild]

A single node takes the messages through its own proposals, without clients: small messages with a key
each, every key four times, in entries of 1,000. Then another process asks it for existing keys, missing keys
and ids; each again after the files were evicted from the page cache. `--rebuild` deletes the index and
measures its reconstruction.
Prints one JSON object per line: latencies and the node's CPU per look-up in ms; how late the node's event
loop was meanwhile (5 ms timers); CPU of the threads that build the index (`items`: while messages arrive,
`runs`: files, and old segments); bytes of log and index.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

import grpc
import numpy as np
import uvloop

from ledgermq.broker.config import BrokerConfig, ListenerConfig
from ledgermq.broker.node import BrokerNode
from ledgermq.broker.reading.key_index import KeyIndex
from ledgermq.broker.state.commands import CreateTopic, MessageType
from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.proto import admin_pb2, admin_pb2_grpc
from ledgermq.proto.entry import HEADER_SIZE
from ledgermq.proto.record import (
    MESSAGE_ID_OFFSET,
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    SectionKind,
    hash_text,
    put_section_header,
    seal_section,
)
from tests.ports import free_ports

from .peers.measure import cpu_seconds

TOPIC, QUEUES, BATCH, BODY = "orders", 4, 1000, 100
COPIES = 4  # messages per key
EPOCH = 7


def key_of(number: int) -> str:
    return f"k{number:09d}"


def id_of(number: int) -> bytes:
    return struct.pack(">QQ", EPOCH, number)


def id_text(number: int) -> str:
    return "01" + id_of(number).hex().upper()


# --- the node -----------------------------------------------------------------------------------------------
def sections(topic_id: int, messages: int) -> Iterator[bytearray]:
    """Yield sections of BATCH records.

    A template is filled with numpy, because encoding each would take minutes.
    """
    encoder = RecordEncoder(TOPIC, born_host="bench")
    record = encoder.encode(SECTION_HEADER_SIZE, bytes(BODY), (id_of(0), id_text(0)), 1, keys=[key_of(0)])
    size, id_at, key_at = len(record), record.index(id_text(0).encode()), record.index(key_of(0).encode())
    rows = np.tile(np.frombuffer(record, np.uint8), (BATCH, 1))
    distances = (SECTION_HEADER_SIZE + np.arange(BATCH, dtype="<u4") * size).astype("<u4")
    rows[:, 4:8] = distances.view(np.uint8).reshape(BATCH, 4)
    ends = [0] * QUEUES
    keys = messages // COPIES
    for first in range(0, messages, BATCH):
        numbers = range(first, first + BATCH)
        ids = b"".join(map(id_of, numbers))
        rows[:, MESSAGE_ID_OFFSET : MESSAGE_ID_OFFSET + 16] = _bytes(ids)
        rows[:, id_at : id_at + 34] = _bytes("".join(map(id_text, numbers)).encode())
        texts = [key_of(number % keys) for number in numbers]
        rows[:, key_at : key_at + 10] = _bytes("".join(texts).encode())
        hashes = np.fromiter(map(hash_text, texts), np.int64, BATCH)
        rows[:, RECORD_HEADER_SIZE : RECORD_HEADER_SIZE + 8] = hashes.view(np.uint8).reshape(BATCH, 8)
        made = bytearray(SECTION_HEADER_SIZE) + rows.tobytes()
        queue = first // BATCH % QUEUES
        put_section_header(
            made, SectionKind.RECORDS, BATCH, topic_id=topic_id, queue_id=queue, producer_id=1 + queue,
            producer_epoch=1, base_sequence=ends[queue],
        )  # fmt: skip
        seal_section(made, base_queue_offset=ends[queue], entry_distance=HEADER_SIZE)
        ends[queue] += BATCH
        yield made


def _bytes(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8).reshape(BATCH, -1)


class Lateness:
    """Lateness of the loop's timers in ms."""

    def __init__(self) -> None:
        self._task = asyncio.create_task(self._tick())
        self._seen: list[float] = []

    async def _tick(self) -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(0.005)
            self._seen.append(max(0.0, (time.perf_counter() - begin - 0.005) * 1000))

    def take(self) -> dict[str, float]:
        seen, self._seen = sorted(self._seen) or [0.0], []
        return {
            "p50": round(seen[len(seen) // 2], 2),
            "p99": round(seen[len(seen) * 99 // 100], 2),
            "max": round(seen[-1], 2),
        }


async def build(node: BrokerNode, messages: int) -> None:
    """Store the messages as fast as the node accepts them."""
    while not node._leadership.ready:  # noqa: ASYNC110 (set-up of a measurement)
        await asyncio.sleep(0.01)
    applied = await node._pipeline.run(CreateTopic(TOPIC, QUEUES, MessageType.NORMAL))
    window: deque[asyncio.Future[None]] = deque()
    for section in sections(applied.result.topic.topic_id, messages):
        window.append(node._raft.propose([section], 1).committed)
        if len(window) > 16:
            await window.popleft()
    while window:
        await window.popleft()


async def settled(index: KeyIndex) -> None:
    """Wait until everything is indexed and written."""
    while index.entries_behind or index.segments_missing or index._finished.closed:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def serve(options: argparse.Namespace) -> None:
    """Run the node: build the log unless it exists, report when the index is complete, serve until
    SIGTERM.
    """
    raft, messaging, log, http = options.ports.split(",")
    listener = ListenerConfig(messaging_bind=f"127.0.0.1:{messaging}", log_bind=f"127.0.0.1:{log}")
    folder = Path(options.folder)
    config = BrokerConfig(
        data_dir=folder, segment_size=options.segment_mib << 20, raft_bind=f"127.0.0.1:{raft}",
        http_bind=f"127.0.0.1:{http}", listener=(listener,), flush="async_timed", scrub_bytes_per_second=0,
        nameservers=(),
    )  # fmt: skip
    is_new = not (folder / "identity").exists()
    sys.setswitchinterval(0.0005)
    node = BrokerNode(config)
    await node.start()
    lateness, begin = Lateness(), time.perf_counter()
    index = node._keys
    found: dict[str, Any] = {}
    if is_new:
        await build(node, options.messages)
        found = {"build_s": round(time.perf_counter() - begin, 1)}
        lateness.take()  # also that of the loop that created the messages
    await settled(index)
    found |= {
        "index_complete_s": round(time.perf_counter() - begin, 1),
        "loop_late_ms": lateness.take(),
        "items_cpu_s": round(await index._in(index._worker, time.thread_time), 2),
        "runs_cpu_s": round(await index._in(index._finished._worker, time.thread_time), 2),
        "log_MiB": node._raft.log.end_offset >> 20,
        "index_MiB": round(
            sum(path.stat().st_size for path in (folder / "keyindex").iterdir()) / (1 << 20), 1
        ),
        "segments": len(node._raft.log.segments()),
        "rss_anon_MiB": _rss_anon(),
    }
    print(json.dumps(found), flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await node.stop()


def _rss_anon() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10


# --- who asks -----------------------------------------------------------------------------------------------
def percentiles(times: list[float]) -> dict[str, float]:
    times.sort()
    return {
        "p50": round(statistics.median(times), 2),
        "p99": round(times[len(times) * 99 // 100], 2),
        "max": round(times[-1], 2),
    }


def look_up(
    stub: admin_pb2_grpc.AdminServiceStub,
    pid: int,
    count: int,
    fields: Callable[[], dict[str, Any]],
    expected: int,
) -> dict[str, float]:
    """Ask the node of that process `count` times, one after the other."""
    times, used = [], cpu_seconds(pid)
    for _ in range(count):
        request = admin_pb2.QueryMessagesRequest(**fields())
        begin = time.perf_counter()
        answer: admin_pb2.QueryMessagesResponse = stub.QueryMessages(request, timeout=60)
        times.append((time.perf_counter() - begin) * 1000)
        assert not answer.refusal.code and not answer.unsearched_bytes, answer
        assert len(answer.messages) == expected, answer
    return {**percentiles(times), "node_cpu": round(1000 * (cpu_seconds(pid) - used) / count, 2)}


def push_out(folder: Path) -> None:
    """Evict a node's files from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def measure(options: argparse.Namespace, address: str, pid: int, folder: Path) -> None:
    keys, rng = options.messages // COPIES, random.Random(1)
    kinds: list[tuple[str, Callable[[], dict[str, Any]], int]] = [
        ("present keys", lambda: {"topic": TOPIC, "key": key_of(rng.randrange(keys))}, COPIES),
        ("absent keys", lambda: {"topic": TOPIC, "key": f"absent {rng.random()}"}, 0),
        ("ids", lambda: {"message_id": id_text(rng.randrange(options.messages))}, 1),
    ]
    with grpc.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        for name, fields, expected in kinds:
            push_out(folder)
            cold = look_up(stub, pid, options.lookups, fields, expected)
            warm = look_up(stub, pid, options.lookups, fields, expected)
            print(json.dumps({name: warm, "files cold before": cold}), flush=True)


def run_node(options: argparse.Namespace, folder: Path, ask: bool) -> None:
    """Run the node in a separate process, and query it."""
    ports = free_ports(4)
    command = [
        sys.executable, "-m", "bench.key_bench", "--serve", "--folder", str(folder), "--ports",
        ",".join(map(str, ports)),
        "--messages", str(options.messages), "--segment-mib", str(options.segment_mib),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the node ended; see its messages above")
            sys.stdout.write(line)
            sys.stdout.flush()
            if ask:
                measure(options, f"127.0.0.1:{ports[2]}", process.pid, folder)
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Look-ups by key and by id in a large log")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--segment-mib", type=int, default=1024)
    parser.add_argument("--lookups", type=int, default=1000)
    parser.add_argument(
        "--folder", default="", help="where the data goes (default: a temporary folder in build/)"
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="delete the index, and measure how it is made again"
    )
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ports", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.messages -= options.messages % (BATCH * COPIES)
    if options.serve:
        uvloop.run(serve(options))
        return
    Path("build").mkdir(exist_ok=True)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="key-bench-", dir="build"))
    try:
        run_node(options, folder, ask=True)
        run_node(options, folder, ask=False)
        if options.rebuild:
            shutil.rmtree(folder / "keyindex")
            run_node(options, folder, ask=True)
    finally:
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
